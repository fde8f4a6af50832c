#pragma once
// All of optim.

#include "optim/clip.h"
#include "optim/ema.h"
#include "optim/optimizers.h"
#include "optim/plateau.h"
#include "optim/schedules.h"
