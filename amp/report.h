#pragma once
// What precision costs: which ops ran in which dtypes while a report was alive, what was cast for
// whom, and what of that was for nothing.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "amp/autocast.h"
#include "core/format.h"
#include "core/op.h"

namespace mixtape::amp {

struct ReportOptions {
  bool time = false;  // of each op; waits for the device before it and after it
  // Those of a model, net.named_parameters(): the report says which of them stayed f32.
  std::vector<std::pair<std::string, Tensor>> parameters = {};
};

// Watches the ops of this thread, forward and backward, while it is alive; any number at once. Open
// it around the Autocast region, so that it sees all casts.
class Report final : Observer {
 public:
  [[nodiscard]] explicit Report(ReportOptions options = {});

  // Calls of one op in the same dtypes. In backward, of an op's rule: from the dtype of the
  // gradient it is given to those of the gradients it makes. The ops that a rule is made of are
  // part of it, but for casts. Views are free and not listed.
  struct Row {
    std::string op;
    bool backward;
    std::vector<DType> inputs, outputs;
    std::string by;  // of a cast: the op that it was made for; empty if the program asked for it
    int64_t calls = 0, bytes_cast = 0;  // read and written
    double seconds = 0;                 // without the ops within
  };
  // Largest first: by seconds, else by bytes cast, else by calls.
  std::vector<Row> rows() const;

  // Casts that brought nothing new.
  struct Redundant {
    bool round_trip;  // from -> to -> from, else from -> to once more of the same numbers
    DType from, to;
    std::string by, module;
    int64_t calls = 0, bytes_cast = 0;
  };
  std::vector<Redundant> redundant_casts() const;
  CastCache::Stats cache() const;  // of Autocast

  // In-place ops whose operand was wider than what they write to: `a += b`.
  struct Narrowing {
    std::string op, module;
    DType from, to;
    int64_t calls = 0;
  };
  std::vector<Narrowing> narrowing() const;

  // f32 parameters that no product read narrow, and why.
  struct StayedF32 {
    std::string name;
    std::string product;  // that read it as f32; empty: no op did anything with it
  };
  std::vector<StayedF32> stayed_f32() const;

  // Products in dtypes of the tensor cores whose matrices have rows that do not begin at multiples
  // of 16 bytes: those are moved element by element. (Products of any shape run on tensor cores,
  // and a convolution lays its operands out anew.) A depthwise convolution is no product at all.
  struct Shapes {
    std::string op, module;
    DType dtype;
    std::vector<Shape> operands;
    std::vector<std::pair<int64_t, int64_t>> pad;  // sizes, and what to pad them to; none will help
    int64_t calls = 0;
  };
  std::vector<Shapes> missed_shapes() const;

  std::string text() const;  // tables for people
  std::string json() const;  // the same for programs, as one object

 private:
  using Clock = std::chrono::steady_clock;
  struct Frame {  // an op that is running
    const Scope* scope;
    Clock::time_point begin;
    double within;  // seconds of the ops in it
  };
  struct Use {  // of a parameter
    bool narrow = false, any = false;
    std::string product;
  };
  void before(const Call& call) override;
  void after(const Call& call, const Tensor& result) override;
  void before_rule(const Node& node, const Tensor& dy) override;
  void after_rule(const Node& node, const Tensor& dy, std::span<const Tensor> gradients) override;
  void begin(Device device);
  double end(Device device, bool counted);
  Row& row(std::string_view op, bool backward, std::vector<DType> inputs,
           std::vector<DType> outputs, std::string_view by);
  void see_cast(const Tensor& x, const Tensor& y, Row& row);
  void see_parameters(const Call& call, const Tensor& result);
  void see_shapes(const Call& call, const Tensor& result);

  template <class Value, class... Key>
  using Table = std::map<std::tuple<Key...>, Value>;

  const ReportOptions options_;
  const CastCache::Stats cache_before_ = CastCache::of_thread;
  Table<Row, std::string, bool, std::vector<DType>, std::vector<DType>, std::string> rows_;
  Table<Redundant, bool, DType, DType, std::string, std::string> redundant_;
  Table<Narrowing, std::string, std::string, DType, DType> narrowing_;
  Table<Shapes, std::string, std::string, DType, std::string> shapes_;
  // Of a storage's numbers, as of one version: what they were before a cast wrote them, and which
  // of them (offset, count) were cast to what.
  struct Casts {
    std::weak_ptr<const Storage> storage;
    uint64_t version;
    std::optional<DType> from = {};
    std::set<std::tuple<int64_t, int64_t, DType>> to = {};
  };
  std::unordered_map<uint64_t, Casts> casts_;  // of storages that lived when last looked through
  size_t sweep_at_ = 64;
  std::unordered_map<uint64_t, Use> uses_;  // of parameters, by their storage
  std::vector<Frame> frames_;
  const Observe watching_{*this};
};

}  // namespace mixtape::amp

template <>
struct fmt::formatter<mixtape::amp::Report> : mixtape::detail::PlainFormatter {
  auto format(const mixtape::amp::Report& r, format_context& ctx) const {
    return write(r.text(), ctx);
  }
};
