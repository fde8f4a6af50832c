// Chooses the microkernel of a product: the processor is asked once, then limits apply.

#include "kernels/cpu/gemm/microkernel.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/check.h"
#include "kernels/common/instruction_set.h"

namespace mixtape::kernels::cpu {
namespace {

constexpr std::string_view names[] = {"portable", "avx2", "avx512", "avx512_bf16"};

Isa isa_of_processor() {
#ifdef MIXTAPE_X86_MICROKERNELS
  __builtin_cpu_init();
  // (Every processor with AVX2 has F16C, which clang 14 cannot ask for.)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::Portable;
  for (const bool has : {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                         __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl")})
    if (!has) return Isa::Avx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::Avx512Bf16 : Isa::Avx512;
#else
  return Isa::Portable;
#endif
}

Isa allowed_isa() {
  const char* const text = std::getenv("MIXTAPE_ISA");
  if (!text) return isa_of_processor();
  const auto* const at = std::find(std::begin(names), std::end(names), std::string_view(text));
  check(at != std::end(names),
        "MIXTAPE_ISA must be portable, avx2, avx512 or avx512_bf16, got '{}'", text);
  return std::min(isa_of_processor(), static_cast<Isa>(at - names));
}

thread_local int limit = static_cast<int>(Isa::Avx512Bf16);  // of the innermost IsaLimit

}  // namespace

Isa current_isa() {
  static const Isa most = allowed_isa();
  return std::min(most, static_cast<Isa>(limit));
}

IsaLimit::IsaLimit(Isa most) : outer_(limit) { limit = static_cast<int>(most); }
IsaLimit::~IsaLimit() { limit = outer_; }

template <>
const Microkernel<double>* find_microkernel([[maybe_unused]] Isa isa, DType) {
#ifdef MIXTAPE_X86_MICROKERNELS
  if (isa >= Isa::Avx512) return &avx512_microkernels.f64;
  if (isa == Isa::Avx2) return &avx2_microkernels.f64;
#endif
  return nullptr;
}
template <>
const Microkernel<float>* find_microkernel([[maybe_unused]] Isa isa, [[maybe_unused]] DType dtype) {
#ifdef MIXTAPE_X86_MICROKERNELS
  if (isa == Isa::Portable) return nullptr;
  const Microkernels& all = isa >= Isa::Avx512 ? avx512_microkernels : avx2_microkernels;
  if (dtype == f32) return &all.f32;
  if (dtype == f16) return &all.f16;
  return isa == Isa::Avx512Bf16 ? &avx512_bf16_microkernel : &all.bf16;
#endif
  return nullptr;
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

std::string_view mixtape::kernels::instruction_set() {
  return cpu::names[static_cast<int>(cpu::current_isa())];
}
