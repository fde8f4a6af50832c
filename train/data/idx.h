#pragma once
// IDX, the format of MNIST and its relatives: two zero bytes, a type code, the rank, big-endian
// sizes, the data (yann.lecun.com/exdb/mnist). Files may be gzipped.

#include <cstddef>
#include <span>
#include <string>

#include "train/data/dataset.h"

namespace mixtape::train {

// A u8 tensor of rank 1 to 4. Throws Error that names the file when the header is not one or the
// length of the file is not exactly what the header asks for.
Tensor read_idx(const std::string& path);

// The same from memory; `name` stands for the file in errors.
Tensor parse_idx(std::span<const std::byte> file, const std::string& name);

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte and their t10k- counterparts, each plain
// or .gz: images u8 [n, 1, height, width], labels i64 [n]. With both pairs, t10k is the validation
// set and valid_fraction is unused; of a single pair, that fraction at the end is. Throws Error
// that lists what it looked for, or if one of the two is empty or has images of another size.
Split<TensorDataset> load_mnist(const std::string& folder, double valid_fraction = 0.1);

}  // namespace mixtape::train
