#pragma once
// Files, read as hostile input and written so that a crash leaves the old file or the new one.
// Every Error names the file and what the system said.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/no_copy.h"

namespace mixtape::io {

// What readers of formats read: a file, or memory that stands for one.
class Source : NoCopy {
 public:
  virtual ~Source() = default;

  const std::string& name() const { return name_; }  // for errors
  uint64_t size() const { return size_; }
  // Fills `into` from byte `offset` on. Throws Error if the source ends before.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;

 protected:
  explicit Source(std::string name) : name_(std::move(name)) {}

  uint64_t size_ = 0;

 private:
  const std::string name_;
};

// An open regular file.
class InputFile final : public Source {
 public:
  explicit InputFile(std::string path);  // throws Error if it cannot be opened
  ~InputFile() override;
  void read(uint64_t offset, std::span<std::byte> into) const override;

 private:
  int fd_;
};

// Bytes that others own.
class InputBytes final : public Source {
 public:
  InputBytes(std::span<const std::byte> bytes, std::string name);
  void read(uint64_t offset, std::span<std::byte> into) const override;

 private:
  const std::span<const std::byte> bytes_;
};

// All bytes of a file; one whose name ends in .gz is unpacked. Throws Error beyond `limit` bytes,
// unpacked ones included, before they are allocated. (The limit is twice EMNIST, the largest of the
// data sets that are read as a whole.)
std::vector<std::byte> read_file(const std::string& path, uint64_t limit = uint64_t(1) << 30);

// A file that appears under its name only when complete: bytes go to a temporary file beside it,
// which commit() syncs and renames. Without commit() the temporary file is removed and the old
// file, if any, stays. What replaces a file has its permissions; a link stays one.
class AtomicFile : NoCopy {
 public:
  // Throws Error if the folder cannot be written, or what is there is no regular file.
  explicit AtomicFile(std::string path);
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Puts what was written on the disk. commit() then only renames: of several files that belong
  // together, all should be synced before one is renamed.
  void sync();
  void commit();

 private:
  std::string path_, temporary_;
  int fd_;  // until synced
};

// A file that grows: each append is one write(), unless the system takes only a part, so that those
// of several writers do not mix and a crash loses at most the last.
class AppendFile : NoCopy {
 public:
  explicit AppendFile(std::string path);  // made where there is none; throws Error
  ~AppendFile();

  // All of it or, if that throws, nothing. Throws Error also if the file was removed meanwhile.
  void append(std::string_view bytes);
  void cut_after_last(char end);  // what follows that byte is gone; all, if there is none

 private:
  std::string path_;
  int fd_;
};

// The whole of a small file at once, atomically.
void write_file(const std::string& path, std::string_view text);

}  // namespace mixtape::io
