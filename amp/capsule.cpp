// Capsules: the search for the op that fails, and its replay. (capsule_file.cpp has the file
// format.)
#include "amp/capsule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "autograd/backward_state.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "core/scope.h"
#include "core/tf32.h"
#include "io/crc.h"
#include "io/file.h"
#include "io/text.h"
#include "kernels/common/instruction_set.h"
#include "kernels/common/tensor_stats.h"
#include "kernels/kernels.h"

namespace mixtape::amp {
using namespace internal;
namespace {

using detail::is_counted;
using kernels::TensorStats;

// The counts of all tensors together; those that are not floats do not count.
TensorStats stats_of(std::span<const Tensor> tensors) {
  const Unobserved aside;
  TensorStats all;
  for (const Tensor& t : tensors) {
    if (!is_counted(t)) continue;
    const Tensor stats = detail::stats_of(detail::counted_numbers(t.detach()));
    all.join(*static_cast<const TensorStats*>(stats.copied_to(Device::cpu()).host()));
  }
  return all;
}

// The checksum of dtypes, shapes and numbers.
std::string checksum_of(std::span<const Tensor> tensors) {
  const Unobserved aside;
  uint32_t crc = 0;
  for (const Tensor& t : tensors) {
    const std::string what = t ? fmt::format("{} {}", t.dtype(), t.shape()) : "none";
    crc = io::crc32c(std::as_bytes(std::span(what)), crc);
    if (!t || t.numel() == 0) continue;
    const Tensor here = contiguous(t.detach()).copied_to(Device::cpu());
    crc = io::crc32c({static_cast<const std::byte*>(here.host()), here.nbytes()}, crc);
  }
  return fmt::format("{:08x}", crc);
}

// A policy that asks for results of a dtype.
struct Asked final : Policy {
  std::optional<DType> out;
  explicit Asked(std::optional<DType> out) : out(out) {}
  void apply(Call& call) override { call.out = out; }
  std::shared_ptr<Policy> snapshot() const override { return std::make_shared<Asked>(out); }
};

// A checksum of the types, since their text is longer than all else that a small capsule has.
std::string types_of(const Repeat& r) {
  return fmt::format("{:08x}", io::crc32c(std::as_bytes(std::span(std::string_view(r.types)))));
}

const Repeat& find_repeat(const Capsule& c) {
  for (const Repeat* r : all_repeats())
    if (c.op == r->op.name && c.types == types_of(*r)) {
      check(r->run, "{} has an argument that is not plain data, and cannot be repeated", c.op);
      return *r;
    }
  fail(
      "no such call of {} is in this program: the capsule is of other sources, or of another "
      "compiler ({})",
      c.op, c.compiler);
}

// The dtype that an input or the requested dtype has in a replay in `to`.
DType converted(DType from, DType to) {
  const bool wider = from == f32 && is_half(to);  // as statistics and sums of half numbers have
  return wider ? f32 : to;
}

}  // namespace

// --- finding ---

OverflowCapsule::OverflowCapsule(std::string path) : path_(std::move(path)) {
  const Scope scope("OverflowCapsule");
  for (const std::string_view other : {".pt", ".pth", ".bin", ".gguf"})
    check(!path_.ends_with(other),
          "a capsule is a safetensors file, but {} is named like another format", path_);
  const io::AtomicFile can_be_written(path_);
}

void OverflowCapsule::count(const Kept& kept, long by) {
  for (const Capsule::Input& in : kept.capsule.inputs)
    if (in.tensor && (handles_[in.tensor.storage()->id()] += by) == 0)
      handles_.erase(in.tensor.storage()->id());
}

bool OverflowCapsule::examine(Capsule& c, BadOp bad, std::span<const Tensor> inputs,
                              std::span<const Tensor> results) {
  const TensorStats made = stats_of(results);
  if (made.is_finite()) return false;
  const TensorStats given = stats_of(inputs);
  if (given.nans > 0 || (given.infinities > 0 && made.nans == 0)) return false;
  bad.module = c.module;
  for (const Tensor& t : inputs)
    if (is_counted(t)) bad.inputs.push_back(t.dtype());
  bad.input_absmax = given.largest;
  for (const Tensor& t : results) {
    const TensorStats s = stats_of({&t, 1});
    if (s.is_finite()) continue;
    bad.dtype = t.dtype(), bad.shape = t.shape();
    bad.infinities = int64_t(s.infinities), bad.nans = int64_t(s.nans);
    break;
  }
  c.finding = bad.text();
  c.checksum = checksum_of(results);
  c.save(path_);
  found_ = true;
  kept_.clear();
  handles_.clear();
  return true;
}

void OverflowCapsule::after(const Call& call, const Tensor& result) {
  if (found_ || backward_state.in_rule || !call.repetition) return;
  if (std::exchange(went_back_, false))
    std::erase_if(kept_, [&](const auto& entry) {
      const bool gone = entry.second.node.expired();
      if (gone) count(entry.second, -1);
      return gone;
    });
  const bool records = bool(result.grad_fn());
  const bool looks = is_counted(result) && detail::makes_numbers(call, result) &&
                     !stats_of({&result, 1}).is_finite();
  const Repetition& r = *call.repetition;
  if ((!records && !looks) || !r.how.run) return;
  Kept kept;
  Capsule& c = kept.capsule;
  c.op = call.op.name;
  c.module = Scope::path_text();
  c.types = types_of(r.how);
  c.device = result.device().to_string();
  c.instruction_set = kernels::instruction_set();
  c.compiler = __VERSION__;
  c.seed = generator().seed(), c.offset = generator().offset();
  c.tf32 = Tf32::allowed();
  std::vector<Tensor> inputs;
  for (const Tensor* t : call.inputs) {
    Capsule::Input& in = c.inputs.emplace_back();
    if (!*t) continue;
    in.tensor = t->detach();
    in.requires_grad = records && t->requires_grad();
    if (in.requires_grad) in.grad_dtype = result.grad_fn()->ctx.grad_dtype(c.inputs.size() - 1);
    kept.versions.push_back(t->version());
    inputs.push_back(in.tensor);
  }
  c.lists.assign(r.lists.begin(), r.lists.end());
  c.attributes = r.how.attributes(r.arguments);
  c.out = call.out;
  if (looks) {
    auto [kind, op] = detail::described(call);
    if (examine(c, {kind, std::move(op), {}}, inputs, {&result, 1})) return;
  }
  if (!records) return;
  kept.node = result.grad_fn();
  const auto [entry, fresh] = kept_.try_emplace(result.grad_fn()->order);
  if (!fresh) count(entry->second, -1);
  count(kept, 1);
  entry->second = std::move(kept);
}

void OverflowCapsule::after_rule(const Node& node, const Tensor& dy,
                                 std::span<const Tensor> gradients) {
  went_back_ = true;
  const auto entry = kept_.find(node.order);
  if (found_ || entry == kept_.end() || entry->second.capsule.op != node.name()) return;
  Kept kept = entry->second;  // a copy, since examine() drops the entry
  Capsule& c = kept.capsule;
  size_t k = 0;
  for (const Capsule::Input& in : c.inputs)
    if (in.tensor && in.tensor.version() != kept.versions[k++]) return;  // it was written to
  std::vector<Tensor> all(gradients.begin(), gradients.end());
  c.gradient = dy.detach();
  c.tf32 = Tf32::allowed();
  examine(c, {BadOp::Kind::Backward, c.op, {}}, {&dy, 1}, all);
}

// --- replaying ---

std::vector<Tensor> Capsule::replay(std::optional<DType> dtype) const {
  check(!dtype || is_float(*dtype), "a capsule is replayed in f16, bf16, f32 or f64, not in {}",
        dtype.value_or(f32));
  const Repeat& how = find_repeat(*this);
  const Device device = DefaultDevice::current();
  const bool backward = bool(gradient);
  const Unobserved aside;
  const EnableGrad recording;
  const Tf32 as_recorded(tf32);
  std::vector<Tensor> given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& in = inputs[i];
    Tensor t = in.tensor ? in.tensor.copied_to(device) : Tensor();
    const bool changes = t && dtype && is_float(t.dtype());
    if (changes && how.op.role(i) != Role::Index)
      t = cast(t, converted(t.dtype(), *dtype)).detach();
    if (t && in.requires_grad) {
      if (is_half(t.dtype()) && in.grad_dtype == f32)  // a copy of an f32 tensor
        t = cast(cast(t, f32).detach().set_requires_grad(), t.dtype());
      else
        t = t.detach().set_requires_grad();
    }
    given.push_back(t);
  }
  const bool casts = op == "cast" || op == "cast_to_integer";  // the latter to 8 bits
  if (dtype && casts && !backward) return {cast(given.at(0), *dtype).detach()};
  std::optional<DType> asked = out;
  if (asked && dtype && is_float(*asked)) asked = converted(*asked, *dtype);
  Tensor y;
  {
    Asked policy(asked);
    const ScopedValue<&ThreadState::policy> on(&policy);
    y = how.run(how, given, lists, attributes);
  }
  if (!backward) return {y.detach()};
  check(bool(y.grad_fn()), "{} records nothing to go backward from", op);
  const NoGrad off;
  const ScopedValue<&BackwardState::running> in_backward(true);
  const ScopedValue<&BackwardState::in_rule> in_rule(true);
  Tensor dy = gradient.copied_to(device);
  if (dtype) dy = cast(dy, y.grad_fn()->grad_dtype);
  const Grads gradients = y.grad_fn()->backward(dy);
  return {gradients.begin(), gradients.end()};
}

bool Capsule::reproduces() const { return checksum_of(replay()) == checksum; }

namespace {

struct Replay {
  DType dtype;
  std::string error = {};
  TensorStats stats = {};
};
std::vector<Replay> replay_all(const Capsule& c) {
  std::vector<Replay> all;
  for (const DType dtype : {f16, bf16, f32, f64}) {
    Replay& r = all.emplace_back(Replay{dtype});
    try {
      r.stats = stats_of(c.replay(dtype));
    } catch (const Error& e) {
      r.error = e.what();
      r.error.resize(std::min(r.error.size(), r.error.find('\n')));
    }
  }
  return all;
}
bool is_cured(const Replay& r) { return r.error.empty() && r.stats.is_finite(); }

}  // namespace

std::string Capsule::report() const {
  std::string text = finding + "\n";
  const std::string_view here = kernels::instruction_set();
  if (here != instruction_set)
    text += fmt::format("made with the instructions of {}; these are of {} (MIXTAPE_ISA)\n",
                        instruction_set, here);
  if (const std::string on = DefaultDevice::current().to_string(); on != device)
    text += fmt::format("made on {}; this is {}\n", device, on);
  const bool same = reproduces();
  text += fmt::format("replayed: {}\n", same ? "the same, bit for bit" : "NOT the same bits");
  if (!same && gradient)
    text += "(the roundings of a Recipe are not replayed, if it ran under one)\n";
  std::vector<std::string> cures;
  for (const Replay& r : replay_all(*this)) {
    text += fmt::format("  {:4}  ", name(r.dtype));
    if (!r.error.empty())
      text += r.error + "\n";
    else if (is_cured(r))
      text += fmt::format("finite, absmax {:.3g}\n", r.stats.largest);
    else
      text += fmt::format("{} inf, {} nan\n", int64_t(r.stats.infinities), int64_t(r.stats.nans));
    if (is_cured(r)) cures.emplace_back(name(r.dtype));
  }
  if (cures.empty()) return text + "no precision cures it: look at where its inputs come from\n";
  return text + fmt::format("{} would do\n", fmt::join(cures, ", "));
}

std::string Capsule::test(const std::string& path) const {
  std::string comment = finding;
  for (char& c : comment)
    if (c == '\n' || c == '\r' || c == '\\') c = '/';  // would end or continue the comment
  const std::vector<Replay> all = replay_all(*this);
  const auto cure = std::ranges::find_if(all, is_cured);
  const DType dtype = cure == all.end() ? f32 : cure->dtype;
  return fmt::format(
      "// {}\n"
      "#include <mixtape/amp/capsule.h>\n"
      "int main() {{\n"
      "  using namespace mixtape;\n"
      "  const amp::Capsule capsule = amp::Capsule::load({});\n"
      "  bool finite = true;\n"
      "  for (const Tensor& t : capsule.replay({}))\n"
      "    if (t) finite = finite && all(isfinite(t)).item() != 0;\n"
      "  return finite ? 0 : 1;\n"
      "}}\n",
      comment, io::json_string(path), name(dtype));
}

}  // namespace mixtape::amp
