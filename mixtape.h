#pragma once
// The library for training loops of your own. To keep the include cheap, without train/ (Learner,
// callbacks, data: <mixtape/train/learner.h>, <mixtape/train/data/data.h>), images and plain files
// (<mixtape/io/png.h>, <mixtape/io/file.h>).

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
