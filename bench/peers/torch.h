#pragma once
// The same workloads in libtorch, whose headers only torch*.cpp include.

#include "bench/case.h"
#include "bench/models.h"

namespace mixtape::peers {

void set_threads(int n);

// Training steps like those of bench/steps.h; bf16 by CPU autocast. Each is the fastest of its
// forms with the current number of threads: images with channels first or last, an optimizer with
// one call for all parameters, attention as one op, gelu exact or by tanh.
bench::Task training(const bench::MlpSize& size, bool bf16);
bench::Task training(const bench::CnnSize& size, bool bf16);
bench::Task training(const bench::LstmSize& size, bool bf16);
bench::Task training(const bench::GptSize& size, bool bf16);
bench::Task training(const bench::VitSize& size, bool bf16);
bench::Task training(const bench::ResNetSize& size, bool bf16);
bench::Task training(const bench::UnetSize& size, bool bf16);

// The op of a case with inputs of a dtype, forward or backward, in its fastest form.
bool has(const bench::Case& c, DType dtype);
bench::Task op(const bench::Case& c, DType dtype, bool backward);

// A step of AdamW or SGD with momentum for f32 parameters of these shapes.
bench::Task optimizer(const std::string& name, const std::vector<Shape>& shapes);

}  // namespace mixtape::peers
