// NumPy files: reads NumPy's, writes the same bytes, and trusts no claim of a file.

#include "io/npy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/format.h"
#include "io/zip.h"
#include "tests/support/damage.h"
#include "tests/support/data.h"
#include "tests/support/deflate.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace mixtape::io {
namespace npy_test {

using test::slurp;
using test::spit;
using test::TempFolder;
using Numbers = std::vector<double>;

const std::string data = test::data_file("");
constexpr DType all_dtypes[] = {f64,     f32, f16, i64, i32, u8,
                                boolean, i8,  i16, u16, u32};  // all of NumPy's

std::string npy_error(const std::string& file) {
  return test::error([&] { parse_npy(std::as_bytes(std::span(file)), "f"); });
}
std::string npz_error(const std::string& file) {
  return test::error([&] { parse_npz(std::as_bytes(std::span(file)), "f"); });
}

std::string number(uint64_t value, size_t width) {
  return {reinterpret_cast<const char*>(&value), width};
}

// A .npy file with this header and `bytes` zeros.
std::string npy(const std::string& header, size_t bytes, int version = 1) {
  return "\x93NUMPY" + number(uint64_t(version), 2) + number(header.size(), version == 1 ? 2 : 4) +
         header + std::string(bytes, '\0');
}
std::string npy(const char* descr, const char* order, const char* shape, size_t bytes) {
  return npy(
      fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}\n", descr, order, shape),
      bytes);
}

// ---- .npy

TEST(Npy, RoundTripsEveryDType) {
  const TempFolder folder;
  for (const DType t : all_dtypes)
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{5}, Shape{2, 3}, Shape{2, 0, 3},
                               Shape{1, 2, 1, 2, 1, 2, 1, 2}}) {
      Tensor x(shape, t);
      for (int64_t i = 0; i < x.numel(); ++i) x.set(i, t == boolean ? i % 2 == 0 : double(i));
      save_npy(folder / "x.npy", x);
      EXPECT_EQ(slurp(folder / "x.npy").size() % 64, size_t(x.numel()) * size_of(t) % 64);
      const Tensor back = load_npy(folder / "x.npy");
      EXPECT_EQ(back.dtype(), t);
      EXPECT_EQ(back.shape(), shape);
      EXPECT_EQ(to_vector(back), to_vector(x));
    }
}

TEST(Npy, ReadsAndWritesAsNumPyDoes) {
  const TempFolder folder;
  const Tensor grid = load_npy(data + "numpy_f4.npy");
  EXPECT_EQ(grid.dtype(), f32);
  EXPECT_EQ(grid.shape(), Shape({2, 3}));
  EXPECT_EQ(to_vector(grid), (Numbers{-1.5, -0.5, 0.5, 1.5, 2.5, 3.5}));
  save_npy(folder / "ours.npy", grid);
  EXPECT_EQ(slurp(folder / "ours.npy"), slurp(data + "numpy_f4.npy"));
  save_npy(folder / "turned.npy", grid.with_layout(transpose(grid.layout(), 0, 1)));
  EXPECT_EQ(to_vector(load_npy(folder / "turned.npy")), (Numbers{-1.5, 1.5, -0.5, 2.5, 0.5, 3.5}));

  const Tensor fortran = load_npy(data + "numpy_big_endian_fortran.npy");
  EXPECT_EQ(fortran.shape(), grid.shape());
  EXPECT_EQ(fortran.strides(), Shape({1, 2}));
  EXPECT_EQ(to_vector(fortran), to_vector(grid));
  EXPECT_EQ(to_vector(load_npy(data + "numpy_version_3.npy")), (Numbers{0, 1, 2, 3, 4, 5}));
}

TEST(Npy, ReadsWhatOthersMayWrite) {
  const auto shape_of = [](const std::string& file) {
    return parse_npy(std::as_bytes(std::span(file)), "f").shape();
  };
  EXPECT_EQ(shape_of(npy("'<f4'", "False", "(2L, 3L)", 24)), Shape({2, 3}));  // Python 2
  EXPECT_EQ(shape_of(npy("\"=i8\"", "True", "()", 8)), Shape());
  EXPECT_EQ(shape_of(npy("'f4'", "False", "(2,)", 8)), Shape({2}));  // of the machine's order
  EXPECT_EQ(shape_of(npy("{'shape':(2,),'descr':'|u1','fortran_order':False}", 2, 2)), Shape({2}));
  EXPECT_EQ(
      shape_of(npy("  { 'shape' : ( 1 , 2 , ) , 'descr' : '|b1' , 'fortran_order' : True }  ", 2)),
      Shape({1, 2}));
}

TEST(Npy, RefusesHostileFiles) {
  struct Case {
    std::string file, message;
  };
  const std::string good = npy("'<f4'", "False", "(2, 3)", 24);
  const auto header = [](const std::string& text) { return npy(text, 0); };
  const Case cases[] = {
      {"", "f: has 0 bytes, too few for a .npy file"},
      {good.substr(0, 9), "f: has 9 bytes, too few for a .npy file"},
      {"PK\3\4 and so on", "f: not a .npy file: it starts with other bytes"},
      {"\x93NUMPY\4" + good.substr(7), "f: version 4.0 is not supported"},
      {npy("", 0, 1 + 256), "f: version 1.1 is not supported"},
      {npy(std::string(10001, ' '), 0), "f: a header of 10001 bytes is above the limit of 10000"},
      {good.substr(0, 60), "f: a header of 60 bytes does not fit a file of 60"},
      {good.substr(0, good.size() - 1),
       "f: f32 [2, 3] needs 24 bytes, but from byte 70 on there are 23"},
      {good + 'x', "f: f32 [2, 3] needs 24 bytes, but from byte 70 on there are 25"},
      {header("[]"), "f: header: byte 10 should be '{'"},
      {header("{'descr' '<f4'"), "f: header: byte 19 should be ':'"},
      {header("{'descr': '<f4"), "f: header: byte 24 should be the end of a string"},
      {header("{'descr': 7"), "f: header: byte 20 should be a dtype"},
      {header("{7: 7"), "f: header: byte 11 should be a key"},
      {header("{'descr': '<f4' 'x'"), "f: header: byte 26 should be '}'"},
      {header("{'descr': '<f4', 'descr'"), "f: header: duplicate key \"descr\""},
      {header("{'colour': 1"), "f: header: unknown key \"colour\""},
      {header("{}"), "f: header: needs descr, fortran_order and shape"},
      {npy("'<f4'", "False", "(2,)} x", 8), "f: header: byte "},
      {npy("'<f4'", "false", "(2,)", 8), "should be True or False"},
      {npy("'<f4'", "False", "(2)", 8), "should be ','"},
      {npy("'<f4'", "False", "(-2,)", 8), "should be a size"},
      {npy("'<f4'", "False", "(2 2)", 8), "should be ','"},
      {npy("'<f4'", "False", "(2, 2 2)", 8), "should be ')'"},
      {npy("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)", 4), "f: header: more than 8 dimensions"},
      {npy("'<f4'", "False", "(9223372036854775808,)", 8), "does not fit 64 bits"},
      {npy("'<f4'", "False", "(4294967296, 4294967296)", 8),
       "f: the size of f32 [4294967296, 4294967296] overflows"},
      {npy("'<f4'", "False", "(4294967296, 4294967296, 0)", 0), "overflows"},
      {npy("'<f4'", "False", "(4611686018427387903,)", 8), "overflows"},
      {npy("'<f4'", "False", "(1000000000000,)", 8),
       "f32 [1000000000000] needs 4000000000000 bytes"},
      {npy("'<u8'", "False", "(2,)", 4), "f: header: dtype \"<u8\" is not supported"},
      {npy("'|O'", "False", "(2,)", 4), "f: header: dtype \"|O\" is not supported"},
      {npy("''", "False", "(2,)", 4), "f: header: dtype \"\" is not supported"},
      {npy("'!f4'", "False", "(2,)", 4), "f: header: dtype \"!f4\" is not supported"},
      {npy("[('a', '<f4')]", "False", "(2,)", 4), "f: header: structured arrays are not supported"},
      {npy("'|b1'", "False", "(2,)", 1) + '\2', "f: byte 69 is not a bool"},
  };
  for (const Case& c : cases) {
    const std::string message = npy_error(c.file);
    EXPECT_NE(message.find(c.message), std::string::npos)
        << "message: " << message << "\nwanted: " << c.message;
  }
  EXPECT_ERROR(load_npy("/no/such/file"), "/no/such/file: cannot open: No such file");
}

TEST(Npy, RefusesToWriteWhatNumPyLacks) {
  const TempFolder folder;
  EXPECT_ERROR(save_npy(folder / "x.npy", Tensor({2}, bf16)),
               "x.npy: it is bf16, which NumPy does not have: convert it, .to(f32)");
  EXPECT_ERROR(save_npy(folder / "x.npy", Tensor()), "x.npy: it is undefined");
  EXPECT_ERROR(save_npz(folder / "x.npz", {{"a", Tensor({2}, bf16)}}), "x.npz: \"a\" is bf16");
  EXPECT_ERROR(save_npz(folder / "x.npz", {{"\xff", Tensor({2}, f32)}}), "is not UTF-8");
  const Tensor x({1}, f32);
  EXPECT_ERROR(save_npz(folder / "x.npz", {{"a", x}, {"a", x}}), "x.npz: duplicate name \"a\"");
  EXPECT_ERROR(save_npz(folder / "x.npz", {{std::string(70000, 'n'), x}}),
               "names must have fewer than 65535 bytes, got 70004");
  EXPECT_EQ(folder.count(), 0u);
}

TEST(Npy, SurvivesDamage) {
  const auto parse = [](std::span<const std::byte> file) { parse_npy(file, "f"); };
  test::survive_damage(slurp(data + "numpy_f4.npy"), "{}':(, )", parse);
  test::refuse_truncation(slurp(data + "numpy_big_endian_fortran.npy"), parse);
}

// ---- .npz

void expect_numpys(const StateDict& arrays, size_t count) {
  EXPECT_EQ(arrays.size(), count);
  const auto values = [&](const char* name) { return to_vector(arrays.at(name)); };
  for (const char* name : {"f8", "f4", "f2"})
    EXPECT_EQ(values(name), (Numbers{-1.5, -0.5, 0.5, 1.5, 2.5, 3.5})) << name;
  for (const char* name : {"i8", "i4", "u1"})
    EXPECT_EQ(values(name), (Numbers{0, 1, 2, 3, 4, 5})) << name;
  EXPECT_EQ(values("b1"), (Numbers{0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(values("scalar"), (Numbers{-7}));
  EXPECT_EQ(arrays.at("scalar").shape(), Shape());
  EXPECT_EQ(arrays.at("empty").shape(), Shape({0, 3}));
  EXPECT_EQ(arrays.at("line").shape(), Shape({1}));
  const Tensor& f = arrays.at("fortran");
  EXPECT_EQ(f.shape(), Shape({2, 3, 4}));
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(f.at(i), double(i));
}

TEST(Npz, ReadsNumPys) {
  expect_numpys(load_npz(data + "numpy_stored.npz"), 11);
#ifdef MIXTAPE_ZLIB
  const auto arrays = load_npz(data + "numpy_deflated.npz");
  expect_numpys(arrays, 12);
  EXPECT_EQ(arrays.at("zeros").shape(), Shape({50, 100}));
  for (const double v : to_vector(arrays.at("zeros"))) ASSERT_EQ(v, 0);
#else
  EXPECT_ERROR(load_npz(data + "numpy_deflated.npz"),
               "numpy_deflated.npz: \"f8.npy\" is compressed, and this build has no zlib");
#endif
}

TEST(Npz, RoundTrips) {
  const TempFolder folder;
  StateDict tensors;
  for (const DType t : all_dtypes) {
    const std::string name(mixtape::name(t));
    tensors.emplace_back(name, from({0, 1, 1, 0, 1, 1}, {2, 3}, t));
    tensors.emplace_back("empty/" + name, Tensor({3, 0}, t));
  }
  tensors.emplace_back("gr\u00f6\u00dfe", from({-1.5, 65504, 1e-7, INFINITY}, {4}, f16));
  const Tensor big({300, 301}, i32);
  for (int64_t i = 0; i < big.numel(); ++i) big.data<int32_t>()[i] = int32_t(i);
  tensors.emplace_back("turned", big.with_layout(transpose(big.layout(), 0, 1)));
  save_npz(folder / "all.npz", tensors);
  const auto back = load_npz(folder / "all.npz");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, t] : tensors) {
    EXPECT_EQ(back.at(name).dtype(), t.dtype()) << name;
    EXPECT_EQ(back.at(name).shape(), t.shape()) << name;
    EXPECT_EQ(to_vector(back.at(name)), to_vector(t)) << name;
  }
  save_npz(folder / "none.npz", {});
  EXPECT_TRUE(load_npz(folder / "none.npz").empty());
  EXPECT_EQ(folder.count(), 2u);
}

TEST(Npz, ExchangesWithPython) {
  if (!test::python("import numpy"))
    GTEST_SKIP() << "needs Python with numpy (MIXTAPE_PYTHON names the interpreter)";
  const TempFolder folder;
  save_npz(folder / "ours.npz", {{"a", from({1, 2, 3, 4, 5, 6}, {2, 3})},
                                 {"gr\u00f6\u00dfe", from({-7}, {}, i64)},
                                 {"b", from({1, 0}, {2}, boolean)}});
  EXPECT_TRUE(test::python(R"(
import sys, zipfile, numpy
path = sys.argv[1] + "/ours.npz"
assert zipfile.ZipFile(path).testzip() is None
f = numpy.load(path)
assert sorted(f.files) == ["a", "b", "gr\u00f6\u00dfe"], f.files
assert f["a"].tolist() == [[1, 2, 3], [4, 5, 6]] and f["a"].dtype == "float32"
assert f["gr\u00f6\u00dfe"].tolist() == -7 and f["b"].tolist() == [True, False])",
                           folder.path()));
}

TEST(Zip, WritesMoreEntriesThanPlainZipHolds) {
  const TempFolder folder;
  AtomicFile file(folder / "many.zip");
  ZipWriter writer(file);
  const auto three = [](const ZipWriter::Sink& sink) { sink(std::as_bytes(std::span("abc", 3))); };
  for (int i = 0; i < 65536; ++i) writer.add(fmt::format("{}", i), three, 64);
  writer.finish();
  file.commit();
  const std::vector<ZipEntry> entries = read_zip_directory(InputFile(folder / "many.zip"));
  ASSERT_EQ(entries.size(), 65536u);
  for (const ZipEntry& e : entries) ASSERT_EQ(e.offset % 64, 0u);
  EXPECT_EQ(entries.back().name, "65535");
}

// Parts of an archive; optional values replace the correct ones.
struct Item {
  std::string name, content;
  uint64_t method = 0, flags = 0;
  std::optional<uint64_t> size = {}, packed = {}, offset = {};
  std::optional<uint32_t> crc = {};
  std::string extra = {}, packed_content = {};
};

struct Archive {
  std::vector<Item> items;
  bool zip64 = false;
  std::string comment = {};
  std::optional<uint64_t> count = {}, begin = {}, bytes = {};
};

uint32_t crc_of(const std::string& text) {  // the definition, bit by bit
  uint32_t c = ~0u;
  for (const char byte : text) {
    c ^= uint8_t(byte);
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ 0xedb88320 : c >> 1;
  }
  return ~c;
}

std::string zip(const Archive& a) {
  std::string file, directory;
  for (const Item& item : a.items) {
    const std::string& packed = item.method == 0 ? item.content : item.packed_content;
    const uint64_t crc = item.crc.value_or(crc_of(item.content)),
                   stored = item.packed.value_or(packed.size()),
                   size = item.size.value_or(item.content.size()),
                   offset = item.offset.value_or(file.size()), big = 0xffffffff;
    const auto common = [&](uint64_t p, uint64_t s, uint64_t extra) {
      return number(20, 2) + number(item.flags, 2) + number(item.method, 2) + number(0, 4) +
             number(crc, 4) + number(p, 4) + number(s, 4) + number(item.name.size(), 2) +
             number(extra, 2);
    };
    file += "PK\3\4" + common(stored, size, 0) + item.name + packed;
    std::string extra = item.extra;
    if (a.zip64)
      extra += number(9, 2) + number(1, 2) + "x" + number(1, 2) + number(24, 2) + number(size, 8) +
               number(stored, 8) + number(offset, 8);
    directory += "PK\1\2" + number(20, 2) +
                 (a.zip64 ? common(big, big, extra.size()) : common(stored, size, extra.size())) +
                 number(0, 2) + number(0, 4) + number(0, 4) + number(a.zip64 ? big : offset, 4) +
                 item.name + extra;
  }
  const uint64_t count = a.count.value_or(a.items.size()), begin = a.begin.value_or(file.size()),
                 bytes = a.bytes.value_or(directory.size());
  file += directory;
  if (a.zip64) {
    const uint64_t place = file.size();
    file += "PK\6\6" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) +
            number(count, 8) + number(count, 8) + number(bytes, 8) + number(begin, 8);
    file += "PK\6\7" + number(0, 4) + number(place, 8) + number(1, 4);
  }
  const uint64_t small = a.zip64 ? 0xffff : count, wide = a.zip64 ? 0xffffffff : 0;
  return file + "PK\5\6" + number(0, 4) + number(small, 2) + number(small, 2) +
         number(bytes | wide, 4) + number(begin | wide, 4) + number(a.comment.size(), 2) +
         a.comment;
}

const std::string two = npy("'|u1'", "False", "(2,)", 2);  // 70 bytes

TEST(Npz, ReadsZip64AndComments) {
  const std::string plain = zip({.items = {{"a.npy", two}, {"b.npy", two}}});
  const std::string wide = zip({.items = {{"a.npy", two}, {"b.npy", two}}, .zip64 = true});
  const std::string talks =
      zip({.items = {{"a.npy", two}}, .comment = std::string(300, 'c') + "PK\5\6"});
  EXPECT_EQ(npz_error(plain), "no error");
  EXPECT_EQ(npz_error(wide), "no error");
  EXPECT_EQ(npz_error(talks), "no error");
  EXPECT_EQ(parse_npz(std::as_bytes(std::span(wide)), "f").at("b").shape(), Shape({2}));
}

TEST(Npz, RefusesHostileArchives) {
  const std::string good = zip({.items = {{"a.npy", two}}});
  const uint64_t size = two.size(), directory = 30 + 5 + size;
  struct Case {
    std::string file, message;
  };
  std::string parts = good, other = good, no_locator = zip({.items = {}, .zip64 = true}),
              no_record = no_locator;
  parts[good.size() - 18] = 1;
  other[30] = 'b';
  no_locator[no_locator.size() - 42] = 'X';
  no_record[0] = 'X';
  const Case cases[] = {
      {"", "f: has 0 bytes, too few for a zip archive"},
      {std::string(100, 'x'), "f: not a zip archive, or truncated: no directory at its end"},
      {good.substr(0, good.size() - 1), "f: not a zip archive, or truncated"},
      {good + "x", "f: not a zip archive, or truncated"},
      {parts, "f: archives in several parts are not supported"},
      {zip({.items = {{"a.npy", two}}, .count = 2}), "f: the directory has 1 entries, not 2"},
      {zip({.items = {{"a.npy", two}}, .begin = directory + 1}),
       fmt::format("f: a directory of 51 bytes at byte {} does not end at byte {}", directory + 1,
                   directory + 51)},
      {zip({.items = {{"a.npy", two}}, .begin = directory - 1, .bytes = 52}),
       fmt::format("f: no directory entry at byte {}", directory - 1)},
      {zip({.items = {{"a.npy", two}}, .begin = 4000000000}), "does not end at byte"},
      {no_locator, "f: no zip64 locator at byte 56"},
      {no_record, "f: no zip64 end record at byte 0"},
      {zip({.items = {}, .zip64 = true}).substr(60), "f: no room for its zip64 records"},
      {zip({.items = {{"a.npy", two}}, .zip64 = true, .begin = UINT64_MAX - 3}),
       "f: a directory of 84 bytes at byte 18446744073709551612 does not end"},
      {zip({.items = {{"a.npy", two, 0, 1}}}), "f: \"a.npy\": is encrypted"},
      {zip({.items = {{"a.npy", two, 12}}}),
       "f: \"a.npy\": compression method 12 is not supported"},
      {zip({.items = {{.name = "a.npy", .content = two, .size = size + 1}}}),
       fmt::format("f: \"a.npy\": stores {} bytes as {}", size + 1, size)},
      {zip({.items = {{.name = "a.npy", .content = two, .offset = directory}}}),
       fmt::format("f: \"a.npy\": byte {} is out of range", directory)},
      {zip({.items = {{.name = "a.npy", .content = two, .offset = 1}}}),
       "f: \"a.npy\": no entry at byte 1"},
      {zip({.items = {{.name = "a.npy", .content = two, .size = size + 1, .packed = size + 1}}}),
       fmt::format("f: \"a.npy\": bytes 35 to {} are out of range", directory + 1)},
      {zip({.items = {{.name = "a.npy", .content = two, .extra = number(1, 2) + number(9, 2)}}}),
       "f: \"a.npy\": an extra field is too long"},
      {zip({.items = {{.name = "a.npy",
                       .content = two,
                       .size = 0xffffffff,
                       .extra = number(1, 2) + number(0, 2)}}}),
       "f: \"a.npy\": its zip64 field is too short"},
      {other, "f: \"a.npy\": the entry at byte 0 does not match the directory"},
      {zip({.items = {{"a.npy", two}, {.name = "a.npy", .content = two, .offset = 0}}}),
       "f: \"a.npy\" overlaps another at byte 0"},
      {zip({.items = {{"a.npy", two}, {"a.npy", two}}}), "f: \"a.npy\": duplicate entry"},
      {zip({.items = {{"a.txt", two}}}), "f: \"a.txt\": is not a .npy file"},
      {zip({.items = {{"", two}}}), "f: \"\": is not a .npy file"},
      {zip({.items = {{.name = "a.npy", .content = two, .crc = 1}}}),
       fmt::format("f: \"a.npy\": its checksum is {:08x}, not 00000001", crc_of(two))},
      {zip({.items = {{"a.npy", two + "x"}}}), "f: \"a.npy\": u8 [2] needs 2 bytes, but from byte"},
      {zip({.items = {{"a.npy", ""}}}), "f: \"a.npy\": has 0 bytes, too few for a .npy file"},
  };
  EXPECT_EQ(npz_error(good), "no error");
  for (const Case& c : cases) {
    const std::string message = npz_error(c.file);
    EXPECT_NE(message.find(c.message), std::string::npos)
        << "message: " << message << "\nwanted: " << c.message;
  }
  EXPECT_ERROR(load_npz("/no/such/file"), "/no/such/file: cannot open: No such file");
}

#ifdef MIXTAPE_ZLIB
using test::deflated;

TEST(Npz, RefusesLiesAboutCompression) {
  const auto packed = [](const std::string& content, const std::string& bytes,
                         std::optional<uint64_t> size = {}) {
    return zip({.items = {{.name = "a.npy",
                           .content = content,
                           .method = 8,
                           .size = size,
                           .packed_content = bytes}}});
  };
  const std::string zeros = npy("'|u1'", "False", "(300000,)", 300000), bytes = deflated(zeros);
  EXPECT_EQ(npz_error(packed(zeros, bytes)), "no error") << "as well packed as can be";
  EXPECT_EQ(
      npz_error(packed(two, deflated(two), 1u << 30)),
      fmt::format("f: \"a.npy\": {} bytes cannot unpack to 1073741824", deflated(two).size()));
  EXPECT_EQ(npz_error(packed(zeros, deflated(two), zeros.size() / 100)).substr(0, 20),
            "f: \"a.npy\": u8 [2] n");
  EXPECT_EQ(npz_error(packed(two, bytes)),
            "f: \"a.npy\": a header of 63 bytes does not fit a file of 70");
  EXPECT_EQ(npz_error(packed(zeros, bytes.substr(0, bytes.size() - 4))).substr(0, 22),
            "f: \"a.npy\" unpacks to ");
  EXPECT_EQ(npz_error(packed(two, deflated(two) + "x")),
            fmt::format("f: \"a.npy\": its {} packed bytes do not end with the {} unpacked ones",
                        deflated(two).size() + 1, two.size()));
  EXPECT_EQ(npz_error(packed(two, deflated(two + "x"))).substr(0, 16), "f: \"a.npy\": its ");
  EXPECT_EQ(npz_error(packed(two, deflated(two).substr(0, deflated(two).size() - 1))).substr(0, 12),
            "f: \"a.npy\": ");
  const std::string whole = packed(zeros, bytes);
  EXPECT_ERROR(
      parse_npz(std::as_bytes(std::span(whole)), "f", 100'000),
      fmt::format("f: needs {} bytes of memory, more than the 100000 allowed", zeros.size()));
  std::string wrong = deflated(two);
  wrong[0] = 7;  // an invalid block type
  EXPECT_EQ(npz_error(packed(two, wrong)).substr(0, 34), "f: \"a.npy\": bad data near byte 36:");
}
#endif

TEST(Npz, SurvivesDamage) {
  const auto parse = [](std::span<const std::byte> file) { parse_npz(file, "f"); };
  for (const std::string name : {"numpy_stored.npz", "numpy_deflated.npz"}) {
#ifndef MIXTAPE_ZLIB
    if (name == "numpy_deflated.npz") continue;
#endif
    const std::string valid = slurp(data + name);
    test::survive_damage(valid, "", parse);
    for (size_t n = 0; n < valid.size(); n += 7)
      EXPECT_NE(npz_error(valid.substr(0, n)), "no error") << name << ' ' << n;
  }
  test::survive_damage(zip({.items = {{"a.npy", two}}, .zip64 = true}), "", parse);
}

}  // namespace npy_test
}  // namespace mixtape::io
