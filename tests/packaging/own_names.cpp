// A program with headers of its own that are named as ours, in own_names/, and with every warning
// that a careful project turns on.
#include "core/tensor.h"
#include "io/file.h"
#include "nn/module.h"
#include "train/callbacks.h"

#include <mixtape.h>
#include <mixtape/io/file.h>
#include <mixtape/io/png.h>
#include <mixtape/train/callbacks.h>
#include <mixtape/train/data/data.h>
#include <mixtape/train/learner.h>

struct Net : mixtape::nn::Module<Net> {
  mixtape::nn::Linear layer{4, 2};
  mixtape::Tensor forward(const mixtape::Tensor& x) const { return layer(x); }
  MIXTAPE_FIELDS(layer)
};

int main() {
  const mixtape::train::TensorDataset data(mixtape::ones({8, 4}), mixtape::zeros({8, 2}));
  mixtape::train::DataLoader loader(data, {.batch_size = 4});
  mixtape::train::Learner learner(Net(), {.out = nullptr, .progress = false});
  mixtape::Tensor x = mixtape::ones({8, 4});
  x[0] += 1;
  learner.to_fp16().fit(x, mixtape::zeros({8, 2}));
  const int own =
      mine::Tensor().value + mine::Module().value + mine::File().value + mine::Callbacks().value;
  return own == 4 && loader.batches() == 2 ? 0 : 1;
}
