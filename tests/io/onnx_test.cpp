// ONNX as bytes: what is written comes back by the description of the format.

#include "io/onnx.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/onnx.h"

namespace mixtape::io {
namespace onnx_test {

using test::ProtoMessage;
using test::read_onnx;
using test::slurp;
using test::TempFolder;

OnnxGraph example() {
  return {.name = "Net",
          .opset = 20,
          .nodes = {{"Gemm", {"x", "w", "b"}, {"y"}, {{"transB", int64_t{1}}, {"alpha", 0.5}}},
                    {"Clip", {"y", "", "b"}, {"z", "u"}, {{"mode", std::string("linear")}}},
                    {"Transpose",
                     {"z"},
                     {"out"},
                     {{"perm", std::vector<int64_t>{1, 0, -1}},
                      {"names", std::vector<std::string>{"a", "b"}}}}},
          .inputs = {{"x", f32, {"batch", int64_t{300}}}},
          .outputs = {{"out", f16, {"batch", int64_t{2}}}, {"one", boolean, {}}},
          .initializers = {{"w", from({1, -2, 3, 4, 5, 6}, {2, 3}, bf16)},
                           {"b", from({7, 8}, {2}, f64)},
                           {"n", from({-1}, {1}, i64)},
                           {"s", from({2.5}, {}, f16)}}};
}

void expect_equal(const OnnxGraph& a, const OnnxGraph& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.opset, b.opset);
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    EXPECT_EQ(a.nodes[i].op, b.nodes[i].op);
    EXPECT_EQ(a.nodes[i].inputs, b.nodes[i].inputs);
    EXPECT_EQ(a.nodes[i].outputs, b.nodes[i].outputs);
    EXPECT_TRUE(a.nodes[i].attributes == b.nodes[i].attributes) << a.nodes[i].op;
  }
  for (const auto& [x, y] : {std::pair(&a.inputs, &b.inputs), std::pair(&a.outputs, &b.outputs)}) {
    ASSERT_EQ(x->size(), y->size());
    for (size_t i = 0; i < x->size(); ++i) {
      EXPECT_EQ((*x)[i].name, (*y)[i].name);
      EXPECT_EQ((*x)[i].dtype, (*y)[i].dtype);
      EXPECT_EQ((*x)[i].shape, (*y)[i].shape);
    }
  }
  ASSERT_EQ(a.initializers.size(), b.initializers.size());
  for (size_t i = 0; i < a.initializers.size(); ++i) {
    EXPECT_EQ(a.initializers[i].first, b.initializers[i].first);
    const Tensor &x = a.initializers[i].second, &y = b.initializers[i].second;
    EXPECT_EQ(x.dtype(), y.dtype());
    EXPECT_EQ(x.shape(), y.shape());
    EXPECT_EQ(to_vector(x), to_vector(y));
  }
}

TEST(OnnxFile, IsReadByItsDescription) {
  const TempFolder folder;
  save_onnx(folder / "x.onnx", example());
  expect_equal(read_onnx(folder / "x.onnx"), example());
  const ProtoMessage model(slurp(folder / "x.onnx"));
  EXPECT_EQ(model.value(1), 9) << "the version of the format that came with opset 20";
  EXPECT_EQ(model.bytes(2), "Mixtape");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(OnnxFile, HasNumbersInASecondFile) {
  const TempFolder folder;
  save_onnx(folder / "x.onnx", example(), true);
  expect_equal(read_onnx(folder / "x.onnx"), example());
  EXPECT_EQ(slurp(folder / "x.onnx.data").size(), 3 * 4096 + 2u) << "each at a page";
}

TEST(OnnxFile, HasBothFilesWhereALinkLeads) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_symlink("real/z.onnx", folder / "link.onnx");
  save_onnx(folder / "link.onnx", example(), true);
  expect_equal(read_onnx(folder / "real/z.onnx"), example());
  EXPECT_EQ(slurp(folder / "real/z.onnx.data").size(), 3 * 4096 + 2u);
  EXPECT_EQ(folder.count(), 2u);
}

TEST(OnnxFile, ReplacesBothFilesOrNeither) {
  const TempFolder folder;
  OnnxGraph g = example();
  save_onnx(folder / "x.onnx", g, true);
  const std::string before = slurp(folder / "x.onnx.data");
  g.initializers = {{"w", from({9}, {1})}};  // 4 bytes: only the graph exceeds the limit
  struct rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {64, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = test::full_error([&] { save_onnx(folder / "x.onnx", g, true); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, ignored);
  EXPECT_NE(message.find("x.onnx: cannot write: File too large"), message.npos) << message;
  EXPECT_EQ(slurp(folder / "x.onnx.data"), before);
  expect_equal(read_onnx(folder / "x.onnx"), example());

  std::filesystem::create_directory(folder / "y.onnx");
  EXPECT_ERROR(save_onnx(folder / "y.onnx", g, true), "y.onnx: not a regular file");
  EXPECT_EQ(folder.count(), 3u);
}

TEST(OnnxFile, WritesTensorsOfAnyLayout) {
  const TempFolder folder;
  OnnxGraph g = example();
  const Tensor w = from({1, 2, 3, 4, 5, 6}, {2, 3});
  g.initializers = {{"w", w.with_layout(internal::Layout({3, 2}, {1, 3}))}};
  save_onnx(folder / "x.onnx", g);
  EXPECT_EQ(to_vector(read_onnx(folder / "x.onnx").initializers[0].second),
            (std::vector<double>{1, 4, 2, 5, 3, 6}));
}

TEST(OnnxFile, SaysWhatCannotBeWritten) {
  const TempFolder folder;
  OnnxGraph g = example();
  for (const int opset : {17, 24}) {
    g.opset = opset;
    EXPECT_ERROR(save_onnx(folder / "x.onnx", g), "the opset must be from 18 to 23, got");
  }
  g.opset = 18;
  g.initializers.push_back(g.initializers[0]);
  EXPECT_ERROR(save_onnx(folder / "x.onnx", g), "\"w\"");
  EXPECT_ERROR(save_onnx(folder / "y\xff.onnx", example(), true),
               "the graph cannot hold the name of a second file: it must be UTF-8");
  // One number, read 2^29 times: 2 GiB.
  const Tensor large = from({1}, {1}).with_layout(internal::Layout({1 << 29}, {0}));
  g.initializers = {{"w", large}};
  EXPECT_ERROR(save_onnx(folder / "x.onnx", g), "bytes are more than an ONNX file may have");
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace onnx_test
}  // namespace mixtape::io
