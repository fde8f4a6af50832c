#pragma once
// Models: published networks, which are also examples of how to write modules. (nn/models/llama.h
// is left out to keep the include cheap.)

#include "nn/models/cnn.h"
#include "nn/models/gpt.h"
#include "nn/models/language.h"
#include "nn/models/lstm.h"
#include "nn/models/resnet.h"
