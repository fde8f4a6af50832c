#pragma once
// ProtoMessage: writes a message of protobuf. Each field has a number, as in the .proto file, and a
// wire type: 0 a varint, 1 eight bytes, 2 bytes after their length, 5 four bytes.

#include <cstdint>
#include <string>
#include <string_view>

namespace mixtape::io {

class ProtoMessage {
 public:
  ProtoMessage& number(int field, int64_t x) {
    varint(uint64_t(field) << 3);
    varint(uint64_t(x));
    return *this;
  }
  ProtoMessage& real(int field, double x) { return fixed(field, 1, x); }
  ProtoMessage& real(int field, float x) { return fixed(field, 5, x); }
  // Adds bytes. The content may be longer by `rest` bytes, which follow elsewhere.
  ProtoMessage& bytes(int field, std::string_view content, uint64_t rest = 0) {
    varint(uint64_t(field) << 3 | 2);
    varint(content.size() + rest);
    bytes_ += content;
    return *this;
  }
  ProtoMessage& message(int field, const ProtoMessage& m) { return bytes(field, m.bytes_); }
  const std::string& text() const { return bytes_; }

 private:
  template <class T>
  ProtoMessage& fixed(int field, uint64_t wire_type, T x) {
    varint(uint64_t(field) << 3 | wire_type);
    bytes_.append(reinterpret_cast<const char*>(&x), sizeof x);
    return *this;
  }
  void varint(uint64_t x) {
    for (; x >= 0x80; x >>= 7) bytes_ += char(x | 0x80);
    bytes_ += char(x);
  }

  std::string bytes_;
};

}  // namespace mixtape::io
