#pragma once
// The parts of amp that most programs need; the others are diagnosis, and planned runs.

#include "amp/autocast.h"
#include "amp/loss_scale_optimizer.h"
#include "amp/policy.h"
#include "amp/report.h"
#include "amp/scaler.h"
#include "amp/trace.h"
