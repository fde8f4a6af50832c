#include "amp/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/quantised.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/effects.h"
#include "core/format.h"
#include "core/scope.h"
#include "kernels/common/quantise.h"
#include "kernels/kernels.h"

namespace mixtape::amp {
using namespace internal;
using kernels::Grid;
namespace {

enum Factor { First, Second, Gradient, Factors };

Tensor largest(const Tensor& x) {  // |x|, f32, of x's rank
  Shape one;
  for (int d = 0; d < x.rank(); ++d) one.push_back(1);
  Tensor most(one, f32, x.device());
  kernels::reduce(x.device(), kernels::Reduce::MaxAbs, x, most);
  return most;
}
Tensor scale_of(Grid grid, int margin, const Tensor& most, const Tensor& of_tensor = {}) {
  Tensor scale = most.like(f32);
  kernels::quantise_scale(most.device(), grid, margin, most, of_tensor ? View(of_tensor) : View(),
                          scale);
  return scale;
}
Tensor repeated(const Tensor& t, const Shape& shape) {
  return t.with_layout(internal::expand(t.layout(), shape));
}

// x's last dimension from `start` on as `count` blocks.
Tensor blocks_of(const Tensor& x, int64_t start, int64_t count, int64_t size) {
  Layout l = x.layout();
  const int last = l.rank() - 1;
  const int64_t step = l.strides[last];
  l.offset += start * step;
  l.shape[last] = count;
  l.strides[last] = size * step;
  l.shape.push_back(size);
  l.strides.push_back(step);
  return x.with_layout(l);
}

}  // namespace

// The largest |x| of each factor in the last steps, on the factors' device: f32 [factors, history],
// a ring in which `seen` entries have been filled.
struct Recipe::History {
  Tensor most;
  Tensor past[Factors];   // the largest of the steps before the current one
  Tensor now[Factors];    // the largest of the region so far
  Tensor known[Factors];  // the source of the scale: `past` or, if 0, `now`
  int64_t seen[Factors] = {}, step[Factors] = {}, region[Factors] = {};

  Tensor of_step(int factor) const {  // a view of the last step's number
    return select(select(most, 0, factor), 0, (seen[factor] - 1) % most.size(1));
  }
  void note(int factor, int64_t in_step, const Tensor& largest) {
    const bool begins = std::exchange(step[factor], in_step) != in_step;
    if (begins) past[factor] = max(select(most, 0, factor));
    seen[factor] += begins;
    copy_(of_step(factor), begins ? largest : maximum(of_step(factor), largest));
  }
};

class Recipe::State {
 public:
  std::string_view name;
  Grid operands = Grid::E4M3, gradients = Grid::E5M2;
  int64_t block = 0;  // numbers per scale; 0: the whole tensor
  std::optional<Delayed> delayed = {};
  int64_t step = 1, region = 1;
  bool in_region = false, in_common_step = false;                  // the latter: of Steps
  std::map<std::string, std::shared_ptr<History>> histories = {};  // by module and op

  Tensor rounded(const Tensor& x, int factor, int dim, DType carrier, History* history, bool notes);
  using Largest = std::map<std::string, std::array<float, Factors>>;  // -1: no product ran
  Largest of_step() const;
  void begin_common_step() { step += !std::exchange(in_common_step, true); }
  void note(const Largest& all);

 private:
  void round_blocks(Grid grid, const Tensor& x, const Tensor& y, const Tensor& of_tensor) const;
  Tensor scale_from(History& h, const Tensor& x, int factor, Grid grid, bool notes) const;
};

Tensor Recipe::State::rounded(const Tensor& x, int factor, int dim, DType carrier, History* history,
                              bool notes) {
  const Unobserved alone;
  const Grid grid = factor == Gradient ? gradients : operands;
  const Tensor y = x.like(carrier);
  if (x.numel() == 0) return y;
  if (block > 0) {
    const bool across = dim == -2;
    round_blocks(grid, across ? x.t() : x, across ? y.t() : y,
                 grid == Grid::E2M1 ? largest(x).reshape({}) : Tensor());
  } else {
    const Tensor scale =
        history ? scale_from(*history, x, factor, grid, notes) : scale_of(grid, 0, largest(x));
    kernels::quantise(x.device(), grid, x, repeated(scale.reshape({}), x.shape()), y);
  }
  return y;
}

// Rounds blocks along the last dimension; the last block may be shorter.
void Recipe::State::round_blocks(Grid grid, const Tensor& x, const Tensor& y,
                                 const Tensor& of_tensor) const {
  if (x.rank() == max_rank) {  // blocks add a dimension
    for (int64_t i = 0; i < x.size(0); ++i)
      round_blocks(grid, select(x, 0, i), select(y, 0, i), of_tensor);
    return;
  }
  const int64_t n = x.size(-1), whole = n / block * block;
  const auto round = [&](int64_t start, int64_t count, int64_t size) {
    if (count == 0 || size == 0) return;
    const Tensor from = blocks_of(x, start, count, size);
    const Shape each = with_size(from.shape(), -1, 1);
    const Tensor most(each, f32, x.device());
    kernels::reduce(x.device(), kernels::Reduce::MaxAbs, from, most);
    const Tensor scale = scale_of(grid, 0, most, of_tensor ? repeated(of_tensor, each) : Tensor());
    kernels::quantise(x.device(), grid, from, repeated(scale, from.shape()),
                      blocks_of(y, start, count, size));
  };
  round(0, whole / block, block);
  round(whole, 1, n - whole);
}

// The scale from earlier steps or, if those saw only zeros, from this region so far. Notes x's
// largest number if it is finite. A call that does not note falls back on x's own.
Tensor Recipe::State::scale_from(History& h, const Tensor& x, int factor, Grid grid,
                                 bool notes) const {
  const auto grid_scale = [&](const Tensor& known, const Tensor& otherwise) {
    return scale_of(grid, delayed->margin, where(eq(known, 0), otherwise, known));
  };
  Tensor most = largest(x).reshape({});
  Tensor &known = h.known[factor], &past = h.past[factor], &now = h.now[factor];
  if (h.most)
    check(h.most.device().is_meta() == x.device().is_meta(),
          "the recipe's history is on {}, and a product's operand on {}: make a recipe for each "
          "model, a planned one too",
          h.most.device(), x.device());
  if (!notes) return grid_scale(known ? known.copied_to(x.device()) : most, most);
  check_no_capture("the history of Delayed moves from step to step on the host");
  most = nan_to_num(most, 0, 0.0, 0.0);
  if (!h.most) h.most = zeros({Factors, delayed->history}, f32, x.device());
  h.most = h.most.copied_to(x.device());  // a loaded one may be elsewhere
  h.note(factor, step, most);
  past = past.copied_to(x.device());
  const bool begins = std::exchange(h.region[factor], region) != region;
  now = begins ? most : maximum(now.copied_to(x.device()), most);
  known = where(eq(past, 0), now, past);
  return grid_scale(known, known);
}

// One call of a product.
class Recipe::Product final : public Quantiser, public std::enable_shared_from_this<Product> {
 public:
  Product(std::shared_ptr<State> recipe, std::shared_ptr<History> history, DType carrier)
      : recipe_(std::move(recipe)), history_(std::move(history)), carrier_(carrier) {}

  bool by_blocks() const override { return recipe_->block > 0; }
  Tensor operand(int number, const Tensor& t, int dim) override { return again(number, t, dim); }
  Tensor gradient(const Tensor& dz, int dim) override { return again(Gradient, dz, dim); }
  // The rounded t with t's history, in forward. `kept` are the unrounded operands.
  Tensor rounded(int factor, const Tensor& t, int dim, std::span<const Tensor> kept,
                 bool notes = grad_enabled() && !called_again()) {
    const Tensor y = recipe_->rounded(t, factor, dim, carrier_, history_.get(), notes);
    if (!grad_enabled() || !t.requires_grad()) return y;
    const auto node = std::make_shared<Quantised>(&t, shared_from_this(), kept);
    node->finish(y, true);
    y.set_grad_fn(node);
    return y;
  }

 private:
  Tensor again(int factor, const Tensor& t, int dim) {
    check(!by_blocks() || !grad_enabled(),
          "gradients of products in blocks ({}) can't be differentiated again", recipe_->name);
    return rounded(factor, t, dim, {}, factor == Gradient);
  }

  const std::shared_ptr<State> recipe_;
  const std::shared_ptr<History> history_;
  const DType carrier_;
};

Recipe::Recipe(const Current&) : state_(new State{.name = "current"}) {}
Recipe::Recipe(const Delayed& d) : state_(new State{.name = "delayed", .delayed = d}) {
  check(d.history >= 1 && d.history <= 65536, "history must be from 1 to 65536, got {}", d.history);
  check(d.margin >= 0 && d.margin <= 64, "margin must be from 0 to 64, got {}", d.margin);
}
Recipe::Recipe(const Mx&) : state_(new State{.name = "mx", .gradients = Grid::E4M3, .block = 32}) {}
Recipe::Recipe(const NvFp4&)
    : state_(new State{
          .name = "nvfp4", .operands = Grid::E2M1, .gradients = Grid::E2M1, .block = 16}) {}

std::string_view Recipe::name() const { return state_ ? state_->name : "none"; }

bool Recipe::begin_step() const {
  if (std::exchange(state_->in_region, true)) return false;
  ++state_->region;
  if (!joins_common_step()) ++state_->step;
  return true;
}
void Recipe::end_step() const { state_->in_region = false; }

void Recipe::round_operands(Call& call, DType carrier, bool ends) const {
  const mixtape::Product product = call.op.product;
  if (product == mixtape::Product::None) return;
  const bool convolves = product == mixtape::Product::Convolution;
  if (convolves && state_->block > 0) return;
  size_t at[2];
  Tensor given[2];
  int found = 0;
  for (size_t i = 0; i < call.inputs.size() && found < 2; ++i) {
    const Role role = call.op.role(i);
    if (role != Role::Activation && role != Role::Parameter) continue;
    const Tensor& t = *call.inputs[i];
    if (!is_float(t.dtype()) || t.dtype() == f64) return;  // the op throws if it cannot take it
    if (!ends && t.is_end()) return;
    at[found] = i;
    given[found++] = t;
  }
  if (found < 2) return;  // dtype_of_operand() asks about one operand
  ++effects.reads;        // since all elements of an operand decide how each is rounded
  std::shared_ptr<History> history;
  if (state_->delayed) {
    const std::string path = Scope::path_text(),
                      name = path + (path.empty() ? "" : ".") + std::string(call.op.name);
    const auto known = state_->histories.find(name);
    history = known != state_->histories.end() ? known->second : std::make_shared<History>();
    if (grad_enabled()) state_->histories.emplace(name, history);  // others may evaluate
  }
  const auto one = std::make_shared<Product>(state_, history, carrier);
  for (int k = 0; k < 2; ++k) {
    const int dim = convolves ? 0 : k == 1 && product == mixtape::Product::Matmul ? -2 : -1;
    call.replace(at[k], one->rounded(k, given[k], dim, given));
  }
  call.rounded_by = state_->name;
}

// --- steps of several regions or processes ---

// The recipes with a history, in the order in which they first opened a region under Steps.
struct Recipe::Common {
  int guards = 0;
  std::vector<std::shared_ptr<State>> recipes = {};
};
thread_local Recipe::Common Recipe::common_;

bool Recipe::joins_common_step() const {
  if (common_.guards == 0 || !state_->delayed) return false;
  if (std::ranges::find(common_.recipes, state_) == common_.recipes.end())
    common_.recipes.push_back(state_);
  state_->begin_common_step();
  return true;
}

// The numbers of the last step, in one copy from the device.
Recipe::State::Largest Recipe::State::of_step() const {
  Largest all;
  std::vector<Tensor> numbers;
  std::vector<float*> places;
  for (const auto& [name, h] : histories)
    for (int k = 0; k < Factors; ++k) {
      if (!h->most || h->step[k] != step) continue;
      const Tensor number = h->of_step(k).reshape({1});
      numbers.push_back(numbers.empty() ? number : number.copied_to(numbers[0].device()));
      places.push_back(
          &all.try_emplace(name, std::array{-1.0f, -1.0f, -1.0f}).first->second[size_t(k)]);
    }
  if (numbers.empty()) return all;
  const Tensor host = cat(numbers).copied_to(Device::cpu());
  for (size_t i = 0; i < places.size(); ++i) *places[i] = host.data<float>()[i];
  return all;
}

// Takes the numbers of all regions and processes, and notes those that are new here or larger.
// Evaluation then scales by the largest of the history, as after loading.
void Recipe::State::note(const Largest& all) {
  begin_common_step();
  for (const auto& [name, most] : all) {
    std::shared_ptr<History>& h = histories[name];
    if (!h) h = std::make_shared<History>();
    if (!h->most) h->most = zeros({Factors, delayed->history}, f32);
    for (int k = 0; k < Factors; ++k) {
      if (most[size_t(k)] < 0) continue;
      h->note(k, step, full({}, most[size_t(k)], f32, h->most.device()));
      h->known[k] = max(select(h->most, 0, k));
    }
  }
}

Recipe::Steps::Steps() { ++common_.guards; }
Recipe::Steps::~Steps() {
  for (const auto& recipe : common_.recipes) recipe->in_common_step = false;
  if (--common_.guards == 0) common_.recipes.clear();
}

bool Recipe::Steps::begun() const {
  return std::ranges::any_of(common_.recipes, [](const auto& r) { return r->in_common_step; });
}

// A text has a line for each history: the recipe's number, the bits of the numbers, and the name.
void Recipe::Steps::end(
    const std::function<std::vector<std::string>(const std::string& own)>& gather) {
  const Unobserved alone;
  const auto& recipes = common_.recipes;
  std::string own;
  for (size_t r = 0; r < recipes.size(); ++r) {
    if (!recipes[r]->in_common_step) continue;
    for (const auto& [name, most] : recipes[r]->of_step()) {
      own += fmt::format("{}", r);
      for (const float x : most) own += fmt::format(" {}", std::bit_cast<uint32_t>(x));
      own += ' ' + name + '\n';
    }
  }
  std::map<uint32_t, State::Largest> all;
  for (const std::string& text : gather(own))
    for (const char *at = text.data(), *const end = at + text.size(); at < end;) {
      const auto number = [&] {
        uint32_t x = 0;
        at = std::from_chars(at, end, x).ptr + 1;
        return x;
      };
      const uint32_t recipe = number();
      std::array<float, Factors> most;
      for (float& x : most) x = std::bit_cast<float>(number());
      const char* const line_end = std::find(at, end, '\n');
      const auto known = all[recipe].try_emplace(std::string(at, line_end), most).first;
      for (size_t k = 0; k < Factors; ++k) known->second[k] = std::max(known->second[k], most[k]);
      at = line_end + 1;
    }
  for (const auto& [recipe, largest] : all) {
    check(recipe < recipes.size(),
          "other processes train under a recipe with a history, which has opened no region here");
    recipes[recipe]->note(largest);
  }
  for (const auto& recipe : recipes) recipe->in_common_step = false;
}

// --- the state ---

StateDict Recipe::state_dict() const {
  StateDict all;
  if (!state_) return all;
  for (const auto& [name, h] : state_->histories) {
    if (!h->most) continue;
    Tensor seen({Factors}, i64);
    for (int k = 0; k < Factors; ++k) seen.set(k, double(h->seen[k]));
    all.emplace_back(name + ".amax", h->most);
    all.emplace_back(name + ".steps", seen);
  }
  return all;
}

namespace {

Tensor finite_sizes(const std::string& name, const Tensor& t) {
  const Tensor sizes = t.to(f32);
  check(min(sizes).item() >= 0 && std::isfinite(max(sizes).item()), "{} must be finite and >= 0",
        name);
  return sizes;
}
int64_t whole_number(const std::string& name, double x) {
  check(x >= 0 && x < 0x1p53 && x == std::floor(x), "{} must be whole numbers >= 0, got {}", name,
        x);
  return int64_t(x);
}

}  // namespace

void Recipe::load_state_dict(const StateDict& from) {
  if (!state_ || !state_->delayed) {
    check(from.empty(), "a recipe without a history ({}) has no state", name());
    return;
  }
  const Unobserved alone;
  std::map<std::string, std::shared_ptr<History>> loaded;
  for (const auto& [name, t] : from) {
    const bool is_amax = name.ends_with(".amax");
    check(is_amax || name.ends_with(".steps"), "the state of a recipe has no '{}'", name);
    auto& h = loaded[name.substr(0, name.rfind('.'))];
    if (!h) h = std::make_shared<History>();
    const Shape want = is_amax ? Shape{Factors, state_->delayed->history} : Shape{Factors};
    check(t.shape() == want, "{} must have shape {}, got {}", name, want, t.shape());
    if (is_amax)
      h->most = finite_sizes(name, t).clone();
    else
      for (int k = 0; k < Factors; ++k) h->seen[k] = whole_number(name, t.at(k));
  }
  for (const auto& [name, h] : loaded) {
    for (const char* const part : {".amax", ".steps"})
      check(from.contains(name + part), "the state of a recipe lacks {}{}", name, part);
    for (int k = 0; k < Factors; ++k)
      if (h->seen[k] > 0) h->known[k] = max(select(h->most, 0, k));
  }
  state_->histories = std::move(loaded);
}

}  // namespace mixtape::amp
