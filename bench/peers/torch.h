#pragma once
// The same work on libtorch. Its headers stay out of every other file.

#include "bench/case.h"
#include "bench/models.h"

namespace mixtape::peers {

void set_threads(int n);

// Training steps, as those of bench/steps.h; in bf16 by its CPU autocast.
bench::Call training(const bench::MlpSize& size, bool bf16);
bench::Call training(const bench::CnnSize& size, bool bf16);
bench::Call training(const bench::LstmSize& size, bool bf16);
bench::Call training(const bench::GptSize& size, bool bf16);

// The op of that case on inputs of that dtype, forward or backward.
bool has(const bench::Case& c, DType dtype);
bench::Call op(const bench::Case& c, DType dtype, bool backward);

// A step of AdamW or of SGD with momentum for parameters of these shapes, in f32.
bench::Call optimizer(const std::string& name, const std::vector<Shape>& shapes);

}  // namespace mixtape::peers
