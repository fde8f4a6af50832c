#pragma once
// All data sets, transforms and the loader.

#include "train/data/cifar.h"
#include "train/data/digits.h"
#include "train/data/folder.h"
#include "train/data/idx.h"
#include "train/data/images.h"
#include "train/data/loader.h"
#include "train/data/tables.h"
#include "train/data/text.h"
#include "train/data/tokenizer.h"
#include "train/data/tokens.h"
