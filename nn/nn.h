#pragma once
// All modules.

#include "nn/activation.h"
#include "nn/conv.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/loss.h"
#include "nn/module.h"
#include "nn/norm.h"
#include "nn/parametrize.h"
#include "nn/pool.h"
#include "nn/rnn.h"
#include "nn/sequential.h"
#include "nn/shape.h"
#include "nn/summary.h"
#include "nn/transformer.h"
