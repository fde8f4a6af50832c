#pragma once
// The same training step on libtorch. Its headers stay out of every other file.

#include <memory>

#include "bench/models.h"

namespace mixtape::peers {

void set_threads(int n);  // 0: as many as there are cores

class TorchCnn {
 public:
  TorchCnn(const bench::CnnSize& size, bool bf16);
  ~TorchCnn();
  void step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mixtape::peers
