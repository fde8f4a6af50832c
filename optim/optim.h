#pragma once
// All of optim.

#include "optim/clip.h"
#include "optim/cosine.h"
#include "optim/decay.h"
#include "optim/ema.h"
#include "optim/optimizers.h"
#include "optim/plateau.h"
#include "optim/sequence.h"
#include "optim/torch_state.h"
