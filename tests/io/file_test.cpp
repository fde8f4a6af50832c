// Files: what is written reads back, and a crash or a full disk leaves the old file.

#include "io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "core/format.h"
#include "io/safetensors.h"
#include "io/text.h"
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
  write_file(folder / "plain", "x");
  EXPECT_ERROR(AtomicFile(folder / "plain/file"),
               "cannot create a file beside it: Not a directory");
  std::filesystem::create_directory(folder / "taken");
  EXPECT_ERROR(AtomicFile(folder / "taken"), "taken: not a regular file");
  EXPECT_ERROR(AtomicFile(""), "a file to write needs a name");
  AtomicFile file(folder / "late");
  std::filesystem::create_directory(folder / "late");
  EXPECT_ERROR(file.commit(), "late: cannot replace: Is a directory");
}

// The system would end the name there, and take the file of the shorter name.
TEST(Files, HaveNoZeroBytesInTheirNames) {
  const TempFolder folder;
  spit(folder / "weights", "precious");
  std::filesystem::create_symlink("weights", folder / "latest");
  for (const std::string name : {"weights", "latest"}) {
    const std::string path = folder / name + std::string("\0.safetensors", 13);
    const std::string message =
        name + "\\u0000.safetensors\": a file's name cannot have zero bytes";
    EXPECT_ERROR(remove_abandoned(path), message);
    EXPECT_ERROR(write_file(path, "x"), message);
    EXPECT_ERROR(save(path, {{"a", from({1}, {1})}}), message);
    EXPECT_ERROR(save_sharded(path, {{"a", from({1}, {1})}}), message);
    EXPECT_ERROR(load(path), message);
    EXPECT_ERROR(AppendFile{path}, message);
    EXPECT_ERROR(absolute(path), message);
  }
  EXPECT_EQ(slurp(folder / "weights"), "precious");
  EXPECT_EQ(folder.count(), 2u);
}

TEST(AtomicFile, FollowsNoLoopOfLinks) {
  const TempFolder folder;
  std::filesystem::create_symlink("a", folder / "b");
  std::filesystem::create_symlink("b", folder / "a");
  EXPECT_ERROR(write_file(folder / "a", "x"), "a: leads through more than 40 symbolic links");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "a"));
  EXPECT_EQ(folder.count(), 2u);
}

// Pipes are not replaced, nor is /dev/null, even by root.
TEST(AtomicFile, ReplacesNothingButFiles) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(write_file(folder / "pipe", "x"), "pipe: not a regular file");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
  EXPECT_EQ(folder.count(), 1u);
}

std::vector<std::string> names_in(const TempFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

// The lock of a killed process is gone, in whatever container it ran.
TEST(AtomicFile, RemovesWhatAKilledProcessLeft) {
  const TempFolder folder;
  const auto kill_writer = [&](const char* name) {
    const pid_t child = ::fork();
    if (child == 0) {
      AtomicFile first(folder / name), second(folder / name);
      first.write("half");
      ::raise(SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
  };
  kill_writer("a");
  kill_writer("b");
  EXPECT_EQ(folder.count(), 4u);
  write_file(folder / "a", "whole");
  EXPECT_EQ(slurp(folder / "a"), "whole");
  remove_abandoned(folder / "b");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"a"});

  kill_writer("secret");  // may be read only, as the file that it would replace
  const std::string left = folder / names_in(folder)[1];
  std::filesystem::permissions(left, std::filesystem::perms::owner_read);
  EXPECT_EQ(AtomicFile::target_of_temporary(left), folder / "secret");
  EXPECT_EQ(AtomicFile::target_of_temporary(folder / "secret"), folder / "secret");
  remove_abandoned(folder / "secret");
  EXPECT_EQ(names_in(folder), std::vector<std::string>{"a"});
}

TEST(AtomicFile, LeavesWhatOthersWrite) {
  const TempFolder folder;
  AtomicFile first(folder / "a"), second(folder / "a");
  first.write("first");
  second.write("second");
  remove_abandoned(folder / "a");
  EXPECT_EQ(folder.count(), 2u);
  second.commit();
  first.commit();
  EXPECT_EQ(slurp(folder / "a"), "first");
  EXPECT_EQ(folder.count(), 1u);

  // Neither a folder nor a link of that name is followed or removed.
  const std::string temporary = folder / "a.1.mixtape-tmp";
  std::filesystem::create_symlink("a", temporary);
  std::filesystem::create_directory(folder / "a.2.mixtape-tmp");
  write_file(folder / "a", "third");
  EXPECT_EQ(slurp(folder / "a"), "third");
  EXPECT_TRUE(std::filesystem::is_symlink(temporary));
  EXPECT_EQ(folder.count(), 3u);
}

// A name of 255 bytes, the longest there is, leaves no room for a suffix.
TEST(AtomicFile, WritesTheLongestNames) {
  const TempFolder folder;
  for (const size_t bytes : {241, 242, 254, 255}) {
    const std::string path = folder / std::string(bytes, 'x');
    {
      AtomicFile first(path), second(path);
      EXPECT_EQ(folder.count(), 2u) << bytes;
      first.write("new");
      first.commit();
    }
    EXPECT_EQ(slurp(path), "new");
    const pid_t child = ::fork();
    if (child == 0) {
      const AtomicFile file(path);
      ::raise(SIGKILL);
    }
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(folder.count(), 2u);
    write_file(path, "newer");
    EXPECT_EQ(slurp(path), "newer");
    EXPECT_EQ(folder.count(), 1u);
    std::filesystem::remove(path);
  }
  EXPECT_ERROR(write_file(folder / std::string(256, 'x'), "x"), "File name too long");
  EXPECT_EQ(folder.count(), 0u);
}

// Readers unpack a file of that name.
TEST(Files, AreNotPackedWhenTheyAreWritten) {
  const TempFolder folder;
  for (const std::string name : {"a.txt.gz", "A.GZ"}) {
    const std::string message = name + ": a name that ends in .gz is of gzip data, which is not";
    EXPECT_ERROR(write_file(folder / name, "text"), message);
    EXPECT_ERROR(AppendFile(folder / name), message);
  }
  EXPECT_EQ(folder.count(), 0u);
  write_file(folder / "a.txt.gz", "\x1f\x8b and so on");  // that a caller packed
  EXPECT_EQ(folder.count(), 1u);
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

TEST(MemoryLimit, FollowsTheFile) {
  constexpr uint64_t mega = 1'000'000;
  EXPECT_EQ(memory_limit(10 * mega, 0), 200 * mega);
  EXPECT_EQ(memory_limit(10, 0), uint64_t(32) << 20) << "enough for a picture";
  EXPECT_EQ(memory_limit(10 * mega, 5), 5u);
  check_memory(200 * mega, "f", 10 * mega, 0);
  EXPECT_ERROR(check_memory(200 * mega + 1, "f", 10 * mega, 0),
               "f: needs 200000001 bytes of memory, more than the 200000000 allowed for a file of "
               "10000000 (raise max_memory to at least 200000001)");
  EXPECT_ERROR(check_memory(6, "f", 10, 5), "more than the 5 allowed for a file of 10");
  const TempFolder folder;
  spit(folder / "sparse", "");
  std::filesystem::resize_file(folder / "sparse", (uint64_t(1) << 30) + 1);
  EXPECT_ERROR(read_whole(folder / "sparse", 0, 1),
               "sparse: has 1073741825 bytes, more than the 1073741824 allowed (raise max_memory)");
}

#ifdef MIXTAPE_ZLIB
std::string unpacked(const std::string& path, uint64_t limit) {
  return std::string(as_text(read_file(path, limit)));
}

TEST(ReadFile, UnpacksGzip) {
  const TempFolder folder;
  const std::string text(300'000, 'x'), packed = test::gzip(text);
  spit(folder / "x.gz", packed);
  EXPECT_EQ(unpacked(folder / "x.gz", 300'000), text);
  spit(folder / "X.GZ", packed);
  EXPECT_EQ(unpacked(folder / "X.GZ", 300'000), text);
  EXPECT_ERROR(read_file(folder / "x.gz", 299'999), "unpacks to more than the 299999 bytes");
  EXPECT_ERROR(read_file(folder / "x.gz", 65'536), "unpacks to more than the 65536 bytes");

  EXPECT_EQ(read_whole(folder / "x.gz", 0, 9).size(), 300'000u);
  EXPECT_ERROR(read_whole(folder / "x.gz", 600'000, 2),
               "x.gz: unpacks to more than the 200000 bytes allowed (raise max_memory)");

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
