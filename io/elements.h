#pragma once
// Tensors as bytes, for the formats that hold tensors. Little-endian, like the CPU.

#include <array>
#include <functional>

#include "core/tensor.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace mixtape::io {

// The size of a tensor in bytes, or none if it exceeds 63 bits, as a hostile file may claim.
std::optional<uint64_t> bytes_needed(const Shape& shape, DType dtype);

// NumPy's names of dtypes, kind and width, as in '<f4'. It has no bf16.
inline constexpr std::pair<std::string_view, DType> numpy_dtypes[] = {
    {"f8", f64},     {"f4", f32}, {"f2", f16}, {"i8", i64}, {"i4", i32}, {"u1", u8},
    {"b1", boolean}, {"i1", i8},  {"i2", i16}, {"u2", u16}, {"u4", u32}};

std::span<std::byte> bytes_in(const Tensor& t);  // t must be contiguous

// Reverses the bytes of each element.
void swap_bytes(const Tensor& t);  // t must be contiguous

// The layout of a dense array whose first index varies fastest, as in Fortran.
internal::Layout by_columns(const Shape& shape);

// Passes on the elements in row-major order, in chunks (one for a contiguous t), from any device.
void for_each_chunk(const Tensor& t, const std::function<void(std::span<const std::byte>)>& f);
void write_elements(AtomicFile& file, const Tensor& t);  // the same, to a file

// Channels, height and width of an image to save. Throws Error unless it is u8 [channels, height,
// width] or [height, width].
std::array<int64_t, 3> image_sizes(const std::string& path, const Tensor& image);
// Its pixels, interleaved: [height, width, channels].
std::vector<uint8_t> interleaved(const Tensor& image, int64_t channels);
// Turns interleaved pixels [height, width, channels] into planes [channels, height, width], in
// place.
void to_planes(uint8_t* pixels, int64_t height, int64_t width, int64_t channels);

// The position of the first byte of a bool tensor that is neither 0 nor 1, if any.
std::optional<uint64_t> first_bad_bool(const Tensor& t);

// Throws Error that names the tensors whose dtypes Mixtape lacks, if there are any.
void check_dtypes(const std::vector<RawTensor>& raw, const std::string& file);

// Throws Error that names the tensor if it has more dimensions than tensors may have here.
void check_rank(uint64_t rank, const std::string& name, const std::string& file);

// The name that no tensor may have, since it holds the metadata of safetensors.
inline constexpr std::string_view metadata_key = "__metadata__";
// The end of the name of an index of shards.
inline constexpr std::string_view index_extension = ".index.json";
// Throws Error unless all tensors are defined and have unique names, and all text is UTF-8.
void check_writable(const std::string& path, const StateDict& tensors, const Metadata& metadata);

}  // namespace mixtape::io
