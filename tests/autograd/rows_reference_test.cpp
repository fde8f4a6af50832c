// Every row and edge case against PyTorch: values and gradients, in f64 and f32.
// rows_reference.json has PyTorch's results for the same inputs in f64.

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/op_cases.h"
#include "tests/support/reference.h"

namespace mixtape {
namespace rows_reference_test {

using test::json;
using tests::OpCase;

const char* const regenerate =
    "\nTo make the reference anew (see tests/data/rows_reference.py):\n"
    "  ninja -C build tests/dump_rows && build/tests/dump_rows | python3 "
    "tests/data/rows_reference.py";

const json& reference() {
  static const json file = test::read_reference("rows_reference.json");
  return file;
}

std::vector<OpCase> all_cases() {
  std::vector<OpCase> all = tests::op_cases();
  for (const OpCase& c : tests::edge_cases()) all.push_back(c);
  return all;
}

// Expects a difference within `tolerance` times the largest expected magnitude.
void expect_close(const Tensor& got, const json& want, double tolerance, const std::string& what) {
  std::vector<double> values;
  double scale = 0;
  for (const json& v : want) {
    values.push_back(v.is_string() ? std::stod(v.get<std::string>()) : v.get<double>());
    if (std::isfinite(values.back())) scale = std::max(scale, std::abs(values.back()));
  }
  ASSERT_EQ(got.numel(), int64_t(values.size())) << what;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = got.at(int64_t(i)), y = values[i];
    const bool same = x == y || (std::isnan(x) && std::isnan(y));
    EXPECT_TRUE(same || std::abs(x - y) <= tolerance * scale)
        << what << ", element " << i << ": " << x << ", PyTorch has " << y;
  }
}

struct RowsReference : testing::TestWithParam<OpCase> {
  static void compare(DType dtype, double tolerance);
};

void RowsReference::compare(DType dtype, double tolerance) {
  const OpCase& c = GetParam();
  ASSERT_TRUE(reference().contains(c.name())) << "PyTorch was not asked about it." << regenerate;
  const json& want = reference().at(c.name());
  if (want.contains("without")) return;
  ASSERT_EQ(tests::checksum(make_inputs(c, f64, false)), want.at("checksum").get<std::string>())
      << "The row's inputs are no longer those that PyTorch saw." << regenerate;

  const auto in = make_inputs(c, dtype, true);
  const Tensor y = c.run(in);
  EXPECT_EQ(fmt::format("{}", y.shape()),
            fmt::format("[{}]", fmt::join(want.at("shape").get<std::vector<int64_t>>(), ", ")));
  expect_close(y, want.at("y"), tolerance, "value");
  EXPECT_EQ(y.requires_grad(), !want.at("dx").empty());
  if (!y.requires_grad()) return;
  std::vector<Tensor> leaves;
  for (const Tensor& t : in)
    if (t.is_leaf()) leaves.push_back(t);
  const std::vector<Tensor> dx = grad({y}, leaves, {.gradients = {tests::output_gradient(y)}});
  ASSERT_EQ(dx.size(), want.at("dx").size());
  for (size_t i = 0; i < dx.size(); ++i)
    expect_close(dx[i], want.at("dx")[i], tolerance, fmt::format("gradient of leaf {}", i));
}

TEST_P(RowsReference, Double) { compare(f64, 1e-10); }
TEST_P(RowsReference, Single) { compare(f32, 1e-5); }
INSTANTIATE_TEST_SUITE_P(PyTorch, RowsReference, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name(); });

// Errors and lists of tensors, which rows do not cover.
TEST(LikePyTorch, AWindowMustFit) {
  // Two rows too few, which a stride of 3 would round away.
  EXPECT_ERROR(
      conv2d(ones({1, 1, 3, 9}), ones({1, 1, 3, 3}), {}, {.stride = {3, 1}, .dilation = {2, 1}}),
      "a window of 3 (dilation 2) does not fit into 3 + 2 * 0");
}

TEST(LikePyTorch, SplittingNothingGivesNothingInPieces) {
  const Tensor none = zeros({2, 0});
  EXPECT_EQ(split(none, 3, 1).size(), 1u);
  EXPECT_EQ(chunk(none, 3, 1).size(), 3u);
  EXPECT_EQ(chunk(none, 3, 1)[2].shape(), (Shape{2, 0}));
  EXPECT_EQ(chunk(ones({5}), std::numeric_limits<int64_t>::max()).size(), 5u);
}

TEST(LikePyTorch, ANumberIsNotTruncatedForIntegers) {
  const Tensor x = arange(0, 3);
  EXPECT_ERROR(x + 1.5, "cannot combine i64 elements with 1.5 (convert them to a float dtype)");
  EXPECT_ERROR(0.5 - x, "cannot combine i64 elements with 0.5");
  EXPECT_EQ(to_vector(x + 2), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(to_vector(gt(x, 0.5)), (std::vector<double>{0, 1, 1}));
  const Tensor most = full({}, -1, i64) - full({}, -0x1p63, i64);  // 2^63 - 1
  for (const Device d : {Device::cpu(), Device::best()})
    for (const double beyond : {0x1p63, 1e300, double(INFINITY)})
      EXPECT_FALSE(ge(most.to(d), beyond).item<bool>()) << beyond;
}

TEST(RowsReferenceFile, SaysHowItWasMadeAndHoldsNothingElse) {
  EXPECT_NE(reference().at("made").get<std::string>().find("torch"), std::string::npos);
  std::set<std::string> known = {"made", "to_device"};  // to_device has a row only with a device
  for (const OpCase& c : all_cases()) known.insert(c.name());
  for (const auto& [name, entry] : reference().items())
    EXPECT_TRUE(known.contains(name)) << name << " is of a row that is gone." << regenerate;
}

}  // namespace rows_reference_test
}  // namespace mixtape
