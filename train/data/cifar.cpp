#include "train/data/cifar.h"

#include <cstring>

#include "autograd/ops.h"
#include "core/check.h"
#include "io/file.h"

namespace mixtape::train {
namespace {

constexpr size_t pixels = 3 * 32 * 32;

struct Variant {
  size_t label_bytes;  // the last one is the label
  int64_t classes;
};
constexpr Variant cifar10{1, 10}, cifar100{2, 100};

TensorDataset parse(std::span<const std::byte> file, const std::string& name,
                    const Variant& variant) {
  const size_t record = variant.label_bytes + pixels;
  check(!file.empty() && file.size() % record == 0,
        "{}: has {} bytes, not a multiple of the record size {}", name, file.size(), record);
  const auto n = int64_t(file.size() / record);
  const Tensor x({n, 3, 32, 32}, u8, Device::cpu()), y({n}, i64, Device::cpu());
  for (int64_t i = 0; i < n; ++i) {
    const std::byte* const from = file.data() + size_t(i) * record;
    const auto label = int64_t(from[variant.label_bytes - 1]);
    check(label < variant.classes, "{}: label {} is {}, not 0 to {}", name, i, label,
          variant.classes - 1);
    y.data<int64_t>()[i] = label;
    std::memcpy(x.data<uint8_t>() + size_t(i) * pixels, from + variant.label_bytes, pixels);
  }
  return {x, y, name};
}

TensorDataset read(const std::string& path, const Variant& variant) {
  return parse(io::read_file(path), path, variant);
}

}  // namespace

Split<TensorDataset> load_cifar10(const std::string& folder) {
  std::vector<Tensor> x, y;
  for (const char part : {'1', '2', '3', '4', '5'}) {
    const TensorDataset batch = read(folder + "/data_batch_" + part + ".bin", cifar10);
    x.push_back(batch.x());
    y.push_back(batch.y());
  }
  return {{cat(x, 0), cat(y, 0), folder}, read(folder + "/test_batch.bin", cifar10)};
}

Split<TensorDataset> load_cifar100(const std::string& folder) {
  return {read(folder + "/train.bin", cifar100), read(folder + "/test.bin", cifar100)};
}

TensorDataset parse_cifar10(std::span<const std::byte> file, const std::string& name) {
  return parse(file, name, cifar10);
}
TensorDataset parse_cifar100(std::span<const std::byte> file, const std::string& name) {
  return parse(file, name, cifar100);
}

}  // namespace mixtape::train
