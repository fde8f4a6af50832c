#pragma once
// Report: the dtypes in which ops ran while it was alive, their casts, and those not needed.

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
  [[nodiscard]] explicit Report(ReportOptions options = {});  // begins to watch
  ~Report();

  // Calls of one op in the same dtypes; in backward those of its rule, from the incoming gradient's
  // dtype to the outgoing ones. A rule's own ops belong to it, except casts. Views are not listed.
  struct Row {
    std::string op;
    bool backward;
    std::vector<DType> inputs, outputs;
    std::string by;      // the op that a cast was made for; empty for a cast in the program
    std::string recipe;  // that rounded the operands of a product, forward; empty: none
    int64_t calls = 0, bytes_cast = 0;  // read and written
    double seconds = 0;                 // without nested ops
  };
  // Largest first: by seconds, else by bytes cast, else by calls.
  std::vector<Row> rows() const;

  struct Redundant {  // a cast that was not needed
    bool round_trip;  // from -> to -> from; else from -> to of the same numbers again
    DType from, to;
    std::string by, module;
    int64_t calls = 0, bytes_cast = 0;
  };
  std::vector<Redundant> redundant_casts() const;  // equal casts in one place are one entry
  CastCache::Stats cache() const;                  // of all regions

  struct Narrowing {  // an in-place op with an operand wider than its target: `a += b`
    std::string op, module;
    DType from, to;
    int64_t calls = 0;
  };
  std::vector<Narrowing> narrowing() const;  // equal ops in one place are one entry

  struct StayedF32 {  // an f32 parameter that no product read in 16 bits
    std::string name;
    std::string product;  // the product that read it as f32; empty: no op read it
  };
  std::vector<StayedF32> stayed_f32() const;  // those of ReportOptions::parameters, in their order

  // Products in dtypes of the tensor cores whose rows do not begin at multiples of 16 bytes and are
  // loaded element by element; and depthwise convolutions, which are no products.
  struct Shapes {
    std::string op, module;
    DType dtype;
    std::vector<Shape> operands;
    std::vector<std::pair<int64_t, int64_t>> pad;  // size and padded size; none: it cannot help
    int64_t calls = 0;
  };
  std::vector<Shapes> missed_shapes() const;

  // The precision lock: a line for each precision in which an op of a module ran, forward or in
  // its gradients, as "layer1.conv: conv2d(f16, f16) -> f16" or "fc: linear(bf16, bf16) -> bf16 by
  // mx", in the order of first appearance. Sizes and numbers of calls are not in it. See
  // amp/precision_lock.h.
  std::vector<std::string> precisions() const;
  void lock(const std::string& path) const;  // writes them to a file

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
