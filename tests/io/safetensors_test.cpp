// safetensors: what is written reads back, and no claim of a file is trusted.

#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/format.h"
#include "io/file.h"
#include "tests/support/damage.h"
#include "tests/support/errors.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace mixtape::io {
namespace safetensors_test {

using test::slurp;
using test::spit;
using test::TempFolder;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

constexpr DType all_dtypes[] = {f64, f32, f16, bf16, i64, i32, u8, boolean};

// A file with this header and `data` bytes of zeros.
std::string file_with(std::string header, size_t data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data, '\0');
}

std::string parse_error(const std::string& file) {
  return test::full_error([&] { parse_safetensors(bytes_of(file), "f"); });
}

TEST(SafeTensors, RoundTripsEveryDtype) {
  const TempFolder folder;
  StateDict tensors;
  for (const DType t : all_dtypes) {
    const std::string name(mixtape::name(t));
    tensors.emplace_back(name, from({0, 1, 1, 0, 1, 1}, {2, 3}, t));
    tensors.emplace_back(name + ".scalar", from({1}, {}, t));
    tensors.emplace_back(name + ".empty", Tensor({3, 0, 2}, t));
  }
  tensors.emplace_back("values", from({-1.5, 65504, 1e-7, INFINITY}, {4}, f16));
  const Metadata metadata{{"format", "pt"}, {"quote \" and \u00e9", "line\nbreak"}};
  save(folder / "all.safetensors", tensors, metadata);

  const SafeTensors back = load(folder / "all.safetensors");
  EXPECT_EQ(back.metadata, metadata);
  ASSERT_EQ(back.tensors.size(), tensors.size());
  for (const auto& [name, t] : tensors) {
    const Tensor& b = back.tensors.at(name);
    EXPECT_EQ(b.dtype(), t.dtype()) << name;
    EXPECT_EQ(b.shape(), t.shape()) << name;
    EXPECT_EQ(to_vector(b), to_vector(t)) << name;
  }
  EXPECT_TRUE(load(folder / "all.safetensors").tensors.contains("f32.scalar"));
}

TEST(SafeTensors, KeepsNothingAtAll) {
  const TempFolder folder;
  save(folder / "none", {});
  EXPECT_TRUE(load(folder / "none").tensors.empty());
  EXPECT_ERROR(load(folder / "none").tensors.at("a"), "no tensor is named \"a\"");
}

TEST(SafeTensors, WritesWhatWasLoadedAsItIs) {
  const TempFolder folder;
  save(folder / "one", {{"b", from({1, 2}, {2})}, {"a", from({3}, {})}});
  save(folder / "two", load(folder / "one").tensors);
  const SafeTensors back = load(folder / "two");
  ASSERT_EQ(back.tensors.size(), 2u);
  EXPECT_EQ(back.tensors[0].first, "a") << "by name";
  EXPECT_EQ(to_vector(back.tensors.at("b")), (std::vector<double>{1, 2}));
}
TEST(SafeTensors, WritesStridedTensorsRowMajor) {
  const TempFolder folder;
  const Tensor x = from({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  const Tensor columns = x.with_layout(slice(transpose(x.layout(), 0, 1), 0, 1, 4, 2));
  const Tensor repeated = x.with_layout(expand(select(x.layout(), 1, 2), {2, 3}));
  save(folder / "s", {{"columns", columns}, {"repeated", repeated}});
  const SafeTensors back = load(folder / "s");
  EXPECT_EQ(back.tensors.at("columns").shape(), Shape({2, 3}));
  EXPECT_EQ(to_vector(back.tensors.at("columns")), (std::vector<double>{1, 5, 9, 3, 7, 11}));
  EXPECT_EQ(to_vector(back.tensors.at("repeated")), (std::vector<double>{2, 6, 10, 2, 6, 10}));

  // Larger than one chunk of a copy.
  const Tensor big({300, 301}, i32);
  for (int64_t i = 0; i < big.numel(); ++i) big.data<int32_t>()[i] = int32_t(i);
  const Tensor turned = big.with_layout(transpose(big.layout(), 0, 1));
  save(folder / "big", {{"turned", turned}});
  EXPECT_EQ(to_vector(load(folder / "big").tensors.at("turned")), to_vector(turned));
}

TEST(SafeTensors, AlignsEachTensor) {
  const TempFolder folder;
  save(folder / "a", {{"b", from({1, 2, 3}, {3}, u8)},
                      {"a", from({1, 2, 3}, {3}, f16)},
                      {"c", from({1}, {1}, f64)},
                      {"d", from({5}, {1}, f16)}});
  const std::string file = slurp(folder / "a");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const std::string header = file.substr(8, length);
  const auto position = [&](const char* text) { return header.find(text); };
  EXPECT_LT(position("\"c\""), position("\"a\""));  // f64, then f16 by name, then u8
  EXPECT_LT(position("\"a\""), position("\"d\""));
  EXPECT_LT(position("\"d\""), position("\"b\""));
  EXPECT_NE(position("[16,19]"), std::string::npos);
}

TEST(SafeTensors, RefusesToWriteNonsense) {
  const TempFolder folder;
  const Tensor x = from({1}, {1});
  EXPECT_ERROR(save(folder / "x", {{"__metadata__", x}}),
               "duplicate or reserved name \"__metadata__\"");
  EXPECT_ERROR(save(folder / "x", {{"a", Tensor()}}), "\"a\" is undefined");
  EXPECT_ERROR(save(folder / "x", {{"\xff", x}}), "not UTF-8");
  EXPECT_ERROR(save(folder / "x", {{"a", x}}, {{"k", "\xff"}}), "not UTF-8");
  EXPECT_EQ(folder.count(), 0u);
}

TEST(SafeTensors, RefusesHostileFiles) {
  const auto tensor = [](const char* info) { return std::string(R"({"w":{)") + info + "}}"; };
  struct Case {
    std::string file, message;
  };
  const uint64_t huge = UINT64_MAX;
  const std::string huge_length(reinterpret_cast<const char*>(&huge), 8);
  const Case cases[] = {
      {"", "f: has 0 bytes, too few"},
      {"1234567", "f: has 7 bytes, too few"},
      {huge_length + "{}",
       "f: a header of 18446744073709551615 bytes is above the limit of 100000000"},
      {file_with("{}  ", 0).substr(0, 11), "f: a header of 4 bytes does not fit a file of 11"},
      {file_with("", 0), "f: header: invalid JSON near byte"},
      {file_with("{\"a\":}", 0), "f: header: invalid JSON near byte 14"},
      {file_with("{} {}", 0), "f: header: invalid JSON near byte"},
      {file_with("{\"a\xff\":1}", 0), "f: header: invalid JSON near byte"},
      {file_with(R"({"a":1E999})", 0), "f: header: invalid JSON: a number is too large"},
      {file_with("[]", 0), "f: header: not a JSON object"},
      {file_with("7", 0), "f: header: not a JSON object"},
      {file_with(std::string(100'000, '['), 0), "f: header: nested deeper than 3 levels"},
      {file_with(R"({"a":{"b":{"c":{}}}})", 0), "f: header: nested deeper than 3 levels"},
      {file_with(
           tensor(
               R"("dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1])"),
           1),
       "f: header: duplicate key \"w\""},
      {file_with(tensor(R"("dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1])"), 1),
       "f: header: duplicate key \"dtype\""},
      {file_with(R"({"w":3})", 0), "f: tensor \"w\": needs dtype, shape and data_offsets"},
      {file_with(tensor(R"("dtype":"U8","shape":[1])"), 0), "f: tensor \"w\": needs dtype, shape"},
      {file_with(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1)"), 1),
       "and nothing else"},
      {file_with(tensor(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), 1),
       "f: tensor \"w\": dtype is not a string"},
      {file_with(tensor(R"("dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1])"), 1),
       "f: tensor \"w\": dtype \"F8_E4M3\" is not supported"},
      {file_with(tensor(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1),
       "f: tensor \"w\": shape is not a list"},
      {file_with(tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1),
       "sizes must be integers >= 0, got \"-1\""},
      {file_with(tensor(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1),
       "sizes must be integers >= 0, got \"1.0\""},
      {file_with(tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"), 1),
       "sizes must be integers >= 0, got \"9223372036854775808\""},
      {file_with(tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1),
       "f: header: a list has more than 8 numbers"},
      {file_with(tensor(R"("dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
                 8),
       "f: tensor \"w\": the size of f64 [4294967296, 4294967296] overflows"},
      {file_with(tensor(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"),
                 0),
       "overflows"},
      {file_with(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1),
       "data_offsets must be two integers"},
      {file_with(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])"), 1),
       "data_offsets must be two integers"},
      {file_with(tensor(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1),
       "f: tensor \"w\": data_offsets 1 to 0 are out of range for 1 bytes"},
      {file_with(tensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), 1),
       "f: tensor \"w\": data_offsets 0 to 2 are out of range for 1 bytes"},
      {file_with(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
       "f: tensor \"w\": f32 [2] needs 8 bytes, but data_offsets span 4"},
      {file_with(
           tensor(
               R"("dtype":"U8","shape":[4],"data_offsets":[0,4]},"v":{"dtype":"U8","shape":[4],"data_offsets":[2,6])"),
           6),
       "f: tensor \"v\": overlaps another at byte 2"},
      {file_with(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[2,6])"), 6),
       "f: bytes 0 to 2 of the data belong to no tensor"},
      {file_with(tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])"), 7),
       "f: the last 3 bytes belong to no tensor"},
      {file_with(tensor(R"("dtype":"BOOL","shape":[2],"data_offsets":[0,2])"), 1) + "\x02",
       "f: tensor \"w\": byte 64 of the file is not a bool"},
      {file_with(R"({"__metadata__":3})", 0), "f: __metadata__ is not an object"},
      {file_with(R"({"__metadata__":{"k":3}})", 0), "f: __metadata__: \"k\" is not a string"},
  };
  for (const Case& c : cases) {
    const std::string message = parse_error(c.file);
    EXPECT_NE(message.find(c.message), std::string::npos)
        << "message: " << message << "\nwanted: " << c.message;
  }
}

TEST(SafeTensors, LoadNamesTheFile) {
  const TempFolder folder;
  EXPECT_ERROR(load(folder / "gone.safetensors"), "gone.safetensors: cannot open: No such file");
  spit(folder / "short.safetensors", "abc");
  EXPECT_ERROR(load(folder / "short.safetensors"), "short.safetensors: has 3 bytes, too few");
}

TEST(SafeTensors, SurvivesDamage) {
  const TempFolder folder;
  save(folder / "ok",
       {{"layer.weight", from({1, 2, 3, 4}, {2, 2})}, {"flags", from({1, 0}, {2}, boolean)}},
       {{"format", "pt"}});
  const auto parse = [](std::span<const std::byte> file) { parse_safetensors(file, "f"); };
  test::survive_damage(slurp(folder / "ok"), "0[{\"]}-,9", parse);
  test::refuse_truncation(slurp(folder / "ok"), parse);
}

TEST(Shards, RoundTrip) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors", index = path + ".index.json";
  StateDict tensors;
  for (int i = 0; i < 7; ++i)
    tensors.emplace_back(fmt::format("layer.{}", i), from({double(i), 1, 2}, {3}));
  tensors.emplace_back("large", Tensor({100}, u8));
  tensors.emplace_back("flags", from({1, 0}, {2}, boolean));
  for (int64_t i = 0; i < 100; ++i) tensors[7].second.set(i, double(i));
  save_sharded(path, tensors, {.max_bytes = 36, .metadata = {{"format", "pt"}}});
  EXPECT_EQ(folder.count(), 6u) << "3 + 3 + 1 layers, the large one, the flags, and the index";
  EXPECT_EQ(load(folder / "model-00002-of-00005.safetensors").tensors.size(), 3u);
  EXPECT_EQ(load(folder / "model-00004-of-00005.safetensors").tensors.size(), 1u);
  const std::string text = slurp(index);
  EXPECT_NE(text.find("\"total_size\": 186"), std::string::npos) << text;
  EXPECT_NE(text.find("\"layer.3\": \"model-00002-of-00005.safetensors\""), std::string::npos);

  const SafeTensors back = load(index);
  EXPECT_EQ(back.metadata, (Metadata{{"format", "pt"}}));
  ASSERT_EQ(back.tensors.size(), tensors.size());
  EXPECT_TRUE(std::ranges::is_sorted(back.tensors, {}, &StateDict::value_type::first));
  for (const auto& [name, t] : tensors) EXPECT_EQ(to_vector(back.tensors.at(name)), to_vector(t));

  save_sharded(folder / "one.safetensors", tensors);
  EXPECT_EQ(load(folder / "one-00001-of-00001.safetensors").tensors.size(), tensors.size());
  save_sharded(folder / "none.safetensors", {});
  EXPECT_TRUE(load(folder / "none.safetensors.index.json").tensors.empty());
}

TEST(Shards, RefuseToBeWrittenAsNonsense) {
  const TempFolder folder;
  const Tensor x = from({1}, {1});
  EXPECT_ERROR(save_sharded(folder / "x.bin", {{"a", x}}), "the name must end in .safetensors");
  const std::string path = folder / "x.safetensors";
  EXPECT_ERROR(save_sharded(path, {{"a", x}}, {.max_bytes = 0}), "max_bytes must be > 0");
  EXPECT_ERROR(save_sharded(path, {{"a", x}, {"a", x}}, {.max_bytes = 4}),
               "duplicate or reserved name \"a\"");
  EXPECT_ERROR(save_sharded(path, {{"a", x}, {"\xff", x}}, {.max_bytes = 4}), "is not UTF-8");
  EXPECT_EQ(folder.count(), 0u) << "the first shard was written, but has no name yet";
}

TEST(Shards, RefuseAHostileIndex) {
  const auto index = [](const std::string& text) {
    return test::full_error([&] { parse_safetensors_index(text, "f"); });
  };
  const auto file = [](const std::string& name) {
    return fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", name);
  };
  EXPECT_EQ(index(file("a.safetensors")), "no error");
  EXPECT_EQ(index(R"({"metadata":{"total_size":1,"deep":{"er":2}},"weight_map":{}})"), "no error");
  struct Case {
    std::string text, message;
  };
  const Case cases[] = {
      {"", "f: invalid JSON near byte 1"},
      {"{\"weight_map\":{}", "f: invalid JSON near byte 17"},
      {"[]", "f: has no object weight_map"},
      {"{}", "f: has no object weight_map"},
      {R"({"weight_map":["a.safetensors"]})", "f: has no object weight_map"},
      {R"({"weight_map":{"w":7}})", "f: the file of \"w\" is not a string"},
      {R"({"weight_map":{"w":"a.safetensors","w":"b.safetensors"}})", "f: duplicate key \"w\""},
      {R"({"weight_map":{"w":{"x":{"y":1}}}})", "f: nested deeper than 3 levels"},
      {file("../a.safetensors"), "f: \"../a.safetensors\" is not the name of a .safetensors file"},
      {file("/etc/a.safetensors"), "is not the name of a .safetensors file beside the index"},
      {file("sub/a.safetensors"), "is not the name of a .safetensors file beside the index"},
      {file(R"(..\\a.safetensors)"), "is not the name of a .safetensors file beside the index"},
      {file(R"(a\u0000.safetensors)"), "is not the name of a .safetensors file beside the index"},
      {file("a.bin"), "f: \"a.bin\" is not the name of a .safetensors file beside the index"},
      {file(""), "f: \"\" is not the name of a .safetensors file beside the index"},
  };
  for (const Case& c : cases)
    EXPECT_NE(index(c.text).find(c.message), std::string::npos)
        << "message: " << index(c.text) << "\nwanted: " << c.message;
}

TEST(Shards, MustHoldWhatTheIndexSays) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  const auto write_index = [&](const char* places) {
    spit(path, fmt::format(R"({{"weight_map":{{{}}}}})", places));
  };
  save(folder / "a.safetensors", {{"x", from({1}, {1})}, {"y", from({2}, {1})}});
  save(folder / "b.safetensors", {{"z", from({3}, {1})}});
  write_index(R"("x":"a.safetensors","y":"a.safetensors","z":"b.safetensors")");
  EXPECT_EQ(load(path).tensors.at("z").item(), 3);
  write_index(R"("x":"a.safetensors","z":"b.safetensors")");
  EXPECT_ERROR(load(path),
               "a.safetensors: holds tensor \"y\", which the index does not place there");
  write_index(R"("x":"a.safetensors","y":"b.safetensors","z":"b.safetensors")");
  EXPECT_ERROR(load(path), "a.safetensors: holds tensor \"y\"");
  write_index(R"("v":"b.safetensors","z":"b.safetensors")");
  EXPECT_ERROR(load(path), "b.safetensors: lacks tensor \"v\" of the index");
  write_index(R"("z":"c.safetensors")");
  EXPECT_ERROR(load(path), "c.safetensors: cannot open: No such file");
  EXPECT_ERROR(load(folder / "gone.index.json"), "gone.index.json: cannot open: No such file");
}

TEST(Shards, IndexSurvivesDamage) {
  const auto parse = [](std::span<const std::byte> text) {
    parse_safetensors_index({reinterpret_cast<const char*>(text.data()), text.size()}, "f");
  };
  const std::string valid = R"({"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors",)"
                            R"("b":"m-2.safetensors"}})";
  test::survive_damage(valid, "\"{}:,/", parse);
  test::refuse_truncation(valid, parse);
}

TEST(SafeTensors, ExchangesWithPython) {
  if (!test::python("import numpy, safetensors.numpy"))
    GTEST_SKIP()
        << "needs Python with numpy and safetensors (MIXTAPE_PYTHON names the interpreter)";
  const TempFolder folder;
  save(folder / "ours",
       {{"a", from({1, 2, 3, 4, 5, 6}, {2, 3})},
        {"h", from({0.5, -2}, {2}, f16)},
        {"i", from({-7}, {}, i64)},
        {"b", from({1, 0}, {2}, boolean)}},
       {{"k", "v"}});
  EXPECT_TRUE(test::python(R"(
import sys, safetensors
from safetensors.numpy import save_file
with safetensors.safe_open(sys.argv[1] + "/ours", "np") as f:
    assert f.metadata() == {"k": "v"}
    t = {k: f.get_tensor(k) for k in f.keys()}
assert t["a"].tolist() == [[1, 2, 3], [4, 5, 6]] and t["a"].dtype == "float32"
assert t["h"].tolist() == [0.5, -2] and t["h"].dtype == "float16"
assert t["i"].tolist() == -7 and t["b"].tolist() == [True, False]
save_file(t, sys.argv[1] + "/theirs", {"from": "python"}))",
                           folder.path()));
  const SafeTensors back = load(folder / "theirs");
  EXPECT_EQ(back.metadata, (Metadata{{"from", "python"}}));
  EXPECT_EQ(to_vector(back.tensors.at("a")), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(to_vector(back.tensors.at("h")), (std::vector<double>{0.5, -2}));
  EXPECT_EQ(back.tensors.at("i").item(), -7);
  EXPECT_EQ(back.tensors.at("b").dtype(), boolean);
}

}  // namespace safetensors_test
}  // namespace mixtape::io
