#pragma once
// Handwritten-looking digits, drawn on demand: a data set that needs no download. Each digit is a
// few strokes whose control points, placing, pen and paper vary at random.

#include <cstdint>

#include "train/data/dataset.h"

namespace mixtape::train {

// Images u8 [n, 1, 28, 28] and labels i64 [n] of ten classes in equal parts, image i showing i
// % 10. An image depends on the seed, its set and its index, and on nothing else. A linear
// classifier stays below 90 % on them, a small CNN reaches 97 %.
Split<TensorDataset> make_digits(uint64_t seed, int64_t train, int64_t valid);

}  // namespace mixtape::train
