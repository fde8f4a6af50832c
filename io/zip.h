#pragma once
// Zip archives as .npz files are: entries that are stored or deflated, nothing encrypted or split.
// The central directory at the end says where each is; entries may not overlap, and none may claim
// to unpack to more than deflate can make of its bytes.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/file.h"

namespace mixtape::io {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0, packed = 0;  // bytes of the archive
  uint64_t size = 0;                // bytes that it holds
  uint32_t crc = 0;
  bool deflated = false;
};

// Throws Error that names the source and the byte.
std::vector<ZipEntry> read_zip_directory(const Source& archive);

// What an entry holds, from front to back.
class ZipReader {
 public:
  ZipReader(const Source& archive, const ZipEntry& entry);
  ~ZipReader();
  void read(std::span<std::byte> into);  // throws Error if the entry ends before
  void finish() const;  // throws Error unless all was read and the checksum is right

 private:
  struct Inflater;
  const Source& archive_;
  const ZipEntry entry_;
  uint64_t made_ = 0;
  uint32_t crc_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

// Writes stored entries, one after the other, then finish(). Sizes are those of plain zip: throws
// Error from 4 GiB or 65535 entries on.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  // `content` is called twice, with a function that takes runs of bytes: to sum, and to write them.
  using Sink = std::function<void(std::span<const std::byte>)>;
  void add(const std::string& name, const std::function<void(const Sink&)>& content);
  void finish();

 private:
  struct Written {
    std::string name;
    uint32_t crc, size, offset;
    std::string common() const;  // of both its headers
  };
  void write(const std::string& bytes);

  AtomicFile& file_;
  uint64_t at_ = 0;
  std::vector<Written> entries_;
};

}  // namespace mixtape::io
