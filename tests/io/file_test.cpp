// Files: what is written reads back, and a crash or a full disk leaves the old file.

#include "io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "core/format.h"
#include "io/safetensors.h"
#include "tests/support/deflate.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"

namespace mixtape::io {
namespace file_test {

using test::slurp;
using test::spit;
using test::TempFolder;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

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

// Pipes are not replaced, nor is /dev/null, even by root.
TEST(AtomicFile, ReplacesNothingButFiles) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(write_file(folder / "pipe", "x"), "pipe: not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.count(), 1u);
}

// A process with the same pid in another container may have left temporary files.
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

// A daemon with closed standard streams must not print into a file.
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
               "duplicate or reserved name \"a\"");
  EXPECT_EQ(slurp(path), before);

  // The limit makes writes fail after the first bytes, as on a full disk.
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
std::string unpacked(const std::string& path, uint64_t limit) {
  const auto bytes = read_file(path, limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ReadFile, UnpacksGzip) {
  const TempFolder folder;
  const std::string text(300'000, 'x'), packed = test::gzip(text);
  spit(folder / "x.gz", packed);
  EXPECT_EQ(unpacked(folder / "x.gz", 300'000), text);
  EXPECT_ERROR(read_file(folder / "x.gz", 299'999), "unpacks to more than the 299999 bytes");
  EXPECT_ERROR(read_file(folder / "x.gz", 65'536), "unpacks to more than the 65536 bytes");

  spit(folder / "two.gz", test::gzip("one, ") + test::gzip("two"));
  EXPECT_EQ(unpacked(folder / "two.gz", 1000), "one, two");
  spit(folder / "empty.gz", test::gzip(""));
  EXPECT_EQ(unpacked(folder / "empty.gz", 0), "");
}

TEST(ReadFile, RefusesDamagedGzip) {
  const TempFolder folder;
  const std::string packed = test::gzip("some text that is long enough to be cut");
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

}  // namespace file_test
}  // namespace mixtape::io
