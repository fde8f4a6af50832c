#pragma once
// The same workloads in libtorch, whose headers only torch*.cpp include.

#include "bench/case.h"
#include "bench/models.h"

namespace mixtape::peers {

void set_threads(int n);

// Training steps like those of bench/steps.h; bf16 by CPU autocast.
bench::Call training(const bench::MlpSize& size, bool bf16);
bench::Call training(const bench::CnnSize& size, bool bf16);
bench::Call training(const bench::LstmSize& size, bool bf16);
bench::Call training(const bench::GptSize& size, bool bf16);

// The op of a case with inputs of a dtype, forward or backward.
bool has(const bench::Case& c, DType dtype);
bench::Call op(const bench::Case& c, DType dtype, bool backward);

// A step of AdamW or SGD with momentum for f32 parameters of these shapes.
bench::Call optimizer(const std::string& name, const std::vector<Shape>& shapes);

}  // namespace mixtape::peers
