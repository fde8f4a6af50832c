#include "io/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "core/check.h"
#include "core/format.h"
#include "io/text.h"

namespace mixtape::io {
using namespace internal;

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

std::optional<uint64_t> bytes_needed(const Shape& shape, DType dtype) {
  uint64_t bytes = size_of(dtype);
  // A size of 0 makes the product 0, but the other sizes must not overflow elsewhere.
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(std::max<int64_t>(size, 1)), &bytes) ||
        bytes > INT64_MAX)
      return std::nullopt;
  return std::count(shape.begin(), shape.end(), 0) > 0 ? 0 : bytes;
}

std::span<std::byte> bytes_in(const Tensor& t) {
  return {static_cast<std::byte*>(t.host()), t.nbytes()};
}

void swap_bytes(const Tensor& t) {
  const std::span bytes = bytes_in(t);
  const size_t width = size_of(t.dtype());
  for (size_t i = 0; i < bytes.size(); i += width) std::reverse(&bytes[i], &bytes[i] + width);
}

Layout by_columns(const Shape& shape) {
  Layout layout(shape);
  int64_t step = 1;
  for (int d = 0; d < shape.rank; step *= shape[d++]) layout.strides[d] = step;
  return layout;
}

// Transposes [rows, columns], to move channels before or after the pixels.
static void transpose_bytes(const uint8_t* from, uint8_t* to, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
}

std::array<int64_t, 3> image_sizes(const std::string& path, const Tensor& image) {
  check(image.dtype() == u8 && (image.rank() == 2 || image.rank() == 3),
        "{}: an image must be u8 [channels, height, width], got {} {}", path, image.dtype(),
        image.shape());
  return {image.rank() == 2 ? 1 : image.size(0), image.size(-2), image.size(-1)};
}

std::vector<uint8_t> interleaved(const Tensor& image, int64_t channels) {
  const int64_t n = image.numel();
  std::vector<uint8_t> planes, pixels(static_cast<size_t>(n));
  for_each_chunk(image, [&](std::span<const std::byte> chunk) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(chunk.data());
    planes.insert(planes.end(), bytes, bytes + chunk.size());
  });
  transpose_bytes(planes.data(), pixels.data(), channels, n / channels);
  return pixels;
}

// Splits each line into its channels, then moves these to their planes along the permutation's
// cycles.
void to_planes(uint8_t* pixels, int64_t height, int64_t width, int64_t channels) {
  if (channels == 1) return;
  const auto line = [&](int64_t i) { return pixels + i * width; };
  std::vector<uint8_t> spare(size_t(width * channels));
  for (int64_t y = 0; y < height; ++y) {
    std::copy_n(line(y * channels), spare.size(), spare.data());
    transpose_bytes(spare.data(), line(y * channels), width, channels);
  }
  std::vector<bool> placed(size_t(height * channels));
  for (int64_t first = 0; first < height * channels; ++first) {
    if (placed[size_t(first)]) continue;
    std::copy_n(line(first), width, spare.data());
    for (int64_t to = first; !placed[size_t(to)];) {
      placed[size_t(to)] = true;
      const int64_t from = to % height * channels + to / height;
      const uint8_t* const source = from == first ? spare.data() : line(from);
      std::copy_n(source, width, line(to));
      to = from;
    }
  }
}

void for_each_chunk(const Tensor& source,
                    const std::function<void(std::span<const std::byte>)>& f) {
  const Tensor t = source.copied_to(Device::cpu());
  if (t.is_contiguous()) return f(bytes_in(t));
  const size_t width = size_of(t.dtype());
  const auto* base = static_cast<const std::byte*>(t.host());
  const int64_t n = t.numel();
  constexpr int64_t chunk_size = 1 << 16;  // elements
  std::vector<std::byte> buffer(chunk_size * width);
  const Layout& layout = t.layout();
  for (int64_t first = 0; first < n; first += chunk_size) {
    const int64_t count = std::min(chunk_size, n - first);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(&buffer[static_cast<size_t>(i) * width],
                  base + layout.at(first + i) * int64_t(width), width);
    f(std::span(buffer).first(static_cast<size_t>(count) * width));
  }
}

void write_elements(AtomicFile& file, const Tensor& t) {
  for_each_chunk(t, [&](std::span<const std::byte> chunk) { file.write(chunk); });
}

std::optional<uint64_t> first_bad_bool(const Tensor& t) {
  if (t.dtype() != boolean) return {};
  const std::span bytes = bytes_in(t);
  const auto bad =
      std::find_if(bytes.begin(), bytes.end(), [](auto b) { return b > std::byte{1}; });
  if (bad == bytes.end()) return {};
  return static_cast<uint64_t>(bad - bytes.begin());
}

void check_dtypes(const std::vector<RawTensor>& raw, const std::string& file) {
  if (raw.empty()) return;
  std::vector<std::string> all;
  for (const RawTensor& t : raw)
    all.push_back(fmt::format("{} ({})", quote(t.name), quote(t.dtype)));
  fail(
      "{}: tensors of dtypes that are not here: {}; leave them out, {{.skip = {{{}, ...}}}}, or "
      "load their bytes, {{.keep_bytes = true}}",
      file, internal::listed(all, 5), quote(raw[0].name));
}

void check_rank(uint64_t rank, const std::string& name, const std::string& file) {
  if (rank > uint64_t{max_rank})
    fail("{}: {} has {} dimensions, more than {}: leave it out, {{.skip = {{{}}}}}", file,
         quote(name), rank, max_rank, quote(name));
}

void check_writable(const std::string& path, const StateDict& tensors, const Metadata& metadata) {
  std::set<std::string_view> names{metadata_key};
  bool utf8 = true;
  for (const auto& [name, t] : tensors) {
    if (!names.insert(name).second) fail("{}: duplicate or reserved name {}", path, quote(name));
    if (!t) fail("{}: {} is undefined", path, quote(name));
    utf8 = utf8 && is_utf8(name);
  }
  for (const auto& [key, value] : metadata) utf8 = utf8 && is_utf8(key) && is_utf8(value);
  check(utf8, "{}: a name or the metadata is not UTF-8", path);
}

}  // namespace mixtape::io
