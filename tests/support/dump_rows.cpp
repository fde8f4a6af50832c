// Prints, as JSON, the inputs of every row and edge case in f64, a checksum of them, and the
// gradient that is to arrive at its result: what rows_reference.py hands to PyTorch. What JSON has
// no numbers for is text.

#include <fmt/format.h>

#include <cmath>

#include "tests/support/op_cases.h"

namespace mixtape::tests {
namespace {

std::string json(const Tensor& t) {
  std::string sizes, values;
  for (int d = 0; d < t.rank(); ++d) sizes += fmt::format("{}{}", d ? ", " : "", t.size(d));
  for (int64_t i = 0; i < t.numel(); ++i) {
    const std::string value = fmt::format("{:#}", t.at(i));  // -0.0, where -0 is an integer
    values += (i ? ", " : "") + (std::isfinite(t.at(i)) ? value : '"' + value + '"');
  }
  return fmt::format(R"({{"dtype": "{}", "shape": [{}], "data": [{}]}})", name(t.dtype()), sizes,
                     values);
}

}  // namespace
}  // namespace mixtape::tests

int main() {
  using namespace mixtape;
  const char* separator = "{";
  for (const auto* cases : {&tests::op_cases(), &tests::edge_cases()})
    for (const tests::OpCase& c : *cases) {
      const auto in = tests::make_inputs(c, f64, true);
      const Tensor y = c.run(in);
      std::string inputs, wanted;
      for (const Tensor& t : in) inputs += (inputs.empty() ? "" : ", ") + tests::json(t);
      for (const tests::Input& i : c.inputs)
        wanted += fmt::format("{}{}", wanted.empty() ? "" : ", ", i.differentiated());
      fmt::print("{}\n\"{}\": {{\"checksum\": \"{}\", \"inputs\": [{}], \"wanted\": [{}]",
                 separator, c.name(), tests::checksum(in), inputs, wanted);
      if (c.differentiable) fmt::print(", \"dy\": {}", tests::json(tests::output_gradient(y)));
      fmt::print("}}");
      separator = ",";
    }
  fmt::print("\n}}\n");
}
