#pragma once
// Matrix products by a given plan, for tests and benchmarks; the kernel gemm() chooses one. Both
// add a bias of two dimensions to each matrix of a batch.

#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {

void gemm(Launch& launch, In a, In b, const Epilogue& epilogue, Out c, const GemmPlan& plan);

// The tier that people ask for in the environment as MIXTAPE_GEMM: mma, wmma or groups, or none if
// null or empty. Throws Error on other names.
std::optional<Tier> tier_named(const char* name);

}  // namespace mixtape::kernels::cuda
