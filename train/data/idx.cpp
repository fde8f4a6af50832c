// IDX files. The size that a header claims is checked against the file's length before allocating.

#include "train/data/idx.h"

#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/check.h"
#include "core/format.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/formats.h"

namespace mixtape::train {
namespace {

constexpr uint64_t label_growth = 9;  // a label becomes i64

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The path of the file or of its .gz, if either exists.
std::optional<std::string> find(const std::string& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"})
    if (const std::string path = folder + "/" + name + suffix; exists(path)) return path;
  return std::nullopt;
}

// Reads both files with this prefix; none if neither exists.
std::optional<TensorDataset> load_pair(const std::string& folder, const std::string& prefix,
                                       uint64_t max_memory) {
  const std::string names[] = {prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte"};
  const auto images = find(folder, names[0]), labels = find(folder, names[1]);
  if (!images && !labels) return std::nullopt;
  check(images && labels, "{}: has {} but neither {} nor {}.gz", folder,
        images ? names[0] : names[1], images ? names[1] : names[0], images ? names[1] : names[0]);

  const Tensor pixels = read_idx(*images, max_memory);
  const Tensor raw = parse_idx(io::read_whole(*labels, max_memory, label_growth), *labels);
  check(pixels.rank() == 3, "{}: images must have rank 3, got shape {}", *images, pixels.shape());
  check(raw.rank() == 1, "{}: labels must have rank 1, got shape {}", *labels, raw.shape());
  check(pixels.size(0) == raw.size(0), "{}: {} images need as many labels, got {}", *images,
        pixels.size(0), raw.size(0));
  const Tensor classes({raw.size(0)}, i64, Device::cpu());
  const auto* from = raw.data<uint8_t>();
  auto* to = classes.data<int64_t>();
  for (int64_t i = 0; i < raw.size(0); ++i) {
    check(from[i] <= 9, "{}: label {} is {}, not a digit", *labels, i, from[i]);
    to[i] = from[i];
  }
  return TensorDataset(pixels.reshape({pixels.size(0), 1, pixels.size(1), pixels.size(2)}), classes,
                       *images);
}

}  // namespace

Tensor parse_idx(std::span<const std::byte> file, const std::string& name) {
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(file[i]); };
  check(file.size() >= 4, "{}: has {} bytes, too few for an IDX file", name, file.size());
  if (byte(0) != 0 || byte(1) != 0)
    fail("{}: not an IDX file: starts with bytes {:02x} {:02x}, not 00 00{}", name, byte(0),
         byte(1), io::but_is(io::InputBytes(file, name)));
  check(byte(2) == 8, "{}: element type {:#04x} is not supported, only 0x08 (unsigned bytes)", name,
        byte(2));
  const uint32_t rank = byte(3);
  check(rank >= 1 && rank <= 4, "{}: rank must be from 1 to 4, got {}", name, rank);
  const uint64_t header = 4 + 4 * uint64_t(rank);
  check(file.size() >= header, "{}: the header takes {} bytes, the file has {}", name, header,
        file.size());

  Shape shape;
  for (size_t d = 0; d < rank; ++d) {
    const size_t at = 4 + 4 * d;
    const uint32_t size = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    shape.push_back(size);
  }
  const auto bytes = io::bytes_needed(shape, u8);
  check(bytes.has_value(), "{}: the size of {} overflows", name, shape);
  const uint64_t wanted = header + *bytes;
  check(file.size() == wanted, "{}: shape {} needs a file of {} bytes, this one has {}", name,
        shape, wanted, file.size());
  const Tensor t(shape, u8, Device::cpu());
  if (wanted > header) std::memcpy(t.raw(), file.data() + header, wanted - header);
  return t;
}

Tensor read_idx(const std::string& path, uint64_t max_memory) {
  return parse_idx(io::read_whole(path, max_memory, 1), path);
}

Split<TensorDataset> load_mnist(const std::string& folder, double valid_fraction,
                                uint64_t max_memory) {
  const auto train = load_pair(folder, "train", max_memory),
             test = load_pair(folder, "t10k", max_memory);
  if (train && test) {
    const Shape &a = train->x().shape(), &b = test->x().shape();
    check(a[0] > 0 && b[0] > 0, "{}: {} training and {} validation images", folder, a[0], b[0]);
    check(a[2] == b[2] && a[3] == b[3],
          "{}: training images of {} x {}, validation images of {} x {}", folder, a[2], a[3], b[2],
          b[3]);
    return {*train, *test};
  }
  check(train || test,
        "{}: {}: looked for train-images-idx3-ubyte, train-labels-idx1-ubyte, "
        "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or .gz",
        folder, exists(folder) ? "no data in this folder" : "no such folder");
  const TensorDataset& all = train ? *train : *test;
  const int64_t n = all.size(), first = n - valid_count(n, valid_fraction, folder);
  return {all.rows(0, first), all.rows(first, n)};
}

}  // namespace mixtape::train
