#include "tests/support/op_cases.h"

#include <cmath>

#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases;
    for (auto* topic :
         {&elementwise, &views, &indexing, &reductions, &products, &networks, &losses})
      for (OpCase& c : topic()) cases.push_back(std::move(c));
    return cases;
  }();
  return all;
}

std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves) {
  std::vector<Shape> shapes;
  for (const Input& in : c.inputs) shapes.push_back(in.shape);
  return make_inputs(c, dtype, leaves, shapes);
}

std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves,
                                const std::vector<Shape>& shapes) {
  std::vector<Tensor> made;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Input& in = c.inputs[i];
    const Seed seed(100 + i);
    const bool real = in.kind == Input::Real || in.kind == Input::Constant;
    Tensor t(shapes[i], real ? f64 : in.kind == Input::Index ? i64 : boolean);
    for (int64_t k = 0; k < t.numel(); ++k) {
      double v = in.low + (in.high - in.low) * generator().uniform();
      if (std::abs(v) < in.away) v = v < 0 ? v - in.away : v + in.away;
      if (in.kind == Input::Index) v = std::floor(v);
      if (in.kind == Input::Mask) v = v > 0.5;
      t.set(k, v);
    }
    if (real) t = t.to(dtype);
    if (leaves && in.kind == Input::Real) t.set_requires_grad();
    made.push_back(t);
  }
  return made;
}

}  // namespace mixtape::tests
