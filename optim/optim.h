#pragma once
// All of optim.

#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/cosine.h"
#include "optim/decay.h"
#include "optim/ema.h"
#include "optim/plateau.h"
#include "optim/sequence.h"
#include "optim/sgd.h"
#include "optim/torch_state.h"
