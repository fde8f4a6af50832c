#pragma once
// All of optim.

#include "optim/adadelta.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/clip.h"
#include "optim/lamb.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/rmsprop.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
