#pragma once
// All models: networks of published shapes, and examples of how modules are written.

#include "nn/models/cnn.h"
#include "nn/models/gpt.h"
#include "nn/models/language.h"
#include "nn/models/lstm.h"
#include "nn/models/resnet.h"
