#pragma once
// All of amp.

#include "amp/autocast.h"
#include "amp/loss_scale_optimizer.h"
#include "amp/policy.h"
#include "amp/report.h"
#include "amp/scaler.h"
#include "amp/trace.h"
