// File formats: what is written reads back, and nothing that a file claims is believed.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/check.h"
#include "core/format.h"
#include "io/crc.h"
#include "io/file.h"
#include "io/jsonl.h"
#include "io/safetensors.h"
#include "io/svg.h"
#include "io/text.h"
#include "tests/support/damage.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

#ifdef MIXTAPE_ZLIB
#include <zlib.h>
#endif

namespace mixtape::io {
namespace io_test {

using test::slurp;
using test::spit;
using test::TempFolder;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// ---- files

TEST(AtomicFile, AppearsOnCommitOnly) {
  const TempFolder folder;
  const std::string path = folder / "a.txt";
  spit(path, "old");
  {
    AtomicFile file(path);
    file.write("new, unfinished");
    EXPECT_EQ(slurp(path), "old");
  }
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(folder.count(), 1u);  // the temporary file is gone

  AtomicFile file(path);
  file.write("ne");
  file.write("w");
  file.commit();
  EXPECT_EQ(slurp(path), "new");
  EXPECT_EQ(folder.count(), 1u);
}

TEST(AtomicFile, KeepsPermissionsAndLinks) {
  const TempFolder folder;
  const std::string path = folder / "secret", link = folder / "latest";
  write_file(path, "old");
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  std::filesystem::create_symlink("secret", link);
  write_file(link, "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(slurp(path), "new");
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_read);
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  write_file(folder / "dangling", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "dangling"));
  EXPECT_EQ(slurp(folder / "nowhere"), "new");
}

TEST(AtomicFile, NamesFileAndReason) {
  const TempFolder folder;
  EXPECT_ERROR(AtomicFile(folder / "no/such/file"),
               "no/such/file: cannot create a file beside it: No such file");
  std::filesystem::create_directory(folder / "taken");
  EXPECT_ERROR(AtomicFile(folder / "taken"), "taken: not a regular file");
  AtomicFile file(folder / "late");
  std::filesystem::create_directory(folder / "late");
  EXPECT_ERROR(file.commit(), "late: cannot replace: Is a directory");
}

// Neither a pipe nor, for who may, /dev/null.
TEST(AtomicFile, ReplacesNothingButFiles) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(write_file(folder / "pipe", "x"), "pipe: not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.count(), 1u);
}

// Of a process of the same number, in another container.
TEST(AtomicFile, LeavesWhatAKilledProcessLeft) {
  const TempFolder folder;
  std::string left;
  {
    const AtomicFile first(folder / "a");
    left = std::filesystem::directory_iterator(folder.path())->path().string();
  }
  const size_t number = left.rfind('-') + 1;
  for (int next = 1; next < 4; ++next)
    spit(left.substr(0, number) + std::to_string(std::stoi(left.substr(number)) + next) + ".tmp",
         "half");
  write_file(folder / "a", "whole");
  EXPECT_EQ(slurp(folder / "a"), "whole");
  EXPECT_EQ(folder.count(), 4u);
}

// What a daemon prints, whose standard streams are closed, is no part of a file.
TEST(Files, AreNoStandardStreams) {
  const TempFolder folder;
  const int input = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);
  std::vector<bool> free;
  const auto look = [&] { free.push_back(::fcntl(STDIN_FILENO, F_GETFD) < 0); };
  {
    AtomicFile file(folder / "a");
    look();
    file.commit();
    const AppendFile more(folder / "a");
    look();
    const InputFile back(folder / "a");
    look();
  }
  ::dup2(input, STDIN_FILENO);
  ::close(input);
  EXPECT_EQ(free, std::vector<bool>(3, true));
}

TEST(AtomicFile, FailedWriteKeepsTheOldFile) {
  const TempFolder folder;
  const std::string path = folder / "net.safetensors";
  save(path, {{"a", from({1, 2}, {2})}});
  const std::string before = slurp(path);
  EXPECT_ERROR(save(path, {{"a", from({3}, {1})}, {"a", from({4}, {1})}}),
               "duplicate name \"a\"");
  EXPECT_EQ(slurp(path), before);

  // A disk that refuses after the first bytes, as a full one does.
  struct rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {64, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message =
      test::full_error([&] { save(path, {{"large", Tensor({4096}, f32)}}); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, ignored);
  EXPECT_NE(message.find("net.safetensors: cannot write: File too large"), std::string::npos)
      << message;
  EXPECT_EQ(slurp(path), before);
  EXPECT_EQ(folder.count(), 1u);
}

TEST(ReadFile, ChecksBeforeItAllocates) {
  const TempFolder folder;
  spit(folder / "ten", "0123456789");
  EXPECT_EQ(read_file(folder / "ten", 10).size(), 10u);
  EXPECT_ERROR(read_file(folder / "ten", 9), "ten: has 10 bytes, more than the 9 allowed");
  EXPECT_ERROR(read_file(folder / "none", 9), "none: cannot open: No such file");
  EXPECT_ERROR(read_file(folder.path(), 9), "not a regular file");
  std::byte room[4];
  EXPECT_ERROR(InputFile(folder / "ten").read(8, room), "ten: ends at byte 10, 2 bytes early");
  EXPECT_ERROR(InputBytes(bytes_of("0123456789"), "ten").read(8, room),
               "ten: ends at byte 10, 2 bytes early");
  EXPECT_ERROR(InputBytes({}, "none").read(UINT64_MAX, room),
               "none: ends at byte 0, 4 bytes early");
}

#ifdef MIXTAPE_ZLIB
std::string gzip(std::string_view text) {
  z_stream z = {};
  deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = uInt(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = uInt(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string unpacked(const std::string& path, uint64_t limit) {
  const auto bytes = read_file(path, limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ReadFile, UnpacksGzip) {
  const TempFolder folder;
  const std::string text(300'000, 'x'), packed = gzip(text);
  spit(folder / "x.gz", packed);
  EXPECT_EQ(unpacked(folder / "x.gz", 300'000), text);
  EXPECT_ERROR(read_file(folder / "x.gz", 299'999), "unpacks to more than the 299999 bytes");
  EXPECT_ERROR(read_file(folder / "x.gz", 65'536), "unpacks to more than the 65536 bytes");

  spit(folder / "two.gz", gzip("one, ") + gzip("two"));
  EXPECT_EQ(unpacked(folder / "two.gz", 1000), "one, two");
  spit(folder / "empty.gz", gzip(""));
  EXPECT_EQ(unpacked(folder / "empty.gz", 0), "");
}

TEST(ReadFile, RefusesDamagedGzip) {
  const TempFolder folder;
  const std::string packed = gzip("some text that is long enough to be cut");
  for (size_t n = 0; n < packed.size(); ++n) {
    spit(folder / "cut.gz", packed.substr(0, n));
    EXPECT_ERROR(read_file(folder / "cut.gz", 1000), "cut.gz: gzip data ends early");
  }
  std::string wrong = packed;
  wrong[wrong.size() - 6] ^= 1;  // in the checksum
  spit(folder / "sum.gz", wrong);
  EXPECT_ERROR(read_file(folder / "sum.gz", 1000), "bad gzip data near byte");
  spit(folder / "plain.gz", "not packed at all");
  EXPECT_ERROR(read_file(folder / "plain.gz", 1000), "bad gzip data near byte");
  spit(folder / "tail.gz", packed + "garbage");
  EXPECT_ERROR(read_file(folder / "tail.gz", 1000), "bad gzip data near byte");
}
#else
TEST(ReadFile, SaysThatItHasNoZlib) {
  const TempFolder folder;
  spit(folder / "x.gz", "anything");
  EXPECT_ERROR(read_file(folder / "x.gz", 1000), "this build has no zlib");
}
#endif

// ---- safetensors

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

  // Larger than one chunk of the copy.
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
  EXPECT_ERROR(save(folder / "x", {{"__metadata__", x}}), "duplicate or reserved name \"__metadata__\"");
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

// ---- shards

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
  EXPECT_ERROR(save_sharded(folder / "x.bin", {{"a", x}}),
               "the name must end in .safetensors");
  const std::string path = folder / "x.safetensors";
  EXPECT_ERROR(save_sharded(path, {{"a", x}}, {.max_bytes = 0}), "max_bytes must be > 0");
  EXPECT_ERROR(save_sharded(path, {{"a", x}, {"a", x}}, {.max_bytes = 4}),
               "duplicate name \"a\"");
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

// ---- text, JSON lines, SVG

TEST(Text, EscapesAndRepairs) {
  EXPECT_EQ(json_string("a\"\\\n\x01\x7f/"), R"("a\"\\\n\u0001\u007f/")");
  EXPECT_EQ(json_string("\u00e9\u20ac\U0001F600"), "\"\u00e9\u20ac\U0001F600\"");
  EXPECT_EQ(json_string("\xff|\xc3|\xc0\xaf|\xed\xa0\x80"),
            "\"\uFFFD|\uFFFD|\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD\"");
  EXPECT_EQ(json_string("\xf4\x90\x80\x80"), "\"\uFFFD\uFFFD\uFFFD\uFFFD\"");  // above U+10FFFF
  EXPECT_EQ(xml_text("<a & \"b\">\x01"), "&lt;a &amp; &quot;b&quot;&gt;\uFFFD");
  EXPECT_EQ(quote(std::string(79, 'a') + "\u00e9\u00e9"), '"' + std::string(79, 'a') + "\"...");
}

TEST(JsonLines, SpellsEveryKindOfValue) {
  EXPECT_EQ(json_object({}), "{}");
  EXPECT_EQ(json_object({{"step", int64_t{3}}, {"loss", 0.1}, {"tag", "a\"b"}, {"ok", true}}),
            R"({"step":3,"loss":0.1,"tag":"a\"b","ok":true})");
  EXPECT_EQ(json_object({{"a", NAN}, {"b", -INFINITY}, {"c", 1e-300}, {"d", INT64_MIN}}),
            R"({"a":null,"b":null,"c":1e-300,"d":-9223372036854775808})");
}

TEST(JsonLines, AppendsLinesAtOnce) {
  const TempFolder folder;
  {
    JsonLines log(folder / "log.jsonl");
    log.write({{"a", 1.0}});
    EXPECT_EQ(slurp(folder / "log.jsonl"), "{\"a\":1}\n");  // before it is closed
  }
  JsonLines(folder / "log.jsonl").write({{"a", 2.5}});
  EXPECT_EQ(slurp(folder / "log.jsonl"), "{\"a\":1}\n{\"a\":2.5}\n");

  spit(folder / "cut.jsonl", "{\"a\":");
  JsonLines(folder / "cut.jsonl").write({{"a", 3.0}});
  EXPECT_EQ(slurp(folder / "cut.jsonl"), "{\"a\":3}\n");
  spit(folder / "cut.jsonl", "{\"a\":1}\n{\"a\":");
  JsonLines(folder / "cut.jsonl").write({{"a", 3.5}});
  EXPECT_EQ(read_json_lines(folder / "cut.jsonl"),
            (std::vector<JsonFields>{{{"a", int64_t{1}}}, {{"a", 3.5}}}));
  EXPECT_ERROR(JsonLines(folder / "no/log"), "no/log: cannot open for appending: No such file");
}

// A disk that was full in the middle of a line, and is no more.
TEST(JsonLines, GoesOnAfterALineThatFailed) {
  const TempFolder folder;
  JsonLines log(folder / "log.jsonl");
  log.write({{"a", int64_t{1}}});
  struct rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {12, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = test::full_error([&] { log.write({{"a", int64_t{2}}}); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, ignored);
  EXPECT_NE(message.find("log.jsonl: cannot append: File too large"), std::string::npos) << message;
  log.write({{"a", int64_t{3}}});
  EXPECT_EQ(slurp(folder / "log.jsonl"), "{\"a\":1}\n{\"a\":3}\n");
}

TEST(JsonLines, MissesAFileThatWasRemoved) {
  const TempFolder folder;
  JsonLines log(folder / "log.jsonl");
  log.write({{"a", 1.0}});
  std::filesystem::remove(folder / "log.jsonl");
  EXPECT_ERROR(log.write({{"a", 2.0}}), "log.jsonl: cannot append: it was removed");
}

TEST(JsonLines, ReadsBackWhatWasWritten) {
  const TempFolder folder;
  const std::string file = folder / "log.jsonl";
  const JsonFields line = {{"a", 0.1}, {"b", int64_t{-3}}, {"c", "x\ny"}, {"d", true}};
  JsonLines(file).write(line);
  JsonLines(file).write({});
  spit(file, slurp(file) + "{\"a\":nu");
  EXPECT_EQ(read_json_lines(file), (std::vector<JsonFields>{line, {}}));
  const auto wrong = [&](const std::string& text) {
    spit(file, "{}\n" + text + "\n");
    return test::error([&] { read_json_lines(file); });
  };
  EXPECT_EQ(wrong("{\"a\":"), file + ": line 2: \"{\\\"a\\\":\" is not a JSON object");
  EXPECT_EQ(wrong("3"), file + ": line 2: \"3\" is not a JSON object");
  EXPECT_EQ(wrong("{\"a\":[1]}"), file + ": line 2: values must be numbers, strings or bools, got an array");
  spit(file, "{\"a\":null,\"b\":18446744073709551615}\n");
  EXPECT_TRUE(std::isnan(std::get<double>(read_json_lines(file)[0][0].second)));
  EXPECT_EQ(std::get<double>(read_json_lines(file)[0][1].second), 0x1p64);
}

// Whether every tag is closed in order and every quote and ampersand is as XML wants it.
bool well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t i = 0; i < xml.size(); ++i) {
    if (xml[i] == '&' && xml.find(';', i) == std::string::npos) return false;
    if (xml[i] != '<') continue;
    const size_t end = xml.find('>', i);
    if (end == std::string::npos) return false;
    const std::string tag = xml.substr(i + 1, end - i - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2) return false;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    i = end;
  }
  return open.empty();
}

std::string drawn(const Chart& chart) {
  const std::string svg = to_svg(chart);
  EXPECT_TRUE(well_formed(svg)) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  return svg;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Svg, DrawsSeriesWithRoundTicks) {
  const std::string svg =
      drawn({.title = "a < b & \"c\"",
             .x_label = "step",
             .y_label = "loss",
             .series = {{"one", {0, 50, 100}, {0.2, 0.71, 0.93}}, {"two", {0, 100}, {1, 0.5}}}});
  EXPECT_TRUE(has(svg, "a &lt; b &amp; &quot;c&quot;"));
  for (const char* label :
       {">20<", ">100<", ">0.2<", ">0.4<", ">1<", ">one<", ">two<", ">step<", ">loss<"})
    EXPECT_TRUE(has(svg, label)) << label;
  EXPECT_TRUE(has(svg, "prefers-color-scheme: dark"));
}

TEST(Svg, LeavesGapsForWhatIsNotFinite) {
  const std::string svg = drawn({.series = {{"s", {0, 1, 2, 3, 4}, {1, NAN, 2, INFINITY, 3}}}});
  const size_t d = svg.find("d=\"M");
  const std::string path = svg.substr(d, svg.find('"', d + 3) - d);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'M'), 3);  // three lone points
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 0);
}

TEST(Svg, LogAxisHasDecades) {
  const std::string svg =
      drawn({.series = {{"s", {0, 1, 2, 3}, {0.002, 0, -1, 30}}}, .log_y = true});
  for (const char* label : {">0.001<", ">0.1<", ">10<", ">100<"})
    EXPECT_TRUE(has(svg, label)) << label;
}

TEST(Svg, StandsExtremes) {
  const double big = std::numeric_limits<double>::max(),
               tiny = std::numeric_limits<double>::denorm_min();
  EXPECT_TRUE(has(drawn({}), "no data"));
  EXPECT_TRUE(has(drawn({.series = {{"s", {1}, {NAN}}}}), "no data"));
  for (const std::vector<double>& y : {std::vector<double>{5, 5},
                                       {0, 0},
                                       {-big, big},
                                       {big, big},
                                       {tiny, -tiny},
                                       {1e15, 1e15 + 1},
                                       {2, 2 * (1 + 2e-10)},
                                       {0, tiny}})
    for (const bool log : {false, true}) {
      drawn({.series = {{"s", {0, 1}, y}}, .log_y = log});
      drawn({.series = {{"s", y, {1, 2}}}, .log_y = log});
    }
  EXPECT_ERROR(to_svg({.series = {{"s", {1, 2}, {1}}}}), "series \"s\" has 2 x and 1 y");
}

TEST(Svg, LegendTakesTheRowsItNeeds) {
  Chart chart;
  for (int i = 0; i < 12; ++i)
    chart.series.push_back({fmt::format("a run with a long name {}", i), {0, 1}, {0, 1}});
  const std::string svg = drawn(chart);
  EXPECT_TRUE(has(svg, "height=\"454\"")) << svg;  // four rows, three to each
  EXPECT_TRUE(has(svg, "stroke-dasharray"));       // colours come again with dashes
  chart.series = {{std::string(500, 'x'), {0, 1}, {0, 1}}};
  EXPECT_FALSE(has(drawn(chart), std::string(100, 'x')));
  EXPECT_TRUE(has(drawn(chart), "xx\u2026<"));
}

TEST(Svg, DotsAndBothAxesLogarithmic) {
  const std::string svg =
      drawn({.series = {{"s", {1e-5, 0.01}, {2, 3}, true}}, .log_x = true, .log_y = true});
  for (const char* label : {">1e-5<", ">0.01<", ">2<", ">5<"})
    EXPECT_TRUE(has(svg, label)) << label << svg;
  EXPECT_TRUE(has(svg, "class=\"dots c0\""));
  EXPECT_FALSE(has(svg, "class=\"line c0\""));
}

TEST(Svg, HeatMapHasANumberPerCell) {
  const auto map = [](const HeatMap& m) {
    const std::string svg = to_svg(m);
    EXPECT_TRUE(well_formed(svg)) << svg;
    return svg;
  };
  const std::string svg = map({.title = "t",
                               .rows = {"a", "b"},
                               .columns = {"<", "a long name"},
                               .values = {{12, 0}, {3, 1}}});
  for (const char* part : {">12<", ">3<", ">&lt;<", "fill-opacity=\"1.000\"", "rotate(-90)"})
    EXPECT_TRUE(has(svg, part)) << part << svg;
  EXPECT_FALSE(has(svg, ">0<"));
  map({});
  map({.rows = {"a"}, .columns = {"b"}, .values = {{0}}});
  EXPECT_ERROR(to_svg(HeatMap{.rows = {"a"}}), "0 rows of values for 1 names");
  EXPECT_ERROR(to_svg(HeatMap{.rows = {"a"}, .values = {{1}}}), "a row of 1 values for 0 columns");
}

TEST(Crc, HasTheKnownAnswers) {
  const auto digits = std::as_bytes(std::span("123456789", 9));
  EXPECT_EQ(crc32(digits), 0xCBF43926u);
  EXPECT_EQ(crc32c(digits), 0xE3069283u);
  EXPECT_EQ(crc32c(digits.subspan(4), crc32c(digits.first(4))), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

}  // namespace io_test
}  // namespace mixtape::io
