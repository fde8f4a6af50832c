// Defines the table of kernels, and what a call is given. On the CPU, a kernel that was compiled
// for several instruction sets runs the best one for the calling thread.

#include <iterator>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "kernels/common/instruction_set.h"
#include "kernels/common/launch.h"

namespace mixtape::kernels {
namespace {

namespace isa {  // by the names of targets
[[maybe_unused]] constexpr Isa portable = Isa::Portable, avx2 = Isa::Avx2, avx512 = Isa::Avx512,
                               avx512_bf16 = Isa::Avx512Bf16, neon = Isa::Neon,
                               neon_bf16 = Isa::NeonBf16, native = Isa::Portable;
}

// MIXTAPE_TARGETS(m, ...) is m(target, ...) for each instruction set that kernels were compiled
// for, in ascending order: by kernels/meson.build.
#define MIXTAPE_ISA(target) isa::target,
constexpr Isa compiled[] = {MIXTAPE_TARGETS(MIXTAPE_ISA)};

// The position of the last one that the calling thread may use, or of the first.
[[maybe_unused]] size_t best() {
  const Isa most = current_isa();
  size_t i = std::size(compiled) - 1;
  while (i > 0 && compiled[i] > most) --i;
  return i;
}
template <class Function>
struct Choice;
template <class... Args>
struct Choice<void (*const)(Launch&, Args...)> {
  template <const auto& functions>
  static void call(Launch& launch, Args... args) {
    functions[best()](launch, std::forward<Args>(args)...);
  }
};
template <const auto& functions>
consteval auto best_of() {
  using Function = std::remove_reference_t<decltype(functions[0])>;
  if constexpr (std::size(compiled) == 1)
    return functions[0];
  else
    return &Choice<Function>::template call<functions>;
}

}  // namespace

void refuse(const char* kernel, Device device) {
  raise(std::string("kernel '") + kernel + "' runs on the CPU alone, not on " + device.to_string() +
        " (move the tensors: x.to(Device::cpu()))");
}

void* Launch::memory(size_t bytes) {
  void* const block = allocate(bytes, device, number_, MemoryOf::Kernels);
  void* const data = scratch_.push_back({block, bytes}).data;
  if (internal::kernel_watch) [[unlikely]]
    internal::kernel_watch->scratch(device, data, bytes);
  return data;
}

}  // namespace mixtape::kernels

#define MIXTAPE_DECLARE(target, name, ...) \
  namespace target {                       \
  void name(Launch&, __VA_ARGS__);         \
  }
#define MIXTAPE_ADDRESS(target, name) &cpu::target::name,
#define MIXTAPE_ROW(name, cpu_alone, on_cuda, ...)                                           \
  namespace [[gnu::visibility("hidden")]] cpu {                                              \
  MIXTAPE_TARGETS(MIXTAPE_DECLARE, name, __VA_ARGS__)                                        \
  }                                                                                          \
  namespace by_target {                                                                      \
  constexpr void (*name[])(Launch&, __VA_ARGS__) = {MIXTAPE_TARGETS(MIXTAPE_ADDRESS, name)}; \
  }                                                                                          \
  extern const Kernel<void(Launch&, __VA_ARGS__)> name;                                      \
  constinit const Kernel<void(Launch&, __VA_ARGS__)> name {                                  \
    #name, cpu_alone, { best_of<by_target::name>(), on_cuda }                                \
  }
#define MIXTAPE_CPU_KERNEL(name, ...) MIXTAPE_ROW(name, true, nullptr, __VA_ARGS__)
#ifdef MIXTAPE_CUDA
#define MIXTAPE_KERNEL(name, ...)                \
  namespace [[gnu::visibility("hidden")]] cuda { \
  void name(Launch&, __VA_ARGS__);               \
  }                                              \
  MIXTAPE_ROW(name, false, &cuda::name, __VA_ARGS__)
#else
#define MIXTAPE_KERNEL(name, ...) MIXTAPE_ROW(name, false, nullptr, __VA_ARGS__)
#endif
#include "kernels/kernels.h"
