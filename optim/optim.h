#pragma once
// The parts of optim that most programs need.

#include "optim/clip.h"
#include "optim/ema.h"
#include "optim/optimizers.h"
#include "optim/plateau.h"
#include "optim/schedules.h"
