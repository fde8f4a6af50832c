#include "tests/support/op_cases.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdlib>

#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases;
    for (auto* topic :
         {&elementwise, &views, &indexing, &reductions, &products, &linalg, &networks, &losses})
      for (OpCase& c : topic()) cases.push_back(std::move(c));
    if (!Device::best().is_host())
      cases.push_back(
          {.op = "to_device",
           .inputs = {{{3, 4}}},
           .run =
               [](const std::vector<Tensor>& x) {
                 const Device here = x[0].device();
                 return x[0].to(here.is_host() ? Device::best() : Device::cpu()).to(here);
               },
           .empty = {{0, 2}}});
    return cases;
  }();
  return all;
}

std::vector<OpCase> device_cases() {
  std::vector<OpCase> cases = op_cases();
  std::erase_if(cases, [](const OpCase& c) { return c.cpu_only; });
  return cases;
}
std::vector<OpCase> cases_here() {
  return std::getenv("MIXTAPE_TEST_DEVICE") ? device_cases() : op_cases();
}

const std::vector<OpCase>& edge_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> cases = edges();
    for (auto more : {composed, extremes})
      for (OpCase& c : more()) cases.push_back(std::move(c));
    return cases;
  }();
  return all;
}

std::vector<Shape> shapes(const OpCase& c) {
  std::vector<Shape> all;
  for (const Input& in : c.inputs) all.push_back(in.shape);
  return all;
}

std::vector<Shape> reduced_shapes(const OpCase& c) {
  std::vector<Shape> reduced = shapes(c);
  for (size_t i = 0; i < reduced.size(); ++i) {
    const int dim = i < c.repeat.size() ? c.repeat[i] : c.inputs[i].kind == Input::Index ? -1 : 0;
    if (0 <= dim && dim < reduced[i].rank) reduced[i][dim] = 1;
  }
  return reduced;
}

Tensor output_gradient(const Tensor& y) {
  const Seed seed(99);
  return uniform(y.shape(), -1, 1, f32).to(y.dtype());
}

std::string checksum(const std::vector<Tensor>& inputs) {
  uint64_t sum = 0;
  const auto add = [&](uint64_t v) { sum = (std::rotl(sum, 5) ^ v) * 0x9E3779B97F4A7C15u; };
  for (const Tensor& t : inputs) {
    add(static_cast<uint64_t>(t.dtype()));
    add(static_cast<uint64_t>(t.rank()));
    for (int d = 0; d < t.rank(); ++d) add(static_cast<uint64_t>(t.size(d)));
    for (int64_t i = 0; i < t.numel(); ++i) add(std::bit_cast<uint64_t>(t.at(i)));
  }
  return fmt::format("{:016x}", sum);
}

std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves) {
  return make_inputs(c, dtype, leaves, shapes(c));
}

std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves,
                                const std::vector<Shape>& shapes, uint64_t first_seed) {
  std::vector<Tensor> made;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Input& in = c.inputs[i];
    const Seed seed(first_seed + i);
    Tensor t(shapes[i], in.real() ? f64 : in.kind == Input::Index ? i64 : boolean);
    for (int64_t k = 0; k < t.numel(); ++k) {
      double v = in.low + (in.high - in.low) * generator().uniform();
      if (std::abs(v) < in.away) v = v < 0 ? v - in.away : v + in.away;
      if (in.kind == Input::Index || in.kind == Input::Tied) v = std::floor(v);
      if (in.kind == Input::Mask) v = v > 0.5;
      if (!in.values.empty()) v = in.values[size_t(k) % in.values.size()];
      t.set(k, static_cast<float>(v));
    }
    if (in.real()) t = t.to(dtype);
    if (leaves && in.differentiated()) t.set_requires_grad();
    made.push_back(t);
  }
  return made;
}

}  // namespace mixtape::tests
