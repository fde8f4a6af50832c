#pragma once
// Zip archives for .npz and .pt files: stored or deflated entries, not encrypted or split. Entries
// that overlap, or claim more bytes than deflate can make, are rejected.

#include <functional>
#include <memory>

#include "io/file.h"

namespace mixtape::io {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0, packed = 0;  // bytes in the archive
  uint64_t size = 0;                // unpacked bytes
  uint32_t crc = 0;
  bool deflated = false;
};

// Reads the directory. Throws Error that names the source and the byte if the archive is invalid.
std::vector<ZipEntry> read_zip_directory(const Source& archive);

// Reads the content of an entry sequentially.
class ZipReader {
 public:
  ZipReader(const Source& archive, const ZipEntry& entry);
  ~ZipReader();
  void read(std::span<std::byte> into);  // throws Error if the entry is shorter
  void finish() const;  // throws Error unless all was read and the checksum matches

 private:
  struct Inflater;
  const Source& archive_;
  const ZipEntry entry_;
  uint64_t made_ = 0;
  uint32_t crc_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

// Writes stored entries; finish() ends the archive. zip64 records are written only if sizes need
// them.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}
  // Calls `content` twice, to compute the checksum and to write; it passes its bytes to the sink.
  using Sink = std::function<void(std::span<const std::byte>)>;
  // Adds an entry whose content begins at a multiple of `alignment` bytes.
  void add(const std::string& name, const std::function<void(const Sink&)>& content,
           uint64_t alignment = 1);
  void finish();

 private:
  struct Written {
    std::string name;
    uint32_t crc;
    uint64_t size, offset;
    std::string common() const;  // part of both headers
    std::string zip64(bool in_directory) const;
  };
  void write(const std::string& bytes);

  AtomicFile& file_;
  uint64_t at_ = 0;
  std::vector<Written> entries_;
};

}  // namespace mixtape::io
