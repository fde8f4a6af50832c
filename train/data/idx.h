#pragma once
// IDX, the format of MNIST and its relatives: two zero bytes, a type code, the rank, big-endian
// sizes, the data (yann.lecun.com/exdb/mnist). Files may be gzipped.

#include "train/data/dataset.h"

namespace mixtape::train {

// Reads a u8 tensor of rank 1 to 4. Throws Error that names the file if header or length is wrong,
// or if it takes more memory than io::memory_limit().
Tensor read_idx(const std::string& path, uint64_t max_memory = 0);

// Parses a file in memory; errors call it `name`.
Tensor parse_idx(std::span<const std::byte> file, const std::string& name);

// Reads train-images-idx3-ubyte, train-labels-idx1-ubyte and their t10k- counterparts, each plain
// or .gz: images u8 [n, 1, height, width], labels i64 [n]. With both pairs, t10k is the validation
// set; with one pair, the last valid_fraction of it is. Throws Error that lists the files it looked
// for, or if a set is empty or image sizes differ. max_memory is as in read_idx().
Split<TensorDataset> load_mnist(const std::string& folder, double valid_fraction = 0.1,
                                uint64_t max_memory = 0);

}  // namespace mixtape::train
