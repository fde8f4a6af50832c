// Which engine a product uses: what the processor can, asked once, within the limits that were set.

#include "kernels/cpu/gemm/microkernel.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/check.h"

namespace mixtape::kernels::cpu {
namespace {

constexpr std::string_view names[] = {"portable", "avx2", "avx512", "avx512_bf16"};

Isa processor() {
#ifdef MIXTAPE_X86_ENGINES
  __builtin_cpu_init();
  // (All with AVX2 have F16C, whose name clang 14 does not know.)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::Portable;
  for (const bool has : {__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                         __builtin_cpu_supports("avx512dq"), __builtin_cpu_supports("avx512vl")})
    if (!has) return Isa::Avx2;
  return __builtin_cpu_supports("avx512bf16") ? Isa::Avx512Bf16 : Isa::Avx512;
#else
  return Isa::Portable;
#endif
}

Isa allowed() {
  const char* const text = std::getenv("MIXTAPE_ISA");
  if (!text) return processor();
  const auto* const at = std::find(std::begin(names), std::end(names), std::string_view(text));
  check(at != std::end(names),
        "MIXTAPE_ISA is '{}', not one of portable, avx2, avx512, avx512_bf16", text);
  return std::min(processor(), static_cast<Isa>(at - names));
}

thread_local int limit = static_cast<int>(Isa::Avx512Bf16);  // of the innermost IsaLimit

}  // namespace

Isa current_isa() {
  static const Isa most = allowed();
  return std::min(most, static_cast<Isa>(limit));
}

IsaLimit::IsaLimit(Isa most) : outer_(limit) { limit = static_cast<int>(most); }
IsaLimit::~IsaLimit() { limit = outer_; }

template <>
const Engine<double>* find_engine([[maybe_unused]] Isa isa, DType) {
#ifdef MIXTAPE_X86_ENGINES
  if (isa >= Isa::Avx512) return &avx512_engines.f64;
  if (isa == Isa::Avx2) return &avx2_engines.f64;
#endif
  return nullptr;
}
template <>
const Engine<float>* find_engine([[maybe_unused]] Isa isa, [[maybe_unused]] DType dtype) {
#ifdef MIXTAPE_X86_ENGINES
  if (isa == Isa::Portable) return nullptr;
  const Engines& e = isa >= Isa::Avx512 ? avx512_engines : avx2_engines;
  if (dtype == f32) return &e.f32;
  if (dtype == f16) return &e.f16;
  return isa == Isa::Avx512Bf16 ? &avx512_bf16_engine : &e.bf16;
#endif
  return nullptr;
}

template <>
const Engine<double>& any_engine(Isa isa, DType dtype) {
  const Engine<double>* const e = find_engine<double>(isa, dtype);
  return e ? *e : portable_engines.f64;
}
template <>
const Engine<float>& any_engine(Isa isa, DType dtype) {
  const Engine<float>* const e = find_engine<float>(isa, dtype);
  const Engines& p = portable_engines;
  return e ? *e : dtype == f32 ? p.f32 : dtype == f16 ? p.f16 : p.bf16;
}

}  // namespace mixtape::kernels::cpu
