#pragma once
// Report: the dtypes in which ops ran while it was alive, their casts, and which casts were not
// needed.

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
  bool time = false;  // time each op, which waits for the device before and after it
  // A model's net.named_parameters(), of which the report lists those that stayed f32.
  std::vector<std::pair<std::string, Tensor>> parameters = {};
};

// A guard that watches the ops of this thread, forward and backward; reports may be nested. Open it
// around the Autocast region to include all casts.
class Report final : NoCopy {
 public:
  [[nodiscard]] explicit Report(ReportOptions options = {});  // begins to watch
  ~Report();

  // The calls of an op in the same dtypes; in backward those of its rule, from the incoming
  // gradient's dtype to the outgoing ones. Ops inside a rule count as part of it, except casts.
  // Views are not listed.
  struct Row {
    std::string op;
    bool backward;
    std::vector<DType> inputs, outputs;
    std::string by;      // the op for which a cast was made; empty for a cast in the program
    std::string recipe;  // the recipe that rounded a product's operands, forward; empty: none
    int64_t calls = 0, bytes_cast = 0;  // read and written
    double seconds = 0;                 // without nested ops
  };
  // Largest first: by seconds, then by bytes cast, then by calls.
  std::vector<Row> rows() const;

  struct Redundant {  // a cast that was not needed
    bool round_trip;  // from -> to -> from; false: from -> to of the same numbers again
    DType from, to;
    std::string by, module;
    int64_t calls = 0, bytes_cast = 0;
  };
  std::vector<Redundant> redundant_casts() const;  // one entry for equal casts in one place
  CastCache::Stats cache() const;                  // of all regions

  struct Narrowing {  // an in-place op with an operand wider than its target: `a += b`
    std::string op, module;
    DType from, to;
    int64_t calls = 0;
  };
  std::vector<Narrowing> narrowing() const;  // one entry for equal ops in one place

  struct StayedF32 {  // an f32 parameter that no product read in 16 bits
    std::string name;
    std::string product;  // the product that read it as f32; empty if no op read it
  };
  std::vector<StayedF32> stayed_f32() const;  // in the order of ReportOptions::parameters

  // Products in the dtypes of tensor cores that load element by element, since their rows do not
  // begin at multiples of 16 bytes; and depthwise convolutions, which do not run as products.
  struct Shapes {
    std::string op, module;
    DType dtype;
    std::vector<Shape> operands;
    std::vector<std::pair<int64_t, int64_t>> pad;  // sizes and padded ones, where it helps
    int64_t calls = 0;
  };
  std::vector<Shapes> missed_shapes() const;

  // The precision lock: a line for each precision in which an op of a module ran, forward or in its
  // gradients, such as "layer1.conv: conv2d(f16, f16) -> f16" or "fc: linear(bf16, bf16) -> bf16 by
  // mx", in order of first appearance. It has no sizes and no numbers of calls. See
  // amp/precision_lock.h.
  std::vector<std::string> precisions() const;
  void lock(const std::string& path) const;  // writes precisions() to a file

  std::string text() const;  // the report as tables
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
