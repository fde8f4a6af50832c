#pragma once
// Report: the cost of precision. The dtypes in which ops ran while it was alive, the casts made for
// them, and the casts that were redundant.

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
  bool time = false;  // time each op: waits for the device before and after it
  // A model's net.named_parameters(): the report lists those that stayed f32.
  std::vector<std::pair<std::string, Tensor>> parameters = {};
};

// Watches the ops of this thread, forward and backward, while it is alive; reports may nest. Open
// it around the Autocast region to include all casts.
class Report final : NoCopy {
 public:
  [[nodiscard]] explicit Report(ReportOptions options = {});
  ~Report();

  // Calls of one op in the same dtypes. In backward, calls of an op's rule: from the dtype of the
  // incoming gradient to those of the outgoing ones. The ops of a rule are part of it, except for
  // casts. Views are free and not listed.
  struct Row {
    std::string op;
    bool backward;
    std::vector<DType> inputs, outputs;
    std::string by;  // the op that a cast was made for; empty for a cast in the program
    int64_t calls = 0, bytes_cast = 0;  // read and written
    double seconds = 0;                 // without nested ops
  };
  // Largest first: by seconds, else by bytes cast, else by calls.
  std::vector<Row> rows() const;

  // Casts that were not necessary.
  struct Redundant {
    bool round_trip;  // from -> to -> from; else from -> to of the same numbers again
    DType from, to;
    std::string by, module;
    int64_t calls = 0, bytes_cast = 0;
  };
  std::vector<Redundant> redundant_casts() const;
  CastCache::Stats cache() const;  // of all regions

  // In-place ops with an operand wider than their target: `a += b`.
  struct Narrowing {
    std::string op, module;
    DType from, to;
    int64_t calls = 0;
  };
  std::vector<Narrowing> narrowing() const;

  // f32 parameters that no product read in 16 bits, and why.
  struct StayedF32 {
    std::string name;
    std::string product;  // the product that read it as f32; empty: no op read it
  };
  std::vector<StayedF32> stayed_f32() const;

  // Products in dtypes of the tensor cores with matrices whose rows do not begin at multiples of 16
  // bytes: those are loaded element by element. (Products of any shape run on tensor cores, and a
  // convolution packs its operands.) A depthwise convolution is not a product.
  struct Shapes {
    std::string op, module;
    DType dtype;
    std::vector<Shape> operands;
    std::vector<std::pair<int64_t, int64_t>>
        pad;  // sizes and padded sizes; none: padding does not help
    int64_t calls = 0;
  };
  std::vector<Shapes> missed_shapes() const;

  std::string text() const;  // tables to read
  std::string json() const;  // the same as one JSON object

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
