#pragma once
// Algorithm: one interface to the struct of any optimizer, with the options of a group.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "core/device.h"
#include "core/thread_state.h"
#include "kernels/common/optimizers.h"

namespace mixtape::optim {

using kernels::Betas;
using kernels::Option;
using kernels::Options;
using kernels::Rounding;
using kernels::StepControl;
using kernels::Updates;

namespace detail {
void check_value(const Option& option, double value);  // throws Error if it is out of bounds
// The option of that name. If the optimizer `of` has none, throws Error that lists its options.
Option find_option(const Options& options, std::string_view name, std::string_view of);
}  // namespace detail

// A buffer of a parameter: its shape, whether the options need it, its kind and its first value.
struct State {
  std::string_view name;
  Shape shape;
  bool used = true, nonnegative = false, is_weight = false;
  double initial = 0;
};
using States = InlineVector<State, kernels::Update::max_states>;
// True if the options need any of them.
inline bool uses_any(const States& states) { return std::ranges::any_of(states, &State::used); }

// The storage of states: f32 or bf16, or i8 or f8, which are 8-bit codes with an f32 scale for each
// 256 elements.
class StateFormat {
 public:
  StateFormat(DType format);  // throws Error unless it is f32, bf16, i8 or f8_e4m3
  static StateFormat parse(std::string_view name);  // throws Error unless f32, bf16, i8 or f8
  std::string_view name() const;          // "f32", "bf16", "i8" or "f8", as parse() takes it
  DType dtype() const { return dtype_; }  // of the numbers, or of the codes
  kernels::StateCode code() const { return code_; }  // None for f32 and bf16
  bool operator==(const StateFormat&) const = default;

 private:
  DType dtype_;
  kernels::StateCode code_ = kernels::StateCode::None;
};
inline constexpr DType f8 = f8_e4m3;
Rounding parse_rounding(std::string_view name);  // throws Error unless nearest, stochastic or kahan

// The options of a group that are the same for every optimizer.
struct CommonOptions {
  // Keeps an f32 copy (the master) of each f16 or bf16 parameter, updates that, and rounds it.
  bool multi_precision = false;
  bool flat_master = false;  // lays the masters of the group end to end in one tensor
  // f16 or bf16: a copy of each f32 parameter, made by the first step, that Autocast need not cast.
  std::optional<DType> shadow = {};
  double rescale_grad = 1;  // multiplies the gradients
  bool maximize = false;    // negates the gradients
  // The rounding of f16 and bf16 parameters without masters, which may keep updates below their
  // precision.
  Rounding rounding = Rounding::Nearest;
  StateFormat state = f32;  // 8-bit codes only for parameters of 4096 elements or more
  uint64_t seed = 0;        // of Rounding::Stochastic

  // True if updates do not round to nearest, or states are not f32.
  bool is_low() const { return rounding != Rounding::Nearest || state.dtype() != f32; }
  void check_rounding() const;  // throws Error if it is set together with masters
};

// The part of a parameter that a step of an element needs besides its own value, gradient and
// states.
enum class Reads { Nothing, Norms, Parameter };

class Algorithm {
 public:
  virtual ~Algorithm() = default;
  Options options();                                             // its own, and maximize
  virtual double default_of(std::string_view option) const = 0;  // 0 for maximize
  void check_options() const;        // throws Error if options in range do not go together
  void check_state() const;          // throws Error if common.state is for moments, and it has none
  virtual int min_rank() const = 0;  // of parameters: 2 for matrices alone
  virtual Reads reads() const = 0;   // the part of the parameter that a step of an element needs
  // The states of a parameter of this shape, in the order of Update::state.
  virtual States states(const Shape& of) const = 0;
  // Updates all of these parameters in one call.
  virtual void update(Device device, Updates updates, const StepControl& control) const = 0;

  CommonOptions common;

 protected:
  explicit Algorithm(const CommonOptions& options) : common(options) {}
  virtual Options own_options() = 0;
  virtual kernels::Requirements requirements() const = 0;
  void check_plain() const;  // throws Error if rounding or state need the library's kernels
  // Rounds what an update() has written to 16-bit parameters and copies, as the library's kernels
  // do.
  static void round_copies(Device device, Updates updates);
  // `bytes` is the size of the options. In a capture, each replay reads the options of its time.
  void run_kernel(Device device, kernels::AnyOptimizer optimizer, size_t bytes, Updates updates,
                  const StepControl& control) const;
};

struct AnyState {               // stands in for an element's states
  float get(int) const;         // the state with that index
  float set(int, float) const;  // writes and returns it
};

// O is a struct of kernels/common/optimizers.h, or one like those with update() instead of Step<T>.
template <class O>
class AlgorithmOf final : public Algorithm {
 public:
  // Takes the options unchecked; see check_options().
  AlgorithmOf(const O& o, const CommonOptions& options) : Algorithm(options), o_(o) {}

  double default_of(std::string_view option) const override {
    O defaults;
    for (const Option& each : defaults.options())
      if (each.name == option) return each.get();
    return 0;
  }
  int min_rank() const override {
    if constexpr (requires { O::min_rank; })
      return O::min_rank;
    else
      return 0;
  }
  Reads reads() const override {
    // (Not a parameter of requires, which must exist for clang 14.)
    if constexpr (requires(AnyState state) {
                    std::declval<const typename O::template Step<float>&>()(0.0f, 0.0f, state);
                  })
      return Reads::Nothing;
    else if constexpr (requires { O::moves_states_first; })
      return kernels::element_states<O> == kernels::state_count<O> ? Reads::Norms
                                                                   : Reads::Parameter;
    else
      return Reads::Parameter;
  }
  States states(const Shape& of) const override {
    States all;
    if constexpr (requires { O::states; })
      for (const kernels::StateInfo info : O::states) {
        State& state = all.push_back({info.name, of});
        const int k = int(all.size()) - 1;
        state.nonnegative = info.nonnegative;
        state.is_weight = info.is_weight;
        if constexpr (requires { o_.uses(0); }) state.used = o_.uses(k);
        if constexpr (requires { o_.uses(0, 0); }) state.used = o_.uses(k, of.rank);
        if (state.used && info.over != kernels::Over::Elements)
          state.shape[of.rank - (info.over == kernels::Over::Rows ? 1 : 2)] = 1;
        if constexpr (requires { o_.initial(); }) state.initial = o_.initial();
      }
    return all;
  }
  void update(Device device, Updates updates, const StepControl& control) const override {
    if constexpr (requires { o_.update(device, updates, control); }) {
      check_plain();
      internal::check_no_capture("an optimizer with an update() of its own reads options there");
      o_.update(device, updates, control);
      round_copies(device, updates);
    } else {
      run_kernel(device, o_, sizeof o_, updates, control);
    }
  }

 private:
  Options own_options() override { return o_.options(); }
  kernels::Requirements requirements() const override {
    if constexpr (requires { o_.requirements(); })
      return o_.requirements();
    else
      return {};
  }

  O o_;
};

}  // namespace mixtape::optim
