#include "train/data/tokens.h"

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"

namespace mixtape::train {
namespace {

constexpr size_t header_bytes = 1024;
// The first number in llm.c's files, which tells the size of a token.
constexpr uint32_t of_u16 = 20240520, of_u32 = 20240801;

uint32_t number(std::span<const std::byte> file, size_t at, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= std::to_integer<uint32_t>(file[at + i]) << (8 * i);
  return value;
}

}  // namespace

Tensor parse_tokens(std::span<const std::byte> file, const std::string& name) {
  const uint32_t magic = file.size() >= 4 ? number(file, 0, 4) : 0;
  const size_t width = magic == of_u32 ? 4 : 2;
  size_t begin = 0;
  if (magic == of_u16 || magic == of_u32) {
    begin = header_bytes;
    check(file.size() >= begin, "{}: the header takes {} bytes, the file has {}", name, begin,
          file.size());
    check(number(file, 4, 4) == 1, "{}: version {} of the format is not known, only 1", name,
          number(file, 4, 4));
    const uint64_t count = number(file, 8, 4);
    check(file.size() - begin == count * width,
          "{}: the header says {} tokens, the file has {} bytes of them", name, count,
          file.size() - begin);
  }
  const size_t bytes = file.size() - begin;
  check(bytes % width == 0, "{}: {} bytes do not divide into tokens of {}", name, bytes, width);
  check(bytes > 0, "{}: has no tokens", name);
  const Tensor tokens({int64_t(bytes / width)}, i32, Device::cpu());
  auto* const to = tokens.data<int32_t>();
  for (size_t i = 0; i < bytes / width; ++i) {
    const uint32_t token = number(file, begin + i * width, width);
    check(token <= 0x7fffffff, "{}: token {} is {}, more than i32 holds", name, i, token);
    to[i] = int32_t(token);
  }
  return tokens;
}

Tensor read_tokens(const std::string& path) {
  return parse_tokens(io::read_file(path, uint64_t(1) << 36), path);
}

}  // namespace mixtape::train
