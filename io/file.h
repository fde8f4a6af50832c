#pragma once
// Files, read as hostile input and written so that a crash leaves either the old or the new file.
// Every Error names the file and the system's reason.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/no_copy.h"

namespace mixtape::io {

// The input of format readers: a file or memory.
class Source : NoCopy {
 public:
  virtual ~Source() = default;

  const std::string& name() const { return name_; }  // for errors
  uint64_t size() const { return size_; }            // in bytes
  // Fills `into` from byte `offset` on. Throws Error if the source is too short.
  virtual void read(uint64_t offset, std::span<std::byte> into) const = 0;
  std::string head(uint64_t most) const;  // the first bytes, at most so many

 protected:
  explicit Source(std::string name) : name_(std::move(name)) {}

  uint64_t size_ = 0;

 private:
  const std::string name_;
};

// True if the name has this ending, such as ".gz", in upper or lower case.
bool has_extension(std::string_view path, std::string_view extension);

// Throws Error if the path has zero bytes: the system would end it at the first, and open or remove
// another file.
void check_path(const std::string& path);

// The absolute path, which chdir() does not change; "" stays "".
std::string absolute(const std::string& path);

// The path to which symbolic links lead from this one, whether or not there is a file. Throws Error
// if they form a loop.
std::string target_of_links(const std::string& link);

// An open regular file.
class InputFile final : public Source {
 public:
  explicit InputFile(std::string path);  // throws Error if it cannot be opened
  ~InputFile() override;
  void read(uint64_t offset, std::span<std::byte> into) const override;

 private:
  int fd_;
};

// Bytes in memory, which must outlive it.
class InputBytes final : public Source {
 public:
  InputBytes(std::span<const std::byte> bytes, std::string name);  // `name` is for errors
  void read(uint64_t offset, std::span<std::byte> into) const override;

 private:
  const std::span<const std::byte> bytes_;
};

// All bytes of a file, unpacked if its name ends in .gz. Throws Error before allocating more than
// `limit` bytes. (The default is twice the size of EMNIST, the largest data set read as a whole.)
std::vector<std::byte> read_file(const std::string& path, uint64_t limit = uint64_t(1) << 30);

// Readers that unpack, or whose numbers take more space than their text, have an option max_memory:
// the most bytes that they may take. The default (0) is 20 times the file's size, and at least
// `least`. The one for images suffices for photos of 24 million pixels and screenshots of 7680 by
// 4320 with alpha, however well these are compressed.
inline constexpr uint64_t least_for_image = uint64_t(128) << 20;
// The limit for a file of `file_bytes`.
uint64_t memory_limit(uint64_t file_bytes, uint64_t max_memory,
                      uint64_t least = uint64_t(32) << 20);
// If `needed` bytes exceed the limit, throws Error that names the file, the limit and the
// max_memory to give.
void check_memory(uint64_t needed, const std::string& file, uint64_t file_bytes,
                  uint64_t max_memory);
// read_file() for such a reader, which makes `growth` bytes from each byte of the content.
std::vector<std::byte> read_whole(const std::string& path, uint64_t max_memory, uint64_t growth);

// A file that appears under its name only when complete: data go to a temporary file beside it,
// which commit() syncs and renames. Without commit(), the temporary file is removed and an old file
// stays. Keeps symbolic links and the permissions of the file that it replaces. If a process is
// killed, the next writer of the same file removes its temporary file.
class AtomicFile : NoCopy {
 public:
  // Throws Error if the folder is not writable, if the path exists and is not a regular file, or if
  // its links form a loop.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);  // appends; throws Error if the system fails
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }  // the same
  void commit();  // gives the file its name, or throws Error

  // The path of the file for which `path` is a temporary file (its beginning, if with the suffix it
  // was too long); `path` itself if it is not one.
  static std::string target_of_temporary(const std::string& path);

 private:
  std::string path_, temporary_;
  int fd_ = -1;  // locked while the temporary file is in use
};

// Removes the temporary files that killed processes left when they wrote a file of this path.
void remove_abandoned(const std::string& path);

// A file opened for appending. Each append is one write() (unless the system accepts only a part),
// so several writers do not interleave, and a crash loses at most the last append.
class AppendFile : NoCopy {
 public:
  // Creates the file if needed. Throws Error if it cannot, or if the name ends in .gz.
  explicit AppendFile(std::string path);
  ~AppendFile();

  // Appends all bytes, or none if it throws Error, which it also does if the file was removed.
  void append(std::string_view bytes);
  void cut_after_last(char end);  // truncates the file after the last such byte, or to 0

 private:
  std::string path_;
  int fd_ = -1;
};

// Writes a small file atomically. Throws Error if its name ends in .gz, unless these are gzip data.
void write_file(const std::string& path, std::string_view text);

}  // namespace mixtape::io
