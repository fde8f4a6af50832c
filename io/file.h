#pragma once
// Files, read as hostile input and written so that a crash leaves the old file or the new one.
// Every Error names the file and what the system said.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mixtape::io {

// An open regular file.
class InputFile {
 public:
  explicit InputFile(std::string path);  // throws Error if it cannot be opened
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  // Fills `into` from byte `offset` on. Throws Error if the file ends before.
  void read(uint64_t offset, std::span<std::byte> into) const;

 private:
  std::string path_;
  int fd_;
  uint64_t size_ = 0;
};

// All bytes of a file; one whose name ends in .gz is unpacked. Throws Error beyond `limit` bytes,
// unpacked ones included, before they are allocated.
std::vector<std::byte> read_file(const std::string& path, uint64_t limit);

// A file that appears under its name only when complete: bytes go to a temporary file beside it,
// which commit() syncs and renames. Without commit() the temporary file is removed and the old
// file, if any, stays.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);  // throws Error if the folder cannot be written
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::string path_, temporary_;
  int fd_;
};

// The whole of a small file at once, atomically.
void write_file(const std::string& path, std::string_view text);

}  // namespace mixtape::io
