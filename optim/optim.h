#pragma once
// All of optim.

#include "optim/adadelta.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/cosine.h"
#include "optim/decay.h"
#include "optim/ema.h"
#include "optim/lamb.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/plateau.h"
#include "optim/rmsprop.h"
#include "optim/sequence.h"
#include "optim/sgd.h"
#include "optim/torch_state.h"
