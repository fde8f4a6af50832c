// Chooses the microkernel of a product: the processor is asked once, then limits apply.

#include "kernels/cpu/gemm/microkernel.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/device.h"

namespace mixtape::kernels::cpu {
namespace {

struct InstructionSet {
  Isa isa;
  std::string_view name;
  const Microkernels* kernels;     // null: products use Eigen
  const Microkernel<float>* bf16;  // the set's own one
};

// The instruction sets that products were compiled for, in ascending order.
constexpr InstructionSet sets[] = {
    {Isa::Portable, "portable", nullptr, nullptr},
#if defined(MIXTAPE_HAS_AVX2)
    {Isa::Avx2, "avx2", &avx2_microkernels, &avx2_microkernels.bf16},
#endif
#if defined(MIXTAPE_HAS_AVX512)
    {Isa::Avx512, "avx512", &avx512_microkernels, &avx512_microkernels.bf16},
#endif
#if defined(MIXTAPE_HAS_AVX512_BF16)
    {Isa::Avx512Bf16, "avx512_bf16", &avx512_microkernels, &avx512_bf16_microkernel},
#endif
#if defined(MIXTAPE_HAS_NEON)
    {Isa::Neon, "neon", &neon_microkernels, &neon_microkernels.bf16},
#endif
#if defined(MIXTAPE_HAS_NEON_BF16)
    {Isa::NeonBf16, "neon_bf16", &neon_microkernels, &neon_bf16_microkernel},
#endif
};

// The last one that is not beyond `most`.
const InstructionSet& set_within(Isa most) {
  return *(std::upper_bound(std::begin(sets), std::end(sets), most,
                            [](Isa isa, const InstructionSet& set) { return isa < set.isa; }) -
           1);
}

Isa isa_of_processor() {
#if defined(MIXTAPE_EMULATED_AVX512)
  return Isa::Avx512Bf16;
#elif defined(__x86_64__)
  __builtin_cpu_init();
  // (Every processor with AVX2 has F16C, which clang 14 cannot ask for.)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::Portable;
  for (const bool has : {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                         __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl")})
    if (!has) return Isa::Avx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::Avx512Bf16 : Isa::Avx512;
#elif defined(__aarch64__)
  return Device::cpu().supports_fast(bf16) ? Isa::NeonBf16 : Isa::Neon;
#else
  return Isa::Portable;
#endif
}

// The best instruction set that may be used, and the one that is, where no IsaLimit says which.
struct AllowedIsas {
  Isa most, usual;
};
AllowedIsas allowed_isas() {
  const Isa has = isa_of_processor();
  const char* const text = std::getenv("MIXTAPE_ISA");
  if (!text) {
#ifndef MIXTAPE_EMULATED_AVX512
    if (has == Isa::Avx512Bf16 && !Device::cpu().supports_fast(bf16)) return {has, Isa::Avx512};
#endif
    return {has, has};
  }
  const auto* const at = std::find_if(std::begin(sets), std::end(sets),
                                      [&](const InstructionSet& set) { return set.name == text; });
  if (at == std::end(sets)) {
    std::string names;
    for (const InstructionSet& set : sets) names.append(names.empty() ? "" : ", ").append(set.name);
    fail("MIXTAPE_ISA must be one of those compiled, {}; got '{}'", names, text);
  }
  const Isa most = std::min(has, at->isa);
  return {most, most};
}

thread_local constinit std::optional<Isa> limit;  // of the innermost IsaLimit

}  // namespace

template <>
const Microkernel<double>* find_microkernel(Isa isa, DType) {
  const Microkernels* const kernels = set_within(isa).kernels;
  return kernels ? &kernels->f64 : nullptr;
}
template <>
const Microkernel<float>* find_microkernel(Isa isa, DType dtype) {
  const InstructionSet& set = set_within(isa);
  if (!set.kernels) return nullptr;
  return dtype == f32 ? &set.kernels->f32 : dtype == f16 ? &set.kernels->f16 : set.bf16;
}

template <>
const Microkernel<double>& microkernel_or_portable(Isa isa, DType dtype) {
  const Microkernel<double>* const kernel = find_microkernel<double>(isa, dtype);
  return kernel ? *kernel : portable_microkernels.f64;
}
template <>
const Microkernel<float>& microkernel_or_portable(Isa isa, DType dtype) {
  const Microkernel<float>* const kernel = find_microkernel<float>(isa, dtype);
  const Microkernels& portable = portable_microkernels;
  return kernel         ? *kernel
         : dtype == f32 ? portable.f32
         : dtype == f16 ? portable.f16
                        : portable.bf16;
}

}  // namespace mixtape::kernels::cpu

namespace mixtape::kernels {

Isa current_isa() {
  static const cpu::AllowedIsas allowed = cpu::allowed_isas();
  return cpu::set_within(cpu::limit ? std::min(allowed.most, *cpu::limit) : allowed.usual).isa;
}
std::string_view instruction_set() { return cpu::set_within(current_isa()).name; }

IsaLimit::IsaLimit(Isa most) : outer_(cpu::limit) { cpu::limit = most; }
IsaLimit::~IsaLimit() { cpu::limit = outer_; }

}  // namespace mixtape::kernels
