#pragma once
// CIFAR-10 and CIFAR-100 in their binary form: records of one label byte (two in CIFAR-100: coarse
// and fine) and 3 x 32 x 32 pixels (Krizhevsky 2009; cs.toronto.edu/~kriz/cifar.html).

#include "train/data/dataset.h"

namespace mixtape::train {

// Reads images u8 [n, 3, 32, 32] and labels i64 [n] from data_batch_1.bin to data_batch_5.bin and
// from test_batch.bin. Throws Error that names the file if it is truncated or a label is out of
// range.
Split<TensorDataset> load_cifar10(const std::string& folder);
// The same from train.bin and test.bin, with the 100 fine labels.
Split<TensorDataset> load_cifar100(const std::string& folder);

// Parses one file in memory, which errors call `name`.
TensorDataset parse_cifar10(std::span<const std::byte> file, const std::string& name);
TensorDataset parse_cifar100(std::span<const std::byte> file, const std::string& name);

}  // namespace mixtape::train
