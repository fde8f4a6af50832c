// Storage in fewer than 32 bits: moments as bf16 or codes, parameters with and without masters.
#include <fmt/format.h>

#include <algorithm>

#include "autograd/autograd_meta.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "core/warn.h"
#include "kernels/common/elementwise.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"
#include "optim/sharing.h"
#include "optim/state_reader.h"

namespace mixtape::optim {
using namespace internal;
namespace {

Tensor make_scale(const Shape& shape, Device device) {
  return Tensor({ceil_div(shape.size(), kernels::code_block)}, f32, device);
}

// The f32 values of codes, which are on the same device.
Tensor decoded(const Tensor& codes, const Tensor& scale, StateFormat format, bool nonnegative) {
  Tensor x(codes.shape(), f32, codes.device());
  kernels::decode_blocks(x.device(), format.code(), nonnegative, codes, scale, x);
  return x;
}

// x op y, in f32 on the device of x.
template <class Op>
Tensor in_f32(const Tensor& x, const Tensor& y) {
  const Tensor a = dense_copy(x, f32, x.device()), b = dense_copy(y, f32, x.device());
  kernels::binary(x.device(), kernels::index_in<Op>(kernels::BinaryOps{}), a, b, b);
  return b;
}
// A parameter and its compensation, which is what rounding to it lost of the f32 value.
Tensor compensated(const Tensor& p, const Tensor& compensation) {
  return in_f32<kernels::Add>(p, compensation);
}
Tensor lost_by(const Tensor& p, const Tensor& value) {
  return dense_copy(in_f32<kernels::Sub>(value, p), p.dtype(), p.device());
}

}  // namespace

StateFormat::StateFormat(DType format) : dtype_(format) {
  check(format == f32 || format == bf16 || format == i8 || format == f8,
        "state must be f32, bf16, i8 or f8, got {}", format);
  if (!is_float(format)) {
    dtype_ = u8;
    code_ = format == i8 ? kernels::StateCode::Dynamic : kernels::StateCode::E4M3;
  }
}
std::string_view StateFormat::name() const {
  if (code_ == kernels::StateCode::None) return mixtape::name(dtype_);
  return code_ == kernels::StateCode::Dynamic ? "i8" : "f8";
}
StateFormat StateFormat::parse(std::string_view name) {
  for (const StateFormat& format : std::initializer_list<StateFormat>{f32, bf16, i8, f8})
    if (format.name() == name) return format;
  fail("state must be f32, bf16, i8 or f8, got '{}'", name);
}

Rounding parse_rounding(std::string_view name) {
  if (name == "nearest") return Rounding::Nearest;
  if (name == "stochastic") return Rounding::Stochastic;
  check(name == "kahan", "rounding must be nearest, stochastic or kahan, got '{}'", name);
  return Rounding::Kahan;
}

void CommonOptions::check_rounding() const {
  check(rounding == Rounding::Nearest || !multi_precision,
        "rounding is {} and multi_precision true: with masters, parameters are rounded to nearest",
        rounding == Rounding::Stochastic ? "stochastic" : "kahan");
}

void Algorithm::check_state() const {
  const States all = states({});
  check(common.state == f32 || all.empty() || !std::ranges::all_of(all, &State::is_weight),
        "state must be f32, got {}: {} is a mean of weights, which other formats hold too coarsely",
        common.state.name(), all.empty() ? "" : all[0].name);
}

void Algorithm::check_plain() const {
  check(common.rounding == Rounding::Nearest && common.state == StateFormat(f32),
        "rounding and state are for the library's own optimizers: update() reads f32");
}

// The storage of a state of p. For short vectors, codes would save nothing, and the largest of few
// numbers outweighs the others. Weights move by less than the distance of two codes or of two
// numbers of bf16, and means over rows and columns are few, so both stay wide.
StateFormat Optimizer::Group::format_for(const Tensor& p, const State& state) const {
  constexpr int64_t least = 4096;
  const StateFormat format = common().state;
  if (p.dtype() == f64 || format == f32 || state.is_weight || state.shape != p.shape()) return f32;
  const auto sharing = sharing_of(p);
  const int64_t size = sharing ? sharing->whole_of(p).numel() : p.numel();
  return format.dtype() == u8 && size < least ? f32 : format;
}

DType Optimizer::Group::low_state_dtype(const Tensor& p, const State& state) const {
  const DType dtype = format_for(p, state).dtype();
  return dtype == f32 ? accumulate_dtype(p.dtype()) : dtype;
}

// States that are weights begin as the parameter, and stay so if the first step is skipped.
void Optimizer::Group::make_state(Slot& slot, size_t k, const State& state) const {
  const Tensor& p = slot.param;
  const StateFormat format = format_for(p, state);
  if (state.is_weight) {
    check_no_capture("the first step makes state: run it once before");
    const bool has_master = slot.master && is_half(p.dtype());
    slot.state[k] = dense_copy(has_master ? slot.master : p, state_dtype(p, state), p.device());
    return;
  }
  if (format.dtype() != u8) {
    slot.state[k] = filled(state.shape, state.initial, state_dtype(p, state), p.device());
    return;
  }
  // If all numbers are equal, each is the largest of its block.
  const bool is_i8 = format == i8;
  slot.state[k] = filled(p.shape(), is_i8 ? 255 : 0x7e, u8, p.device());
  slot.scale[k] = make_scale(p.shape(), p.device());
  kernels::fill(p.device(), is_i8 ? state.initial : state.initial / 448, slot.scale[k]);
}

void Optimizer::Group::load_state(Slot& slot, size_t k, StateReader& reader, const std::string& key,
                                  const State& info) const {
  const Tensor& p = slot.param;
  const StateFormat format = format_for(p, info);
  const bool to_codes = format.dtype() == u8;
  const Tensor* const saved = reader.find(key);
  if (!saved) return;
  Tensor& state = slot.state[k];
  if (saved->dtype() != u8) {
    state = reader.copy_of(key, info.shape, to_codes ? f32 : state_dtype(p, info), p.device());
  } else {
    check(saved->shape() == info.shape, "{} must have shape {}, got {}", key, info.shape,
          saved->shape());
    const std::string i8_key = key + ".i8_scale", f8_key = key + ".f8_scale";
    const Tensor* scale = reader.find(i8_key);
    const StateFormat found = scale ? i8 : f8;
    if (!scale) scale = reader.find(f8_key);
    check(scale, "{} are codes of 8 bits, but {} or {} is missing", key, i8_key, f8_key);
    const Tensor wanted = make_scale(p.shape(), p.device());
    const Tensor scales =
        reader.copy_of(found == i8 ? i8_key : f8_key, wanted.shape(), f32, p.device());
    state = dense_copy(*saved, u8, p.device());
    if (found == format) {
      slot.scale[k] = scales;
      return;
    }
    state = decoded(state, scales, found, info.nonnegative);
    if (!to_codes) state = dense_copy(state, state_dtype(p, info), p.device());
  }
  if (!to_codes) return;
  const Tensor codes(p.shape(), u8, p.device());
  slot.scale[k] = make_scale(p.shape(), p.device());
  kernels::encode_blocks(p.device(), format.code(), info.nonnegative, state, codes, slot.scale[k]);
  state = codes;
}

// Makes the f32 master of a 16-bit parameter or the 16-bit shadow of an f32 one. If the parameter
// was written since the last step, makes a new one, so that both agree even if this step is
// skipped.
void Optimizer::prepare_half(Slot& slot, const Group& group) {
  const Tensor& p = slot.param;
  if (is_half(p.dtype())) {
    if (!slot.master && group.common().multi_precision) {
      check_no_capture("the first step makes masters: run it once before");
      slot.master = dense_copy(p, f32, p.device());
    } else if (group.rounds(p)) {
      if (group.common().rounding == Rounding::Kahan && !slot.compensation)
        slot.compensation = filled(p.shape(), 0, p.dtype(), p.device());
    } else if (!slot.master) {
      warn(
          fmt::format("{}: {} parameters without multi_precision lose updates below their "
                      "precision: let the optimizer keep f32 copies with "
                      "{{.multi_precision = true}}, or round by chance with "
                      "{{.rounding = Rounding::Stochastic}}",
                      name(), p.dtype()));
    }
  } else if (group.keeps_shadow(slot)) {
    // A shadow that a live graph has saved is not overwritten.
    const Tensor& shadow = p.autograd_meta().half.data;
    if (!slot.agrees || shadow.dtype() != *group.common().shadow || !shadow.is_unique()) {
      check_no_capture(
          "the optimizer makes a new shadow, and a replay would read the old: step once before, "
          "and keep no loss with its history");
      p.set_shadow(dense_copy(p, *group.common().shadow, p.device()));
    }
  }
}

std::vector<Tensor> Optimizer::masters() {
  require_groups();
  std::vector<Tensor> all;
  for (Group& group : groups_)
    for (Slot& slot : group.slots) {
      slot.agrees = slot.is_untouched();
      follow(slot);
      const bool is_wide = !is_half(slot.param.dtype());
      all.push_back(is_wide             ? Tensor()
                    : slot.compensation ? compensated(slot.param, slot.compensation)
                                        : slot.master);
    }
  return all;
}

void Optimizer::set_masters(const std::vector<Tensor>& values) {
  const size_t count = params().size();
  check(values.size() == count, "{} masters for {} parameters", values.size(), count);
  size_t index = 0;
  for (Group& group : groups_)
    for (Slot& slot : group.slots) {
      const Tensor &p = slot.param, &value = values[index++];
      if (!value || !is_half(p.dtype())) continue;
      check(value.shape() == p.shape(), "the master of parameter {} must have shape {}, got {}",
            index - 1, p.shape(), value.shape());
      if (group.common().multi_precision)
        slot.master = dense_copy(value, f32, p.device());
      else if (group.common().rounding == Rounding::Kahan)
        slot.compensation = lost_by(p, value);
      slot.storage = 0;  // the next step compares them with the parameter
    }
}

void Optimizer::flatten_masters(Group& group) {
  constexpr int64_t unit = 16;  // elements: keeps vector loads aligned
  const Device device = group.slots[0].param.device();
  const auto length = [&](const Slot& slot) {
    const Tensor& p = slot.param;
    return is_half(p.dtype()) && p.device() == device ? round_up(p.numel(), unit) : 0;
  };
  int64_t size = 0;
  const Tensor* first = nullptr;
  bool done = true;
  for (const Slot& slot : group.slots) {
    if (length(slot) == 0) continue;
    if (!first) first = &slot.master;
    done = done && slot.master && slot.master.storage() == first->storage();
    size += length(slot);
  }
  if (done) return;
  const Tensor flat = filled({size}, 0, f32, device);
  int64_t begin = 0;
  for (Slot& slot : group.slots) {
    if (length(slot) == 0) continue;
    const Tensor& p = slot.param;
    const Tensor master = flat.with_layout(Layout(p.shape()).at_offset(begin));
    kernels::convert(device, slot.master ? slot.master : p, master);
    slot.master = master;
    slot.agrees = true;
    begin += length(slot);
  }
}

// The compensation, Kahan's rounding error, belongs to the value that the step wrote. If the
// parameter was written or loaded since, it is kept where the sum still rounds to the parameter.
void Optimizer::follow_compensation(Slot& slot) {
  const Tensor &p = slot.param, &rest = slot.compensation;
  if (rest.dtype() != p.dtype()) slot.compensation = {};
  if (!rest || slot.agrees) return;
  constexpr int equal = kernels::index_in<kernels::Equal>(kernels::BinaryOps{});
  const Tensor rounded = dense_copy(compensated(p, rest), p.dtype(), p.device());
  const Tensor same(p.shape(), boolean, p.device());
  kernels::binary(p.device(), equal, rounded, p, same);
  kernels::where(p.device(), same, rest, filled(p.shape(), 0, p.dtype(), p.device()), rest);
  slot.agrees = true;
}

// Fills in `low`; returns false if everything is stored the plain way.
bool Optimizer::Group::describe(const Slot& slot, size_t index, kernels::LowMemory& low) const {
  const Tensor& p = slot.param;
  const States states = algorithm->states(p.shape());
  bool narrow = false;
  for (size_t k = 0; k < states.size(); ++k) {
    low.nonnegative |= uint32_t(states[k].nonnegative) << k;
    if (slot.scale[k]) low.scale[k] = to_write(slot.scale[k]);
    narrow = narrow || (slot.state[k] && slot.state[k].dtype() != accumulate_dtype(p.dtype()));
  }
  low.code = common().state.code();
  low.index = uint32_t(index);
  low.seed = common().seed;
  if (const auto sharing = sharing_of(p)) low.first = sharing->first_of(p);
  if (!rounds(p)) return narrow;
  low.rounding = common().rounding;
  low.compensation = to_write(slot.compensation);
  return true;
}

}  // namespace mixtape::optim
