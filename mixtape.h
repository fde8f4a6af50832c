#pragma once
// The library for training loops of your own: tensors, ops, modules, models, optimizers, amp, .npy
// and safetensors. To keep the include cheap, everything else has a header of its own, which its
// document names: train/ (<mixtape/train/learner.h>), dist/, and the rarer parts of amp, optim, nn
// and io.

#include "amp/amp.h"
#include "autograd/anomaly.h"
#include "autograd/checkpoint.h"
#include "autograd/function.h"
#include "autograd/functional.h"
#include "autograd/ops.h"
#include "autograd/vmap.h"
#include "core/dlpack.h"
#include "core/format.h"
#include "core/graph.h"
#include "core/stream.h"
#include "core/tf32.h"
#include "core/warn.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "nn/models/models.h"
#include "nn/nn.h"
#include "optim/optim.h"
