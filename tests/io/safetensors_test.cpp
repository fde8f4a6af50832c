// safetensors: what is written reads back, and no claim of a file is trusted.

#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

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

constexpr DType all_dtypes[] = {f64,     f32, f16, bf16, i64, i32,     u8,
                                boolean, i8,  i16, u16,  u32, f8_e4m3, f8_e5m2};

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
  tensors.emplace_back("powers", from({0.25, 1, 0x1p100}, {3}, f8_e8m0));
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
      {file_with(R"({"__metadata__":{}})", 0).substr(0, 12),
       "f: a header of 19 bytes does not fit a file of 12"},
      {file_with("", 0), "f: header: invalid JSON near byte"},
      {file_with("{\"a\":}", 0), "f: header: invalid JSON near byte 14"},
      {file_with("{} {}", 0), "f: header: invalid JSON near byte"},
      {file_with("{\"a\xff\":1}", 0), "f: header: invalid JSON near byte"},
      {file_with(R"({"a":1E999})", 0), "f: header: invalid JSON: a number is too large"},
      {file_with("[]", 0), "f: header: not a JSON object"},
      {file_with("7", 0), "f: header: not a JSON object"},
      {file_with(std::string(100'000, '['), 0), "f: header: not a JSON object"},
      {file_with(R"({"a":{"b":{"c":{}}}})", 0),
       "f: tensor \"a\": needs dtype, shape and data_offsets"},
      {file_with(R"({"a":[{},{}]})", 0), "f: tensor \"a\": needs dtype, shape and data_offsets"},
      {file_with(R"({"__metadata__":{},"__metadata__":{}})", 0),
       "f: header: duplicate key \"__metadata__\""},
      {file_with(R"({"__metadata__":{"a":"","a":""}})", 0), "f: header: duplicate key \"a\""},
      {file_with(tensor(R"("dtype":["U8"],"shape":[1],"data_offsets":[0,1])"), 1),
       "f: tensor \"w\": dtype is not a string"},
      {file_with(tensor(R"("dtype":"U8","shape":[[1]],"data_offsets":[0,1])"), 1),
       "f: tensor \"w\": shape is not a list of numbers"},
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
      {file_with(tensor(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])"), 1),
       "f: tensors of dtypes that are not here: \"w\" (\"F4\")"},
      {file_with(tensor(R"("dtype":"","shape":[1],"data_offsets":[0,1])"), 1),
       "f: tensors of dtypes that are not here: \"w\" (\"\")"},
      {file_with(tensor(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1),
       "f: tensor \"w\": shape is not a list"},
      {file_with(tensor(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1),
       "sizes must be integers >= 0, got \"-1\""},
      {file_with(tensor(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1),
       "sizes must be integers >= 0, got \"1.0\""},
      {file_with(tensor(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1])"), 1),
       "sizes must be integers >= 0, got \"9223372036854775808\""},
      {file_with(tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1),
       "f: \"w\" has 9 dimensions, more than 8: leave it out, {.skip = {\"w\"}}"},
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

// Untimed: what takes time quadratic in the header takes minutes here.
TEST(SafeTensors, TakesTimeLinearInItsHeader) {
  const TempFolder folder;
  StateDict many;
  for (int i = 0; i < 32'000; ++i)
    many.emplace_back(fmt::format("model.layers.{}.weight", i), from({double(i % 256)}, {1}, u8));
  save(folder / "many", many);
  const SafeTensors back = load(folder / "many");
  ASSERT_EQ(back.tensors.size(), many.size());
  EXPECT_EQ(back.tensors.at("model.layers.31999.weight").item(), 31999 % 256);
  save_sharded(folder / "many.safetensors", many, {.max_bytes = 16'000});
  EXPECT_EQ(load(folder / "many.safetensors.index.json").tensors.size(), many.size());

  const auto repeated = [](const std::string& part, const std::string& end) {
    std::string text;
    while (text.size() < 5'000'000) text += part;
    text.resize(text.size() - 1);  // without the last comma
    return text + end;
  };
  EXPECT_NE(parse_error(file_with("{\"a\":[" + repeated("{},", "]}"), 0)), "no error");
  EXPECT_NE(parse_error(file_with("{" + repeated("\"a\":{},", "}"), 0)), "no error");
  EXPECT_NE(parse_error(file_with("{\"__metadata__\":{" + repeated("\"a\":\"\",", "}}"), 0)),
            "no error");
  EXPECT_NE(parse_error(file_with("{\"a\":{\"shape\":[" + repeated("1,", "]}}"), 0)), "no error");
  const std::string entry = "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
  EXPECT_TRUE(parse_error(file_with("{" + repeated(entry, "}"), 0))
                  .starts_with("f: header: duplicate key \"a\""));
  EXPECT_NE(test::full_error(
                [&] { parse_safetensors_index("{\"metadata\":[" + repeated("{},", "]}"), "f"); }),
            "no error");
}

TEST(SafeTensors, SaysWhatOtherFilesAre) {
  using namespace std::string_literals;
  const auto zip = [](const std::string& name) {
    std::string file = "PK\3\4"s + std::string(22, '\0') + char(name.size()) + "\0\0\0"s + name;
    return file + std::string(100, 'x');
  };
  struct Case {
    std::string begin, what;
  };
  const Case cases[] = {
      {zip("archive/data.pkl"), "a zip archive of PyTorch's torch.save (io::load reads it)"},
      {zip("w/.format_version"), "a zip archive of PyTorch's torch.save"},
      {zip("m/constants.pkl"), "a TorchScript archive"},
      {zip("x.npy"), "a NumPy archive (io::load_npz reads it)"},
      {zip("a.txt"), "a zip archive (unpack it"},
      {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M"s,
       "a file of torch.save from before PyTorch 1.6 (io::load reads it)"},
      {"\x80\x05\x95\x0d\0\0\0\0\0\0\0\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19."s,
       "a file of torch.save from before PyTorch 1.6"},
      {"L119547037146038801333356L\n.",
       "a file of torch.save with pickle_protocol=1 or 0 (save it"},
      {"\x80\x04\x95\x10\0\0\0"s, "a pickle of Python"},
      {"\x80\x02}q\0X\x05"s, "a pickle of Python"},
      {"\x93NUMPY\1\0"s, "a NumPy array (io::load_npy reads it)"},
      {"\x89HDF\r\n\x1a\n"s, "an HDF5 file"},
      {"GGUF\3\0\0\0"s, "a GGUF file"},
      {"\x08\x07\x12\x07pytorch"s, "an ONNX model"},
      {"\x1f\x8b\x08\0"s, "gzip data (unpack it with gunzip)"},
      {"\x28\xb5\x2f\xfd"s, "zstd data"},
      {"\x1c\0\0\0TFL3"s, "a TensorFlow Lite model"},
      {"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS (git lfs pull"},
      {"<!DOCTYPE html>", "a web page"},
      {"{\"metadata\":{},\"weight_map\":{}}", "JSON (an index of shards is named *.index.json)"},
      {std::string(257, '\0') + "ustar", "a tar archive"},
  };
  for (const Case& c : cases) {
    const std::string message = parse_error(c.begin + std::string(300, '\0'));
    EXPECT_TRUE(message.starts_with("f: not a safetensors file, but " + c.what)) << message;
  }
}

TEST(SafeTensors, LeavesOutTensorsOfTooManyDimensions) {
  const std::string file =
      file_with(R"({"a":{"dtype":"F32","shape":[1,2,1,1,1,1,1,1,1,1],"data_offsets":[0,8]},)"
                R"("b":{"dtype":"F4","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[8,9]},)"
                R"("w":{"dtype":"F32","shape":[1],"data_offsets":[9,13]}})",
                13);
  const auto parse = [&](const ReadOptions& options) {
    return parse_safetensors(bytes_of(file), "f", options);
  };
  EXPECT_ERROR(parse({.keep_bytes = true}),
               "f: \"a\" has 10 dimensions, more than 8: leave it out, {.skip = {\"a\"}}");
  EXPECT_ERROR(parse({.skip = {"a"}}), "f: \"b\" has 9 dimensions");
  EXPECT_EQ(parse({.skip = {"a", "b"}}).tensors.size(), 1u);
}

TEST(SafeTensors, LeavesOutDtypesThatAreNotHereOrKeepsTheirBytes) {
  const std::string header = R"({"a":{"dtype":"F6","shape":[2],"data_offsets":[0,4]},)"
                             R"("b.q":{"dtype":"F4","shape":[1,3],"data_offsets":[4,7]},)"
                             R"("b.r":{"dtype":"U64","shape":[],"data_offsets":[7,11]},)"
                             R"("w":{"dtype":"F32","shape":[1],"data_offsets":[11,15]}})";
  std::string file = file_with(header, 15);
  file[file.size() - 15] = 7;
  EXPECT_EQ(parse_error(file).substr(0, parse_error(file).find('\n')),
            "f: tensors of dtypes that are not here: \"a\" (\"F6\"), \"b.q\" (\"F4\"), "
            "\"b.r\" (\"U64\"); leave them out, {.skip = {\"a\", ...}}, or load their bytes, "
            "{.keep_bytes = true}");
  const auto parse = [&](const ReadOptions& options) {
    return parse_safetensors(bytes_of(file), "f", options);
  };
  const SafeTensors left = parse({.skip = {"a", "b.*"}});
  EXPECT_EQ(left.tensors.size(), 1u);
  EXPECT_TRUE(left.tensors.contains("w"));
  EXPECT_ERROR(parse({.skip = {"b.q", "b.", "aa"}}),
               "not here: \"a\" (\"F6\"), \"b.r\" (\"U64\");");
  const SafeTensors kept = parse({.skip = {"b.r"}, .keep_bytes = true});
  EXPECT_EQ(kept.tensors.size(), 3u);
  EXPECT_EQ(to_vector(kept.tensors.at("a")), (std::vector<double>{7, 0, 0, 0}));
  EXPECT_EQ(kept.tensors.at("b.q").shape(), Shape({3}));
  ASSERT_EQ(kept.raw.size(), 2u);
  EXPECT_EQ(kept.raw[0].name, "a");
  EXPECT_EQ(kept.raw[1].dtype, "F4");
  EXPECT_EQ(kept.raw[1].shape, Shape({1, 3}));

  std::string many = "{";
  for (int i = 0; i < 8; ++i)
    many += fmt::format("{}\"{}\":{{\"dtype\":\"F6\",\"shape\":[0],\"data_offsets\":[0,0]}}",
                        i ? "," : "", i);
  EXPECT_NE(parse_error(file_with(many + "}", 0)).find("\"4\" (\"F6\") and 3 more; leave"),
            std::string::npos);
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
