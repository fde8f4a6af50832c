#pragma once
// Training on several processes.

#include "dist/data_parallel.h"
#include "dist/shards.h"
#include "dist/sync_batch_norm.h"
#include "dist/world.h"
