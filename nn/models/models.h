#pragma once
// Models: networks of published shapes, and examples of how modules are written. (Not here, to keep
// the include cheap: nn/models/llama.h.)

#include "nn/models/cnn.h"
#include "nn/models/gpt.h"
#include "nn/models/language.h"
#include "nn/models/lstm.h"
#include "nn/models/resnet.h"
