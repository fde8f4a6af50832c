// Fields of records are read by their offset and width, little-endian.

#include "io/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "io/crc.h"
#include "io/formats.h"
#include "io/text.h"

#ifdef MIXTAPE_ZLIB
#include <zlib.h>
#endif

namespace mixtape::io {
namespace {

constexpr uint32_t local_sign = 0x04034b50, entry_sign = 0x02014b50, end_sign = 0x06054b50,
                   end64_sign = 0x06064b50, locator_sign = 0x07064b50;
constexpr uint64_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                   locator_bytes = 20;
constexpr uint64_t none16 = 0xffff, none32 = 0xffffffff;  // mark that zip64 records have the value
constexpr uint64_t largest_directory = 100'000'000;
// The most bytes that deflate makes from one, since two bits can copy 258.
constexpr uint64_t max_inflation = 1032;

// A part of the archive in memory.
class Record {
 public:
  Record(const Source& archive, uint64_t offset, uint64_t size) : offset_(offset), bytes_(size) {
    archive.read(offset, bytes_);
  }
  uint64_t offset() const { return offset_; }
  uint64_t size() const { return bytes_.size(); }
  uint64_t number(uint64_t at, int width) const {
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at, size_t(width));
    return value;
  }
  std::string text(uint64_t at, uint64_t size) const {
    return {reinterpret_cast<const char*>(bytes_.data() + at), size};
  }

 private:
  uint64_t offset_;
  std::vector<std::byte> bytes_;
};

// Searches backwards for the end record, which a comment of any length may follow.
uint64_t find_end(const Record& tail, const Source& archive) {
  for (uint64_t at = tail.size() - end_bytes + 1; at-- > 0;)
    if (tail.number(at, 4) == end_sign && tail.number(at + 20, 2) == tail.size() - at - end_bytes)
      return at;
  const bool truncated = Record(archive, 0, 2).text(0, 2) == "PK";
  fail("{}: not a zip archive, or truncated: no directory at its end{}", archive.name(),
       truncated ? "" : but_is(archive));
}

struct Directory {
  uint64_t entries, offset, size;
};

Directory find_directory(const Source& archive) {
  const std::string& file = archive.name();
  check(archive.size() >= end_bytes, "{}: has {} bytes, too few for a zip archive", file,
        archive.size());
  const uint64_t reach = std::min(archive.size(), end_bytes + none16);
  const Record tail(archive, archive.size() - reach, reach);
  const uint64_t at = find_end(tail, archive);
  check(tail.number(at + 4, 2) == tail.number(at + 6, 2) && tail.number(at + 6, 2) == 0 &&
            tail.number(at + 8, 2) == tail.number(at + 10, 2),
        "{}: archives in several parts are not supported", file);
  Directory d{tail.number(at + 10, 2), tail.number(at + 16, 4), tail.number(at + 12, 4)};
  uint64_t end = tail.offset() + at;
  const bool room = end >= locator_bytes + end64_bytes;
  const Record locator(archive, room ? end - locator_bytes : 0, locator_bytes);
  const bool found = room && locator.number(0, 4) == locator_sign;  // PyTorch always writes one
  if (found || d.entries == none16 || d.offset == none32 || d.size == none32) {
    check(room, "{}: no room for its zip64 records", file);
    check(found, "{}: no zip64 locator at byte {}", file, end - locator_bytes);
    const uint64_t position = locator.number(8, 8);
    check(position <= end - locator_bytes - end64_bytes,
          "{}: the zip64 end record at byte {} is out of range", file, position);
    const Record end64(archive, position, end64_bytes);
    check(end64.number(0, 4) == end64_sign, "{}: no zip64 end record at byte {}", file, position);
    d = {end64.number(32, 8), end64.number(48, 8), end64.number(40, 8)};
    end = position;
  }
  check(d.offset <= end && d.size == end - d.offset,
        "{}: a directory of {} bytes at byte {} does not end at byte {}", file, d.size, d.offset,
        end);
  check(d.size <= largest_directory, "{}: a directory of {} bytes is above the limit of {}", file,
        d.size, largest_directory);
  return d;
}

// Reads values that did not fit into 32 bits from the zip64 extra field, which lists them in this
// order.
void read_zip64(const Record& directory, uint64_t at, uint64_t end,
                std::span<uint64_t* const> values, const std::string& where) {
  while (at + 4 <= end) {
    const uint64_t kind = directory.number(at, 2), stop = at + 4 + directory.number(at + 2, 2);
    check(stop <= end, "{}: an extra field is too long", where);
    at += 4;
    for (uint64_t* v : values)
      if (kind == 1 && *v == none32) {
        check(at + 8 <= stop, "{}: its zip64 field is too short", where);
        *v = directory.number(at, 8);
        at += 8;
      }
    at = stop;
  }
}

// Sets `begin` to the offset of the entry's local header.
ZipEntry read_entry(const Source& archive, const Record& directory, uint64_t at, uint64_t names,
                    uint64_t extra, uint64_t data_end, uint64_t& begin) {
  const uint64_t flags = directory.number(at + 8, 2), method = directory.number(at + 10, 2);
  ZipEntry e{.name = directory.text(at + entry_bytes, names),
             .packed = directory.number(at + 20, 4),
             .size = directory.number(at + 24, 4),
             .crc = static_cast<uint32_t>(directory.number(at + 16, 4)),
             .deflated = method == 8};
  const std::string where = fmt::format("{}: {}", archive.name(), quote(e.name));
  begin = directory.number(at + 42, 4);
  uint64_t* const values[] = {&e.size, &e.packed, &begin};
  const uint64_t extras = at + entry_bytes + names;
  read_zip64(directory, extras, extras + extra, values, where);
  check((flags & 1) == 0, "{}: is encrypted", where);
  check(method == 0 || method == 8, "{}: compression method {} is not supported", where, method);
  check(method == 8 || e.packed == e.size, "{}: stores {} bytes as {}", where, e.size, e.packed);
  check(e.size / max_inflation <= e.packed, "{}: {} bytes cannot unpack to {}", where, e.packed,
        e.size);

  check(begin <= data_end && data_end - begin >= local_bytes, "{}: byte {} is out of range", where,
        begin);
  const Record local(archive, begin, local_bytes);
  check(local.number(0, 4) == local_sign, "{}: no entry at byte {}", where, begin);
  const uint64_t local_names = local.number(26, 2);
  e.offset = begin + local_bytes + local_names + local.number(28, 2);
  check(e.offset <= data_end && e.packed <= data_end - e.offset,
        "{}: bytes {} to {} are out of range", where, e.offset, e.offset + e.packed);
  check(local.number(8, 2) == method && local_names == names &&
            Record(archive, begin + local_bytes, names).text(0, names) == e.name,
        "{}: the entry at byte {} does not match the directory", where, begin);
  return e;
}

std::string little_endian(std::initializer_list<std::pair<uint64_t, size_t>> fields) {
  std::string bytes;
  for (const auto& [value, width] : fields)
    bytes.append(reinterpret_cast<const char*>(&value), width);
  return bytes;
}

}  // namespace

std::vector<ZipEntry> read_zip_directory(const Source& archive) {
  const std::string& file = archive.name();
  const Directory d = find_directory(archive);
  const Record directory(archive, d.offset, d.size);
  std::vector<std::pair<uint64_t, ZipEntry>> found;  // by the offset of the local header
  for (uint64_t at = 0; at < directory.size();) {
    check(directory.size() - at >= entry_bytes && directory.number(at, 4) == entry_sign,
          "{}: no directory entry at byte {}", file, d.offset + at);
    const uint64_t names = directory.number(at + 28, 2), extra = directory.number(at + 30, 2),
                   comment = directory.number(at + 32, 2);
    const uint64_t size = entry_bytes + names + extra + comment;
    check(size <= directory.size() - at, "{}: the directory entry at byte {} is truncated", file,
          d.offset + at);
    uint64_t begin = 0;
    const ZipEntry e = read_entry(archive, directory, at, names, extra, d.offset, begin);
    found.emplace_back(begin, e);
    at += size;
  }
  check(found.size() == d.entries, "{}: the directory has {} entries, not {}", file, found.size(),
        d.entries);

  std::vector<ZipEntry> entries;
  for (const auto& [begin, e] : found) entries.push_back(e);
  std::ranges::sort(found, {}, [](const auto& f) { return f.first; });
  for (size_t i = 1; i < found.size(); ++i) {
    const ZipEntry& before = found[i - 1].second;
    check(before.offset + before.packed <= found[i].first, "{}: {} overlaps another at byte {}",
          file, quote(found[i].second.name), found[i].first);
  }
  return entries;
}

#ifdef MIXTAPE_ZLIB
struct ZipReader::Inflater : NoCopy {
  z_stream stream = {};
  std::vector<std::byte> packed;  // a chunk of the entry
  uint64_t taken = 0;             // bytes of the entry read so far
  bool ended = false;

  Inflater() : packed(1 << 16) {
    check(inflateInit2(&stream, -15) == Z_OK, "zlib: cannot start");  // raw deflate
  }
  ~Inflater() { inflateEnd(&stream); }

  // Unpacks into the buffer and returns the number of bytes, which is smaller at the end.
  size_t unpack(const Source& archive, const ZipEntry& e, std::span<std::byte> into) {
    stream.next_out = reinterpret_cast<Bytef*>(into.data());
    stream.avail_out = static_cast<uInt>(into.size());
    int status = Z_OK;
    while (stream.avail_out > 0 && status == Z_OK) {
      if (stream.avail_in == 0) {
        const size_t n = std::min<uint64_t>(packed.size(), e.packed - taken);
        archive.read(e.offset + taken, std::span(packed).first(n));
        taken += n;
        stream.next_in = reinterpret_cast<Bytef*>(packed.data());
        stream.avail_in = static_cast<uInt>(n);
      }
      status = inflate(&stream, Z_NO_FLUSH);
    }
    ended = status == Z_STREAM_END;
    check(status == Z_OK || ended || status == Z_BUF_ERROR, "{}: {}: bad data near byte {}: {}",
          archive.name(), quote(e.name), e.offset + taken - stream.avail_in,
          stream.msg ? stream.msg : zError(status));
    return into.size() - stream.avail_out;
  }
  // True if the stream ends here and has used all of the entry.
  bool is_complete(const Source& archive, const ZipEntry& e) {
    std::byte more;
    return unpack(archive, e, {&more, 1}) == 0 && ended && taken == e.packed &&
           stream.avail_in == 0;
  }
};
#else
struct ZipReader::Inflater {
  size_t unpack(const Source&, const ZipEntry&, std::span<std::byte>) { return 0; }
  bool is_complete(const Source&, const ZipEntry&) { return true; }
};
#endif

ZipReader::ZipReader(const Source& archive, const ZipEntry& entry)
    : archive_(archive), entry_(entry) {
#ifndef MIXTAPE_ZLIB
  check(!entry.deflated, "{}: {} is compressed, and this build has no zlib", archive.name(),
        quote(entry.name));
#endif
  if (entry.deflated) inflater_ = std::make_unique<Inflater>();
}
ZipReader::~ZipReader() = default;

void ZipReader::read(std::span<std::byte> into) {
  check(into.size() <= entry_.size - made_, "{}: {} ends at byte {}, {} bytes early",
        archive_.name(), quote(entry_.name), entry_.size, into.size() - (entry_.size - made_));
  constexpr size_t chunk_size = size_t(1) << 20;  // the checksum then reads it from the cache
  while (!into.empty()) {
    const std::span<std::byte> chunk = into.first(std::min(into.size(), chunk_size));
    if (!inflater_) {
      archive_.read(entry_.offset + made_, chunk);
    } else if (const size_t n = inflater_->unpack(archive_, entry_, chunk); n < chunk.size()) {
      fail("{}: {} unpacks to {} bytes, not {}", archive_.name(), quote(entry_.name), made_ + n,
           entry_.size);
    }
    crc_ = crc32(chunk, crc_);
    made_ += chunk.size();
    into = into.subspan(chunk.size());
  }
}

void ZipReader::finish() const {
  const auto name = [&] { return quote(entry_.name); };
  check(made_ == entry_.size, "{}: {}: has {} extra bytes", archive_.name(), name(),
        entry_.size - made_);
  check(!inflater_ || inflater_->is_complete(archive_, entry_),
        "{}: {}: its {} packed bytes do not end with the {} unpacked ones", archive_.name(), name(),
        entry_.packed, entry_.size);
  check(crc_ == entry_.crc, "{}: {}: its checksum is {:08x}, not {:08x}", archive_.name(), name(),
        crc_, entry_.crc);
}

// The fields from the version to the length of the name, for a stored entry with a fixed date.
// Sizes of 4 GiB and more go to an extra field.
std::string ZipWriter::Written::common() const {
  const bool ascii = std::all_of(name.begin(), name.end(), [](char c) { return c >= 0; });
  constexpr uint64_t version = 20, version64 = 45, utf8 = 0x800, first_day = 0x21;  // of 1980
  const bool large = size >= none32;
  return little_endian({{large ? version64 : version, 2},
                        {ascii ? 0 : utf8, 2},
                        {0, 2},
                        {0, 2},
                        {first_day, 2},
                        {crc, 4},
                        {large ? none32 : size, 4},
                        {large ? none32 : size, 4},
                        {name.size(), 2}});
}

// The extra field of zip64, with the values that are too large for their own fields.
std::string ZipWriter::Written::zip64(bool in_directory) const {
  std::string values;
  if (size >= none32) values = little_endian({{size, 8}, {size, 8}});
  if (in_directory && offset >= none32) values += little_endian({{offset, 8}});
  return values.empty() ? values : little_endian({{1, 2}, {values.size(), 2}}) + values;
}

void ZipWriter::write(const std::string& bytes) {
  file_.write(bytes);
  at_ += bytes.size();
}

void ZipWriter::add(const std::string& name, const std::function<void(const Sink&)>& content,
                    uint64_t alignment) {
  uint64_t size = 0;
  uint32_t crc = 0;
  content([&](std::span<const std::byte> chunk) {
    size += chunk.size();
    crc = crc32(chunk, crc);
  });
  check(name.size() < none16, "names must have fewer than 65535 bytes, got {}", name.size());
  entries_.push_back({name, crc, size, at_});
  const Written& e = entries_.back();
  std::string extra = e.zip64(false);
  if (alignment > 1) {  // PyTorch's field for padding
    constexpr uint64_t id = 'F' | 'B' << 8, header = 4;
    const uint64_t begin = at_ + local_bytes + name.size() + extra.size() + header;
    const uint64_t pad = (alignment - begin % alignment) % alignment;
    extra += little_endian({{id, 2}, {pad, 2}}) + std::string(pad, 'Z');
  }
  write(little_endian({{local_sign, 4}}) + e.common() + little_endian({{extra.size(), 2}}) + name +
        extra);
  content([&](std::span<const std::byte> chunk) { file_.write(chunk); });
  at_ += size;
}

void ZipWriter::finish() {
  const uint64_t begin = at_, count = entries_.size();
  constexpr uint64_t made_on_unix = 3 << 8 | 45, mode = uint64_t{0100644} << 16;
  for (const Written& e : entries_) {
    const std::string extra = e.zip64(true);
    write(little_endian({{entry_sign, 4}, {made_on_unix, 2}}) + e.common() +
          little_endian({{extra.size(), 2},
                         {0, 2},
                         {0, 2},
                         {0, 2},
                         {mode, 4},
                         {std::min(e.offset, none32), 4}}) +
          e.name + extra);
  }
  const uint64_t size = at_ - begin, end = at_;
  if (count >= none16 || size >= none32 || begin >= none32)
    write(little_endian({{end64_sign, 4},
                         {end64_bytes - 12, 8},
                         {made_on_unix, 2},
                         {45, 2},
                         {0, 4},
                         {0, 4},
                         {count, 8},
                         {count, 8},
                         {size, 8},
                         {begin, 8},
                         {locator_sign, 4},
                         {0, 4},
                         {end, 8},
                         {1, 4}}));
  write(little_endian({{end_sign, 4},
                       {0, 2},
                       {0, 2},
                       {std::min(count, none16), 2},
                       {std::min(count, none16), 2},
                       {std::min(size, none32), 4},
                       {std::min(begin, none32), 4},
                       {0, 2}}));
}

}  // namespace mixtape::io
