#pragma once
// GraphBuilder and OpCall: the tools of a translation of an op to ONNX. A translation is a row of a
// table, by the name of the op.

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dispatch.h"
#include "io/onnx.h"

namespace mixtape::train {
namespace [[gnu::visibility("hidden")]] onnx {

using Name = std::string;  // of a value in the graph; "": absent
using Sizes = std::vector<int64_t>;
using Attributes = std::vector<std::pair<std::string, io::OnnxAttribute>>;

// A value before it was reshaped or broadcast, for ops that can read it instead.
struct Origin {
  Name name;
  Shape shape;
};

// Builds a graph node by node. The names of values depend only on the order of calls, so that
// graphs of two traces can be compared.
class GraphBuilder {
 public:
  explicit GraphBuilder(int opset) { graph.opset = opset; }
  int opset() const { return graph.opset; }

  // Adds a node with one result, by default in the dtype of its first input. An op that supports
  // bf16 only in a later opset runs in f32.
  Name node(const std::string& op, std::vector<Name> inputs, Attributes attributes = {},
            std::optional<DType> dtype = {});
  std::vector<Name> nodes(const std::string& op, std::vector<Name> inputs, size_t results,
                          Attributes attributes = {});
  Name cast(const Name& x, DType to);  // x itself if it has that dtype
  Name reshape(const Name& x, const Shape& from, const Shape& to);
  Name expand(const Name& x, const Shape& from, const Shape& to);
  Name transpose(const Name& x, const Sizes& order);
  // x[start:stop:step] along one dimension.
  Name slice(const Name& x, int64_t dim, int64_t start, int64_t stop, int64_t step = 1);

  Name initializer(const Name& name, const Tensor& t);
  Name constant(const Tensor& t);
  Name number(double value, DType dtype);  // 0-d
  // Whole numbers [n], such as shapes and positions, some of which may depend on the batch size.
  Name numbers(const Sizes& values);
  Name position(int64_t value);  // one such number, 0-d

  DType dtype(const Name& x) const { return dtypes_.at(x); }
  void set_dtype(const Name& x, DType dtype) { dtypes_[x] = dtype; }
  Origin before_reshape(const Name& x, const Shape& shape) const;
  Origin before_expand(const Name& x, const Shape& shape) const;
  const io::OnnxNode* made_by(const Name& x) const;  // null: an input or initializer

  io::OnnxGraph graph;
  std::string path;             // of the module that runs
  std::set<Name> taken;         // by weights, inputs and outputs
  std::set<Name> number_lists;  // made by numbers() and position()

 private:
  Name fresh(const std::string& what);

  std::map<Name, DType> dtypes_;
  std::map<Name, size_t> makers_;
  std::map<std::pair<Name, DType>, Name> casts_;
  std::map<Name, Origin> reshaped_, expanded_;
  int count_ = 0;
};

// The part of the tracer that translations use.
class Names {
 public:
  virtual ~Names() = default;
  virtual Name name_of(const Tensor& t, const Tensor& given) = 0;
  virtual bool has(const Tensor& t) const = 0;               // false: a view that no op made
  virtual void bind(const Tensor& t, const Name& name) = 0;  // a result of an op
};

// A completed call of an op, for its translation. Inputs count from 0.
class OpCall {
 public:
  OpCall(GraphBuilder& graph, Names& values, const char* counterpart, const internal::Call& call,
         const Tensor& result)
      : g(graph), names(values), to(counterpart), call_(call), result_(result) {}

  size_t inputs() const { return call_.inputs.size(); }
  bool has(size_t i) const { return i < inputs() && *call_.inputs[i]; }
  const Tensor& tensor(size_t i) const { return *call_.inputs[i]; }
  const Shape& shape(size_t i) const { return tensor(i).shape(); }
  const Tensor& result() const { return result_; }
  DType dtype() const { return result_.dtype(); }  // of the result
  std::string_view op() const { return call_.op.name; }
  template <class A>
  const A& argument(int nth = 0) const {
    return call_.repetition->argument<A>(nth);
  }

  Name in(size_t i) const;  // "" if it is absent
  Name in(size_t i, DType dtype) const { return has(i) ? g.cast(in(i), dtype) : Name(); }
  // The inputs for an op that broadcasts in ONNX: without the expansions that made shapes equal, if
  // the op's result then still has this result's shape.
  std::vector<Name> broadcast_inputs(std::optional<DType> dtype = {}) const;
  Name broadcast_input(size_t i) const { return g.before_expand(in(i), shape(i)).name; }

  GraphBuilder& g;
  Names& names;
  const char* const to;  // of the table's row

 private:
  const internal::Call& call_;
  const Tensor& result_;
};

Name gelu(GraphBuilder& g, const Name& x, bool tanh);  // a single node from opset 20 on

// Adds the nodes of one call, and returns the name of its result, which is then cast to its dtype.
using Translation = Name (*)(const OpCall&);
struct TranslationRow {
  std::string_view op;
  Translation translate;
  const char* to = "";  // ONNX's op, for translations that several ops share
};

std::span<const TranslationRow> elementwise_rows();
std::span<const TranslationRow> view_rows();
std::span<const TranslationRow> product_rows();
std::span<const TranslationRow> image_rows();
std::span<const TranslationRow> reduction_rows();
std::span<const TranslationRow> norm_rows();  // with softmax
std::span<const TranslationRow> recurrent_rows();

}  // namespace onnx
}  // namespace mixtape::train
