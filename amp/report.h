#pragma once
// What precision costs: which ops ran in which dtypes while a report was alive, what was cast for
// whom, and what of that was for nothing.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "amp/autocast.h"
#include "core/format.h"
#include "core/no_copy.h"

namespace mixtape::amp {

struct ReportOptions {
  bool time = false;  // of each op; waits for the device before it and after it
  // Those of a model, net.named_parameters(): the report says which of them stayed f32.
  std::vector<std::pair<std::string, Tensor>> parameters = {};
};

// Watches the ops of this thread, forward and backward, while it is alive; any number at once. Open
// it around the Autocast region, so that it sees all casts.
class Report final : NoCopy {
 public:
  [[nodiscard]] explicit Report(ReportOptions options = {});
  ~Report();

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
  struct Watcher;
  const std::unique_ptr<Watcher> watcher_;
};

}  // namespace mixtape::amp

template <>
struct fmt::formatter<mixtape::amp::Report> : mixtape::detail::PlainFormatter {
  auto format(const mixtape::amp::Report& r, format_context& ctx) const {
    return write(r.text(), ctx);
  }
};
