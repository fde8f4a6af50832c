// Observed ops are counted in tables by kind; parts of the report are derived from these on
// request.
#include "amp/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "autograd/backward_state.h"
#include "autograd/tape.h"
#include "core/dispatch.h"
#include "core/int_math.h"
#include "core/scope.h"
#include "core/stream.h"
#include "core/tf32.h"
#include "io/text.h"

namespace mixtape::amp {
using namespace internal;
namespace {

std::string_view module_name(const std::string* path) {
  if (!path) return "(no module)";
  return path->empty() ? "(root)" : std::string_view(*path);
}

Device device_of(const Call& call) {
  for (const Tensor* t : call.inputs)
    if (*t) return t->device();
  return Device::cpu();
}

bool is_narrower(DType a, DType b) { return is_float(a) && is_float(b) && size_of(a) < size_of(b); }

// True if y is a view of x, which costs nothing.
bool sees(const Tensor& y, const Tensor& x) { return x && y.storage() == x.storage(); }
bool is_view(const Call& call, const Tensor& y) {
  if (call.result && sees(y, *call.result)) return false;  // it was written there
  return std::ranges::any_of(call.inputs, [&](const Tensor* t) { return sees(y, *t); });
}

template <class Table>
auto listed(const Table& table) {
  std::vector<typename Table::mapped_type> all;
  for (const auto& [key, value] : table) all.push_back(value);
  return all;
}

}  // namespace

struct Report::Watcher final : Observer {
  using Clock = std::chrono::steady_clock;
  struct Frame {  // an op or a rule that is running
    const Scope* scope;
    uint64_t version;  // of a rule's gradient
    Clock::time_point begin = {};
    double within = 0;  // seconds of nested ops
  };
  struct Use {  // of a parameter
    bool as_half = false, any = false;
    std::string product;
  };
  // One version of a storage: the dtype from which it was cast, its casts as (offset, count,
  // dtype).
  struct Casts {
    std::weak_ptr<const Storage> storage;
    uint64_t version;
    std::optional<DType> from = {};
    std::set<std::tuple<int64_t, int64_t, DType>> to = {};
  };
  template <class Value, class... Key>
  using Table = std::map<std::tuple<Key...>, Value>;

  explicit Watcher(ReportOptions o) : options(std::move(o)) {
    for (const auto& [name, t] : options.parameters)
      if (t.dtype() == f32) uses[t.storage()->id()];
  }
  void before(const Call& call) override { begin(device_of(call)); }
  void after(const Call& call, const Tensor& result) override;
  void before_rule(const Node&, const Tensor& dy) override { begin(dy.device(), dy.version()); }
  void after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> gradients) override;
  bool reads_values() const override { return false; }

  const ReportOptions options;
  const CastCache::Stats cache_before = CastCache::of_thread;
  Table<Row, std::string, bool, std::vector<DType>, std::vector<DType>, std::string, std::string>
      rows;
  Table<Redundant, bool, DType, DType, std::string, std::string> redundant;
  Table<Narrowing, std::string, std::string, DType, DType> narrowing;
  Table<Shapes, std::string, std::string, DType, std::string> shapes;
  std::unordered_map<uint64_t, Use> uses;  // of parameters, by storage
  std::vector<std::string> precisions;     // see Report::precisions()

 private:
  void begin(Device device, uint64_t version = 0);
  std::optional<Frame> end(Device device);
  double seconds(const std::optional<Frame>& ended, bool counted);
  Row& row(std::string_view op, const std::string* module, bool backward, std::vector<DType> inputs,
           std::vector<DType> outputs, std::string_view by, std::string_view recipe = {});
  void see_cast(const Tensor& x, const Tensor& y, Row& row);
  void see_parameters(const Call& call, const Tensor& result);
  void see_shapes(const Call& call, const Tensor& result);

  std::unordered_map<uint64_t, Casts> casts_;  // by storage
  size_t sweep_at_ = 64;
  std::set<std::string> listed_;  // of precisions
  std::vector<Frame> frames_;
  const Observe watching_{*this};
};

void Report::Watcher::begin(Device device, uint64_t version) {
  const auto is_open = [](const Scope* scope) {
    const Scope* s = Scope::innermost();
    while (s && s != scope) s = s->outer;
    return s != nullptr;
  };
  while (!frames_.empty() && !is_open(frames_.back().scope)) frames_.pop_back();  // ops that threw
  frames_.push_back({Scope::innermost(), version});
  if (!options.time) return;
  synchronize(device);
  frames_.back().begin = Clock::now();
}

// Ends the innermost frame; there is none if it began before the report.
std::optional<Report::Watcher::Frame> Report::Watcher::end(Device device) {
  if (options.time) synchronize(device);
  while (!frames_.empty() && frames_.back().scope != Scope::innermost()) frames_.pop_back();
  if (frames_.empty()) return {};
  const Frame ended = frames_.back();
  frames_.pop_back();
  return ended;
}

// The seconds of a frame that ended now, without those of nested ops that were counted.
double Report::Watcher::seconds(const std::optional<Frame>& ended, bool counted) {
  if (!options.time || !ended) return 0;
  const double all = std::chrono::duration<double>(Clock::now() - ended->begin).count();
  if (!frames_.empty()) frames_.back().within += counted ? all : ended->within;
  return all - ended->within;
}

Report::Row& Report::Watcher::row(std::string_view op, const std::string* module, bool backward,
                                  std::vector<DType> inputs, std::vector<DType> outputs,
                                  std::string_view by, std::string_view recipe) {
  std::string line =
      fmt::format("{}: {}{}{}{}({}) -> {}{}{}", module_name(module), op, by.empty() ? "" : " for ",
                  by, backward && by != "backward" ? " backward" : "", fmt::join(inputs, ", "),
                  fmt::join(outputs, ", "), recipe.empty() ? "" : " by ", recipe);
  if (listed_.insert(line).second) precisions.push_back(std::move(line));
  Row& r = rows[{std::string(op), backward, inputs, outputs, std::string(by), std::string(recipe)}];
  if (r.calls++ == 0)
    r = {std::string(op),     backward, std::move(inputs), std::move(outputs), std::string(by),
         std::string(recipe), 1};
  return r;
}

void Report::Watcher::after(const Call& call, const Tensor& result) {
  const bool is_cast = call.op.name == "cast",
             counted = is_cast || !(backward_state.in_rule || is_view(call, result));
  const double seconds = this->seconds(end(device_of(call)), counted);
  see_parameters(call, result);
  if (!counted) return;
  std::vector<DType> dtypes;
  for (const Tensor* t : call.inputs)
    if (*t) dtypes.push_back(t->dtype());
  Row& r = row(call.op.name, Scope::module_path(), call.backward, std::move(dtypes),
               {result.dtype()}, is_cast ? Scope::caller() : "", call.rounded_by);
  r.seconds += seconds;
  if (is_cast) see_cast(*call.inputs[0], result, r);
  if (!call.backward) see_shapes(call, result);
}

void Report::Watcher::after_rule(const Node& node, const Tensor& dy,
                                 std::span<const Tensor> gradients) {
  const std::optional<Frame> ended = end(dy.device());
  const double seconds = this->seconds(ended, true);
  const bool overwrites = ended && ended->version != dy.version();
  std::vector<DType> made;
  for (const Tensor& g : gradients)
    if (g && (overwrites || !sees(g, dy))) made.push_back(g.dtype());
  if (!made.empty())
    row(node.name(), node.module, true, {dy.dtype()}, std::move(made), "").seconds += seconds;
}

void Report::Watcher::see_cast(const Tensor& x, const Tensor& y, Row& row) {
  const int64_t moved = int64_t(x.nbytes() + y.nbytes());
  row.bytes_cast += moved;
  if (casts_.size() >= sweep_at_) {
    std::erase_if(casts_, [](const auto& entry) { return entry.second.storage.expired(); });
    sweep_at_ = 64 + 2 * casts_.size();
  }
  Casts& casts = casts_[x.storage()->id()];
  if (casts.storage.expired() || casts.version != x.version()) casts = {x.storage(), x.version()};
  const bool round_trip = casts.from == y.dtype();
  const bool again = !casts.to.emplace(x.offset(), x.numel(), y.dtype()).second;
  if (round_trip || again) {
    const DType from = round_trip ? y.dtype() : x.dtype(), to = round_trip ? x.dtype() : y.dtype();
    Redundant& r = redundant[{round_trip, from, to, row.by, Scope::path_text()}];
    r = {round_trip, from, to, row.by, Scope::path_text(), r.calls + 1, r.bytes_cast + moved};
  }
  casts_[y.storage()->id()] = {y.storage(), y.version(), x.dtype()};
  if (row.by.ends_with('_') && is_narrower(y.dtype(), x.dtype())) {
    Narrowing& n = narrowing[{row.by, Scope::path_text(), x.dtype(), y.dtype()}];
    n = {row.by, Scope::path_text(), x.dtype(), y.dtype(), n.calls + 1};
  }
}

void Report::Watcher::see_parameters(const Call& call, const Tensor& result) {
  for (size_t i = 0; !uses.empty() && i < call.inputs.size(); ++i) {
    const Tensor& t = call.given(i);
    const auto known = t ? uses.find(t.storage()->id()) : uses.end();
    if (known == uses.end()) continue;
    Use& use = known->second;
    use.any = true;
    use.as_half = use.as_half || is_half(call.inputs[i]->dtype()) ||  // a cached copy
                  (call.op.name == "cast" && is_half(result.dtype()));
    if (use.product.empty() && call.op.precision == Precision::Low &&
        call.op.role(i) != Role::Statistic)
      use.product = call.op.name;
  }
}

// (The fast path of kernels/cuda/gemm/gemm.cu needs rows or columns that begin at 16-byte
// multiples.)
void Report::Watcher::see_shapes(const Call& call, const Tensor& result) {
  const std::string_view op = call.op.name;
  const bool product = call.op.product == Product::Linear || call.op.product == Product::Matmul;
  if (!product && op != "conv2d") return;
  Shapes seen{std::string(op), Scope::path_text(), f32, {}, {}};
  const auto look = [&](const Tensor& t) {
    const int64_t down = t.strides()[-2], right = t.strides()[-1],
                  ld = right == 1  ? down
                       : down == 1 ? right
                                   : t.size(-1),  // it is copied
        chunk = 16 / int64_t(size_of(t.dtype()));
    const std::pair pad{ld, round_up(ld, chunk)};
    if (pad.first != pad.second && std::ranges::find(seen.pad, pad) == seen.pad.end())
      seen.pad.push_back(pad);
  };
  std::string sizes;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Tensor& t = *call.inputs[i];
    if (!t || call.op.role(i) == Role::Statistic) continue;
    seen.dtype = t.dtype();
    seen.operands.push_back(t.shape());
    sizes += t.shape().to_string();
    if (product) look(t);
  }
  if (!is_half(seen.dtype) && !(seen.dtype == f32 && Tf32::allowed())) return;
  if (product) look(result);
  const bool depthwise = !product && seen.operands[1][1] == 1 && seen.operands[0][1] > 1;
  if (seen.pad.empty() && !depthwise) return;
  Shapes& s = shapes[{seen.op, seen.module, seen.dtype, sizes}];
  seen.calls = s.calls + 1;
  s = std::move(seen);
}

Report::Report(ReportOptions options) : watcher_(std::make_unique<Watcher>(std::move(options))) {}
Report::~Report() = default;

std::vector<Report::Row> Report::rows() const {
  std::vector<Row> all = listed(watcher_->rows);
  std::ranges::stable_sort(all, std::greater(), [](const Row& r) {
    return std::tuple(r.seconds, r.bytes_cast, r.calls);
  });
  return all;
}
std::vector<std::string> Report::precisions() const { return watcher_->precisions; }
std::vector<Report::Redundant> Report::redundant_casts() const {
  return listed(watcher_->redundant);
}
std::vector<Report::Narrowing> Report::narrowing() const { return listed(watcher_->narrowing); }
std::vector<Report::Shapes> Report::missed_shapes() const { return listed(watcher_->shapes); }
CastCache::Stats Report::cache() const {
  const CastCache::Stats now = CastCache::of_thread;
  return {now.casts - watcher_->cache_before.casts, now.hits - watcher_->cache_before.hits};
}
std::vector<Report::StayedF32> Report::stayed_f32() const {
  std::vector<StayedF32> all;
  for (const auto& [name, t] : watcher_->options.parameters) {
    const auto use = watcher_->uses.find(t.storage()->id());
    if (use == watcher_->uses.end() || use->second.as_half) continue;
    if (!use->second.any || !use->second.product.empty())
      all.push_back({name, use->second.product});
  }
  return all;
}

namespace {

std::string times(int64_t n) { return n == 1 ? "once" : fmt::format("{} times", n); }
std::string place(const std::string& by, const std::string& module) {
  return (by.empty() ? "" : ", for " + by) + (module.empty() ? "" : ", in " + module);
}

}  // namespace

std::string Report::text() const {
  if (watcher_->rows.empty()) return "no op ran\n";
  std::vector<std::vector<std::string>> table{{"op", "pass", "dtypes", "calls", "bytes cast"}};
  std::vector<bool> number{false, false, false, true, true};
  if (watcher_->options.time) {
    table[0].push_back("ms");
    number.push_back(true);
  }
  for (const Row& r : rows()) {
    auto& line = table.emplace_back(std::vector<std::string>{
        r.by.empty() ? r.op : fmt::format("{} for {}", r.op, r.by),
        r.backward ? "backward" : "forward",
        fmt::format("{} -> {}{}{}", fmt::join(r.inputs, ", "), fmt::join(r.outputs, ", "),
                    r.recipe.empty() ? "" : " by ", r.recipe),
        fmt::format("{}", r.calls), r.bytes_cast ? io::bytes_text(r.bytes_cast) : ""});
    if (watcher_->options.time) line.push_back(fmt::format("{:.3f}", r.seconds * 1e3));
  }
  std::string text = io::columns(table, number);
  if (const CastCache::Stats c = cache(); c.casts + c.hits > 0)
    text += fmt::format("cast cache: {} made, {} used again\n", c.casts, c.hits);
  const auto section = [&](const char* title, const auto& items, const auto& describe) {
    if (!items.empty()) text += fmt::format("{}:\n", title);
    for (const auto& item : items) text += fmt::format("  {}\n", describe(item));
  };
  section("redundant casts", redundant_casts(), [](const Redundant& r) {
    const std::string what = r.round_trip ? fmt::format("{} -> {} -> {}", r.from, r.to, r.from)
                                          : fmt::format("{} -> {} again", r.from, r.to);
    return fmt::format("{}: {}, {}{}", what, times(r.calls), io::bytes_text(r.bytes_cast),
                       place(r.by, r.module));
  });
  section("in-place ops that narrow", narrowing(), [](const Narrowing& n) {
    return fmt::format("{} of {} to {}: {}{}", n.op, n.from, n.to, times(n.calls),
                       place("", n.module));
  });
  section("parameters that stayed f32", stayed_f32(), [](const StayedF32& p) {
    return fmt::format("{}: {}", p.name,
                       p.product.empty() ? "no op read it" : p.product + " read it as f32");
  });
  section("shapes that miss the tensor cores' fast path", missed_shapes(), [](const Shapes& s) {
    std::string pad;
    for (const auto& [from, to] : s.pad)
      pad += fmt::format("{}{} to {}", pad.empty() ? "pad " : ", ", from, to);
    return fmt::format("{} of {} {}: {}{}: {}", s.op, s.dtype, fmt::join(s.operands, " x "),
                       times(s.calls), place("", s.module),
                       pad.empty() ? "depthwise, so no product" : pad);
  });
  return text;
}

std::string Report::json() const {
  using Json = nlohmann::ordered_json;
  const auto array = [](const auto& items, const auto& describe) {
    Json all = Json::array();
    for (const auto& item : items) all.push_back(describe(item));
    return all;
  };
  const auto named = [&](const auto& dtypes) {
    return array(dtypes, [](DType t) { return name(t); });
  };
  Json j;
  j["rows"] = array(rows(), [&](const Row& r) {
    Json row{{"op", r.op},
             {"pass", r.backward ? "backward" : "forward"},
             {"inputs", named(r.inputs)},
             {"outputs", named(r.outputs)},
             {"for", r.by},
             {"recipe", r.recipe},
             {"calls", r.calls},
             {"bytes_cast", r.bytes_cast}};
    if (watcher_->options.time) row["seconds"] = r.seconds;
    return row;
  });
  j["cast_cache"] = {{"casts", cache().casts}, {"hits", cache().hits}};
  j["redundant_casts"] = array(redundant_casts(), [](const Redundant& r) {
    return Json{{"round_trip", r.round_trip}, {"from", name(r.from)},
                {"to", name(r.to)},           {"for", r.by},
                {"module", r.module},         {"calls", r.calls},
                {"bytes_cast", r.bytes_cast}};
  });
  j["narrowing_in_place"] = array(narrowing(), [](const Narrowing& n) {
    return Json{{"op", n.op},
                {"module", n.module},
                {"from", name(n.from)},
                {"to", name(n.to)},
                {"calls", n.calls}};
  });
  j["stayed_f32"] = array(stayed_f32(), [](const StayedF32& p) {
    return Json{{"name", p.name}, {"product", p.product}};
  });
  j["missed_shapes"] = array(missed_shapes(), [](const Shapes& s) {
    Json operands = Json::array(), pad = Json::array();
    for (const Shape& shape : s.operands)
      operands.push_back(std::vector<int64_t>(shape.begin(), shape.end()));
    for (const auto& [from, to] : s.pad) pad.push_back({{"from", from}, {"to", to}});
    return Json{{"op", s.op},           {"module", s.module}, {"dtype", name(s.dtype)},
                {"operands", operands}, {"pad", pad},         {"calls", s.calls}};
  });
  return j.dump(2);
}

}  // namespace mixtape::amp
