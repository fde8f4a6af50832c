#pragma once
// The host side of gemm_groups.cuh, a kernel that is compiled on its own.

#include "kernels/cuda/gemm/gemm.cuh"

namespace mixtape::kernels::cuda {

// True if the kernel can compute g on the device: one of compute capability 9.0, with lines that
// the copy engine can read; TF32 only along k. For T of f16, bf16 and f32, as TF32.
template <class T>
bool groups_can(const Launch& launch, const Gemm<T>& g, const GemmProblem& p);
inline bool groups_can(const Launch&, const Gemm<double>&, const GemmProblem&) { return false; }

// Computes g, of which that holds, by a plan of Tier::Groups. k is cut into `parts`, which are
// multiples of groups_k_step.
template <class T>
void start_groups(Launch& launch, const Gemm<T>& g, const GemmProblem& p, const GemmPlan& plan,
                  int parts);
template <class T>
constexpr int groups_k_step = 128 / int(sizeof(T));

}  // namespace mixtape::kernels::cuda
