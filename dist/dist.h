#pragma once
// Training on several processes.

#include "dist/data_parallel.h"
#include "dist/world.h"
