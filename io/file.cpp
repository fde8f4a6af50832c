// Uses POSIX calls, because C++ streams neither report errno nor sync.

#include "io/file.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "core/check.h"
#include "io/text.h"

#ifdef MIXTAPE_ZLIB
#include <zlib.h>
#endif

namespace mixtape::io {
namespace {

[[noreturn]] void fail_errno(const std::string& path, const char* what) {
  const char* reason = std::strerror(errno);
  fail("{}: cannot {}: {}", path, what, reason);
}

// ::open() that never returns 0, 1 or 2: if standard streams were closed, prints would go to the
// file.
int open_file(const std::string& path, int flags, mode_t mode = 0) {
  check_path(path);
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int other = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), reason = errno;
  ::close(fd);
  errno = reason;
  return other;
}

// The largest count per system call; some systems reject or truncate larger ones.
constexpr size_t max_io_bytes = size_t(1) << 30;

#ifdef MIXTAPE_ZLIB
struct Inflater : NoCopy {
  z_stream stream = {};
  Inflater() { check(inflateInit2(&stream, 15 + 16) == Z_OK, "zlib: cannot start"); }  // gzip only
  ~Inflater() { inflateEnd(&stream); }
};

std::vector<std::byte> unpack(std::span<std::byte> packed, uint64_t limit, const std::string& path,
                              const char* way_out) {
  const auto check_limit = [&](size_t bytes) {
    check(bytes <= limit, "{}: unpacks to more than the {} bytes allowed{}", path, limit, way_out);
  };
  Inflater z;
  std::vector<std::byte> out;
  size_t used = 0, made = 0;  // bytes consumed from packed, and written to out
  for (;;) {
    if (made == out.size()) {  // limit + 1 bytes tell a bomb from an exact fit
      const uint64_t wanted = std::max<uint64_t>(uint64_t(made) * 2, 1 << 16);
      check_limit(made);
      out.resize(std::min(wanted, limit + 1));
    }
    const size_t in = std::min(packed.size() - used, max_io_bytes);
    const size_t room = std::min(out.size() - made, max_io_bytes);
    z.stream.next_in = reinterpret_cast<Bytef*>(packed.data() + used);
    z.stream.avail_in = static_cast<uInt>(in);
    z.stream.next_out = reinterpret_cast<Bytef*>(out.data() + made);
    z.stream.avail_out = static_cast<uInt>(room);
    const int status = inflate(&z.stream, Z_NO_FLUSH);
    used += in - z.stream.avail_in;
    made += room - z.stream.avail_out;
    if (status == Z_STREAM_END) {
      if (used == packed.size()) break;
      inflateReset(&z.stream);  // gzip files may be concatenated
      continue;
    }
    check(status != Z_BUF_ERROR || used < packed.size() || z.stream.avail_out == 0,
          "{}: gzip data ends early, after {} bytes", path, used);
    check(status == Z_OK || status == Z_BUF_ERROR, "{}: bad gzip data near byte {}: {}", path, used,
          z.stream.msg ? z.stream.msg : zError(status));
  }
  check_limit(made);
  out.resize(made);
  return out;
}
#else
std::vector<std::byte> unpack(std::span<std::byte>, uint64_t, const std::string& path,
                              const char*) {
  fail("{}: cannot read .gz files: this build has no zlib (unpack it with gunzip)", path);
}
#endif

}  // namespace

std::string Source::head(uint64_t most) const {
  std::string bytes(std::min(size_, most), '\0');
  read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

InputFile::InputFile(std::string path)
    : Source(std::move(path)), fd_(open_file(name(), O_RDONLY | O_NONBLOCK)) {
  if (fd_ < 0) fail_errno(name(), "open");
  struct stat info;
  const bool known = ::fstat(fd_, &info) == 0;
  if (!known || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    fail("{}: not a regular file", name());
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() { ::close(fd_); }

void InputFile::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t n =
        ::pread(fd_, into.data(), std::min(into.size(), max_io_bytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(name(), "read");
    check(n > 0, "{}: ends at byte {}, {} bytes early", name(), offset, into.size());
    offset += static_cast<uint64_t>(n);
    into = into.subspan(static_cast<size_t>(n));
  }
}

bool has_extension(std::string_view path, std::string_view extension) {
  const auto lower = [](char c) { return 'A' <= c && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  return path.size() >= extension.size() &&
         std::ranges::equal(path.substr(path.size() - extension.size()), extension, {}, lower);
}

void check_path(const std::string& path) {
  if (path.find('\0') != path.npos) fail("{}: a file's name cannot have zero bytes", quote(path));
}

std::string absolute(const std::string& path) {
  check_path(path);
  return path.empty() ? path : std::filesystem::absolute(path).string();
}

InputBytes::InputBytes(std::span<const std::byte> bytes, std::string name)
    : Source(std::move(name)), bytes_(bytes) {
  size_ = bytes.size();
}

void InputBytes::read(uint64_t offset, std::span<std::byte> into) const {
  const uint64_t rest = size() - std::min(offset, size());
  check(into.size() <= rest, "{}: ends at byte {}, {} bytes early", name(), size(),
        into.size() - rest);
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
}

// `way_out` ends the message about a file that is too large.
static std::vector<std::byte> read_file(const InputFile& file, uint64_t limit,
                                        const char* way_out) {
  const bool packed = has_extension(file.name(), ".gz");
  limit = std::min(limit, uint64_t{1} << 62);  // so that limit + 1 does not overflow
  // gzip adds a frame and slightly enlarges incompressible data.
  const uint64_t max_size = packed ? limit + limit / 1024 + 1024 : limit;
  check(file.size() <= max_size, "{}: has {} bytes, more than the {} allowed{}", file.name(),
        file.size(), max_size, way_out);
  std::vector<std::byte> bytes(file.size());
  file.read(0, bytes);
  return packed ? unpack(bytes, limit, file.name(), way_out) : bytes;
}

std::vector<std::byte> read_file(const std::string& path, uint64_t limit) {
  return read_file(InputFile(path), limit, "");
}

uint64_t memory_limit(uint64_t file_bytes, uint64_t max_memory, uint64_t least) {
  constexpr uint64_t times = 20;
  return max_memory > 0 ? max_memory : std::max(file_bytes * times, least);
}

void check_memory(uint64_t needed, const std::string& file, uint64_t file_bytes,
                  uint64_t max_memory) {
  const uint64_t limit = memory_limit(file_bytes, max_memory);
  check(needed <= limit,
        "{}: needs {} bytes of memory, more than the {} allowed for a file of {} (raise max_memory "
        "to at least {})",
        file, needed, limit, file_bytes, needed);
}

std::vector<std::byte> read_whole(const std::string& path, uint64_t max_memory, uint64_t growth) {
  constexpr uint64_t largest = uint64_t(1) << 30;  // file that is read as a whole
  const InputFile file(path);
  const uint64_t limit = has_extension(path, ".gz")
                             ? memory_limit(file.size(), max_memory) / (growth + 1)
                             : std::max(largest, max_memory);
  return read_file(file, limit, " (raise max_memory)");
}

std::string target_of_links(const std::string& link) {
  check_path(link);
  std::filesystem::path path(link);
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(path, error); ++links) {
    check(links < 40, "{}: leads through more than 40 symbolic links, or a loop of them", link);
    const auto next = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;  // an absolute path replaces it
  }
  return path.string();
}

namespace {

constexpr std::string_view temporary_suffix = ".mixtape-tmp";

// A name that would be too long with the suffix loses its end. So several files may have one name
// for their temporary files, which numbers and locks keep apart.
std::string temporary_of(const std::string& path, int number) {
  constexpr size_t longest = 255;  // bytes of a name
  const std::string suffix = fmt::format(".{}{}", number, temporary_suffix);
  const size_t bytes = path.size() - (path.find_last_of('/') + 1), room = longest - suffix.size();
  return path.substr(0, path.size() - (room < bytes && bytes <= longest ? bytes - room : 0)) +
         suffix;
}

// Throws Error if readers would unpack a file that was written as it is.
void check_not_packed(const std::string& path) {
  check(!has_extension(path, ".gz"),
        "{}: a name that ends in .gz is of gzip data, which is not written: leave it out, and pack "
        "the file with gzip",
        path);
}

// A writer holds a lock on its temporary file. The lock ends with its process, wherever that runs.
bool lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

// True if the open file still has this name.
bool is_named(int fd, const std::string& path) {
  struct stat here{}, there{};
  return ::fstat(fd, &here) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

}  // namespace

void remove_abandoned(const std::string& path) {
  const std::string target = target_of_links(path);
  for (int number = 1, missing = 0; missing < 2; ++number) {
    const std::string temporary = temporary_of(target, number);
    constexpr int flags = O_NOFOLLOW | O_NONBLOCK;
    int fd = open_file(temporary, O_WRONLY | flags);  // some file systems lock no others
    if (fd < 0 && errno == EACCES) fd = open_file(temporary, O_RDONLY | flags);
    missing += fd < 0;  // or any other failure, such as a parent that is not a folder
    if (fd < 0) continue;
    if (lock(fd) && is_named(fd, temporary)) ::unlink(temporary.c_str());
    ::close(fd);
  }
}

std::string AtomicFile::target_of_temporary(const std::string& path) {
  if (!path.ends_with(temporary_suffix)) return path;
  return path.substr(0, path.rfind('.', path.size() - temporary_suffix.size() - 1));
}

AtomicFile::AtomicFile(const std::string& path) : path_(target_of_links(path)) {
  check(!path_.empty(), "a file to write needs a name");
  struct stat old{};
  const bool replaces = ::stat(path_.c_str(), &old) == 0;  // must not destroy a device or pipe
  check(!replaces || S_ISREG(old.st_mode), "{}: not a regular file", path_);
  remove_abandoned(path_);
  for (int number = 1;; ++number) {  // other writers may have the first ones
    temporary_ = temporary_of(path_, number);
    fd_ = open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0) fail_errno(path_, "create a file beside it");
    // Before it was locked, another writer may have removed it as abandoned.
    if ((lock(fd_) || errno != EWOULDBLOCK) && is_named(fd_, temporary_)) break;
    ::close(fd_);
  }
  if (replaces) ::fchmod(fd_, old.st_mode & 0777);
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), max_io_bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path_, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_errno(path_, "sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno(path_, "replace");
  temporary_.clear();
  ::close(std::exchange(fd_, -1));
  // Syncs the folder, so that the rename is durable. Not every file system can, but the data are
  // safe.
  const auto parent = std::filesystem::path(path_).parent_path();
  const int folder =
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  check_not_packed(path_);
  fd_ = open_file(path_, O_RDWR | O_CREAT | O_APPEND, 0666);
  if (fd_ < 0) fail_errno(path_, "open for appending");
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::cut_after_last(char end) {
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  off_t kept = size;
  for (char byte = 0; kept > 0; --kept) {
    if (::pread(fd_, &byte, 1, kept - 1) != 1) fail_errno(path_, "read");
    if (byte == end) break;
  }
  if (kept < size && ::ftruncate(fd_, kept) != 0) fail_errno(path_, "shorten");
}

void AppendFile::append(std::string_view bytes) {
  struct stat info;  // writes to an unlinked file would be lost
  check(::fstat(fd_, &info) != 0 || info.st_nlink > 0, "{}: cannot append: it was removed", path_);
  off_t written = 0;
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int reason = errno;
      if (written > 0) std::ignore = ::ftruncate(fd_, ::lseek(fd_, 0, SEEK_END) - written);
      errno = reason;
      fail_errno(path_, "append");
    }
    written += n;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void write_file(const std::string& path, std::string_view text) {
  if (!text.starts_with("\x1f\x8b")) check_not_packed(path);
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace mixtape::io
