// Batches that threads create and copy to a CUDA device: the same bytes as on the CPU, without a
// wait.

#include <gtest/gtest.h>

#include <vector>

#include "autograd/ops.h"
#include "core/stream.h"
#include "tests/support/errors.h"
#include "train/data/loader.h"

namespace mixtape::train {
namespace device_loader_test {

const Transform random_transform = transforms::compose(
    {transforms::random_crop(2), transforms::random_flip(), transforms::normalize(0.5, 0.25)});

// All elements of an epoch, in order.
std::vector<double> epoch(DataLoader& loader) {
  std::vector<double> all;
  for (const auto& batch : loader)
    for (const Tensor& t : {batch.x, batch.y}) {
      EXPECT_EQ(t.device(), loader.options().device);
      const std::vector<double> values = to_vector(t);
      all.insert(all.end(), values.begin(), values.end());
    }
  return all;
}

TEST(DeviceLoading, BatchesArriveThereFromAnyThread) {
  const TensorDataset data(randint(0, 256, {200, 1, 12, 9}, u8, Device::cpu()),
                           arange(0, 200, 1, i64, Device::cpu()));
  const DefaultDevice here(Device::cuda());  // for the network; data and transforms ignore it
  const auto loader = [&](Device device, int workers) {
    return DataLoader(data, {.batch_size = 16,
                             .shuffle = true,
                             .workers = workers,
                             .seed = 3,
                             .device = device,
                             .transform = random_transform});
  };
  DataLoader host = loader(Device::cpu(), 0);
  const std::vector<double> first = epoch(host), second = epoch(host);
  for (const int workers : {0, 1, 3}) {
    DataLoader there = loader(Device::cuda(), workers);
    EXPECT_EQ(epoch(there), first) << workers;
    EXPECT_EQ(epoch(there), second) << workers;
  }
}

// Work on a batch runs after its copy, and its memory is reused only after that work.
TEST(DeviceLoading, ALoopWaitsForNothing) {
  const TensorDataset data(arange(0, 64 * 500, 1, f32, Device::cpu()).reshape({64, 500}),
                           zeros({64}, i64, Device::cpu()));
  for (const int workers : {0, 2}) {
    DataLoader loader(data, {.batch_size = 4, .workers = workers, .device = Device::cuda()});
    epoch(loader);  // warms up
    std::vector<Tensor> sums;
    for (int i = 0; i < 3; ++i) {
      synchronize(Device::cuda());  // (allocates pinned memory for a host that is an epoch ahead)
      const int64_t before = synchronizations();
      for (const auto& [x, y] : loader) sums.push_back(sum(x * 2.0));
      EXPECT_EQ(synchronizations(), before);
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const double from = double(i % 16) * 2000, wanted = 2 * (2000 * from + 1999 * 1000.0);
      EXPECT_NEAR(sums[i].item(), wanted, 1e-5 * wanted);
    }
  }
}

}  // namespace device_loader_test
}  // namespace mixtape::train
