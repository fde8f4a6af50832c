#include "io/formats.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/jpeg.h"
#include "io/png.h"

namespace mixtape::io {
namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view begin, what, way_out;
  size_t at = 0;  // where `begin` is
};

constexpr Format formats[] = {
    {"L119547037146038801333356L\n"sv, "a file of torch.save with pickle_protocol=1 or 0",
     "save it in Python with the default protocol"},
    {"\x93NUMPY"sv, "a NumPy array", "io::load_npy reads it"},
    {png_signature, "a PNG image", "io::load_png reads it"},
    {jpeg_signature, "a JPEG image", "io::load_jpeg reads it"},
    {"GIF8"sv, "a GIF image", "convert it to PNG"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file",
     "convert it in Python, with h5py and safetensors.numpy"},
    {"GGUF"sv, "a GGUF file", "convert it in Python, with gguf and safetensors.numpy"},
    {"TFL3"sv, "a TensorFlow Lite model", "convert it in Python", 4},
    {"\x1f\x8b"sv, "gzip data", "unpack it with gunzip"},
    {"\x28\xb5\x2f\xfd"sv, "zstd data", "unpack it with unzstd"},
    {"\xfd"
     "7zXZ\0"sv,
     "xz data", "unpack it with unxz"},
    {"BZh"sv, "bzip2 data", "unpack it with bunzip2"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "unpack it"},
    {"ustar"sv, "a tar archive", "unpack it with tar xf", 257},
    {"PAR1"sv, "a Parquet file", "convert it in Python"},
    {"ARROW1"sv, "an Arrow file", "convert it in Python"},
    {"version https://git-lfs"sv, "a pointer of Git LFS", "git lfs pull fetches the file"},
    {"<!DOCTYPE"sv, "a web page", "download the file itself"},
    {"<!doctype"sv, "a web page", "download the file itself"},
    {"<html"sv, "a web page", "download the file itself"},
    {"%PDF"sv, "a PDF document", "it has no tensors"},
    {"\x7f"
     "ELF"sv,
     "a program or library", "it has no tensors"},
};

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// Told by the names of the first entries; those of torch.save are ARCHIVE/data.pkl and others.
Format zip_format(std::string_view head) {
  const auto byte = [&](size_t i) { return i < head.size() ? uint8_t(head[i]) : 0; };
  const size_t length = byte(26) | byte(27) << 8;
  const std::string_view name = head.substr(std::min<size_t>(head.size(), 30), length);
  if (has(head, "/constants.pkl") || has(head, "/code/"))
    return {"", "a TorchScript archive of torch.jit.save",
            "save its state_dict() in Python, with torch.save"};
  if (has(head, "/data.pkl") || has(head, "/.format_version"))
    return {"", "a zip archive of PyTorch's torch.save", "io::load reads it"};
  if (name.ends_with(".npy")) return {"", "a NumPy archive", "io::load_npz reads it"};
  return {"", "a zip archive", "unpack it with unzip"};
}

// True for the protobuf of a ModelProto: ir_version, then a producer, an import of operators, or
// the graph.
bool is_onnx(std::string_view head) {
  return head.size() > 2 && head[0] == 8 && 0 < head[1] && head[1] < 32 &&
         has("\x12\x3a\x42\x1a"sv, head.substr(2, 1));
}

// True for a pickle of a protocol from 2 to 5. (It ends with a full stop, elsewhere.)
bool has_protocol(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && 2 <= head[1] && head[1] <= 5;
}
bool is_pickle(std::string_view head) {
  return has_protocol(head) && has("\x95}]ccX(\x8a\x8c"sv, head.substr(2, 1));
}

Format format_of(std::string_view head) {
  for (const Format& f : formats)
    if (head.size() > f.at && head.substr(f.at).starts_with(f.begin)) return f;
  if (head.starts_with("PK\3\4")) return zip_format(head);
  if (is_old_torch(head))
    return {"", "a file of torch.save from before PyTorch 1.6", "io::load reads it"};
  if (head.size() > 8 && head[8] == '{' && has(head, "\"data_offsets\""))
    return {"", "a safetensors file", "io::load reads it"};
  if (is_onnx(head))
    return {"", "an ONNX model", "convert it in Python, with onnx and safetensors"};
  if (is_pickle(head)) return {"", "a pickle of Python", "convert it in Python, with safetensors"};
  const size_t text = std::min(head.find_first_not_of(" \t\r\n"), head.size());
  if (head.substr(text).starts_with('{'))
    return {"", "JSON", "an index of shards is named *.index.json"};
  return {};
}

}  // namespace

bool is_old_torch(std::string_view head) {
  if (!has_protocol(head)) return false;
  const size_t frame = head[2] == '\x95' ? 9 : 0;  // an opcode and a length, from protocol 4 on
  return head.substr(std::min(2 + frame, head.size()))
      .starts_with("\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19."sv);
}

std::string but_is(const Source& file) {
  const Format f = format_of(file.head(4096));
  return f.what.empty() ? "" : fmt::format(", but {} ({})", f.what, f.way_out);
}

std::string wrong_begin(const Source& file) {
  return file.size() == 0 ? "it is empty" : "it starts with other bytes" + but_is(file);
}

}  // namespace mixtape::io
