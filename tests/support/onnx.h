#pragma once
// A reader of ONNX files, written from the description of the format alone.

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "core/format.h"
#include "io/onnx.h"
#include "tests/support/temp_folder.h"

namespace mixtape::test {

// The fields of a protobuf message: numbers, or bytes that may be a message themselves.
class ProtoMessage {
 public:
  struct Field {
    int number;
    int64_t value;
    std::string bytes;
  };

  explicit ProtoMessage(std::string text) : text_(std::move(text)) {
    while (at_ < text_.size()) {
      const int64_t key = varint();
      Field f{int(key >> 3), 0, {}};
      switch (key & 7) {
        case 0:
          f.value = varint();
          break;
        case 2: {
          const auto size = size_t(varint());
          f.bytes = take(size);
          break;
        }
        case 5:
          f.bytes = take(4);
          break;
        default:
          ADD_FAILURE() << "a field of type " << (key & 7);
          return;
      }
      fields_.push_back(std::move(f));
    }
  }
  std::vector<Field> all(int number) const {
    std::vector<Field> found;
    for (const Field& f : fields_)
      if (f.number == number) found.push_back(f);
    return found;
  }
  bool has(int number) const { return !all(number).empty(); }
  std::string bytes(int number) const { return has(number) ? all(number)[0].bytes : ""; }
  int64_t value(int number) const { return has(number) ? all(number)[0].value : 0; }
  ProtoMessage message(int number) const { return ProtoMessage(bytes(number)); }
  std::vector<std::string> texts(int number) const {
    std::vector<std::string> found;
    for (const Field& f : all(number)) found.push_back(f.bytes);
    return found;
  }
  std::vector<int64_t> values(int number) const {
    std::vector<int64_t> found;
    for (const Field& f : all(number)) found.push_back(f.value);
    return found;
  }

 private:
  int64_t varint() {
    uint64_t x = 0;
    for (int shift = 0; at_ < text_.size(); shift += 7) {
      const auto byte = uint8_t(text_[at_++]);
      x |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return int64_t(x);
  }
  std::string take(size_t n) {
    EXPECT_LE(at_ + n, text_.size()) << "the message is cut";
    at_ += n;
    return text_.substr(at_ - n, n);
  }
  std::string text_;
  size_t at_ = 0;
  std::vector<Field> fields_;
};

inline DType dtype_of_onnx(int64_t number) {
  for (int t = 0; t <= int(f8_e8m0); ++t)
    if (io::onnx_type(DType(t)) == number) return DType(t);
  ADD_FAILURE() << "type " << number;
  return f32;
}

inline io::OnnxAttribute attribute_of(const ProtoMessage& m) {
  float real = 0;
  switch (m.value(20)) {
    case 1:
      std::memcpy(&real, m.bytes(2).data(), 4);
      return double(real);
    case 2:
      return m.value(3);
    case 3:
      return m.bytes(4);
    case 7:
      return m.values(8);
    case 8:
      return m.texts(9);
    default:
      ADD_FAILURE() << "an attribute of type " << m.value(20);
      return {};
  }
}

inline io::OnnxValue onnx_value_of(const ProtoMessage& m) {
  const ProtoMessage tensor = m.message(2).message(1);
  io::OnnxValue value{m.bytes(1), dtype_of_onnx(tensor.value(1)), {}};
  for (const std::string& text : tensor.message(2).texts(1)) {
    const ProtoMessage dim(text);
    if (dim.has(2))
      value.shape.emplace_back(dim.bytes(2));
    else
      value.shape.emplace_back(dim.value(1));
  }
  return value;
}

inline io::OnnxGraph read_onnx(const std::string& path) {
  const ProtoMessage model(slurp(path)), graph = model.message(7);
  io::OnnxGraph g{.name = graph.bytes(2), .opset = int(model.message(8).value(2))};
  for (const std::string& text : graph.texts(1)) {
    const ProtoMessage m(text);
    io::OnnxNode& node = g.nodes.emplace_back(io::OnnxNode{m.bytes(4), m.texts(1), m.texts(2)});
    for (const std::string& a : m.texts(5))
      node.attributes.emplace_back(ProtoMessage(a).bytes(1), attribute_of(ProtoMessage(a)));
  }
  for (const std::string& text : graph.texts(11))
    g.inputs.push_back(onnx_value_of(ProtoMessage(text)));
  for (const std::string& text : graph.texts(12))
    g.outputs.push_back(onnx_value_of(ProtoMessage(text)));
  for (const std::string& text : graph.texts(5)) {
    const ProtoMessage m(text);
    Shape shape;
    for (const int64_t n : m.values(1)) shape.push_back(n);
    std::string bytes = m.bytes(9);
    if (m.value(14) == 1) {  // in another file
      std::map<std::string, std::string> place;
      for (const std::string& entry : m.texts(13))
        place[ProtoMessage(entry).bytes(1)] = ProtoMessage(entry).bytes(2);
      const std::string folder = path.substr(0, path.rfind('/') + 1);
      bytes = slurp(folder + place["location"])
                  .substr(std::stoul(place["offset"]), std::stoul(place["length"]));
    }
    const Tensor t(shape, dtype_of_onnx(m.value(2)), Device::cpu());
    EXPECT_EQ(bytes.size(), t.nbytes()) << m.bytes(8);
    std::memcpy(t.raw(), bytes.data(), bytes.size());
    g.initializers.emplace_back(m.bytes(8), t);
  }
  return g;
}

}  // namespace mixtape::test
