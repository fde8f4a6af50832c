// Fields have the numbers of onnx.proto.

#include "io/onnx.h"

#include <filesystem>
#include <optional>

#include "core/check.h"
#include "core/format.h"
#include "core/int_math.h"
#include "io/elements.h"
#include "io/protobuf.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

constexpr uint64_t most_bytes = (uint64_t(1) << 31) - 1;

using Message = ProtoMessage;

// The version of the file format with which an opset came.
int64_t ir_version(int opset) {
  constexpr int first = 18;
  constexpr int64_t versions[] = {8, 9, 9, 10, 10, 11};
  check(opset >= first && opset < first + int(std::size(versions)),
        "the opset must be from {} to {}, got {}", first, first + std::size(versions) - 1, opset);
  return versions[opset - first];
}

Message attribute(const std::string& name, const OnnxAttribute& value) {
  Message m;
  m.bytes(1, name);
  const auto type = [&](int64_t number) { m.number(20, number); };
  if (const auto* const i = std::get_if<int64_t>(&value)) {
    m.number(3, *i);
    type(2);
  } else if (const auto* const f = std::get_if<double>(&value)) {
    m.real(2, float(*f));
    type(1);
  } else if (const auto* const s = std::get_if<std::string>(&value)) {
    m.bytes(4, *s);
    type(3);
  } else if (const auto* const numbers = std::get_if<std::vector<int64_t>>(&value)) {
    for (const int64_t x : *numbers) m.number(8, x);
    type(7);
  } else {
    for (const std::string& text : std::get<std::vector<std::string>>(value)) m.bytes(9, text);
    type(8);
  }
  return m;
}

Message message_of(const OnnxNode& node) {
  Message m;
  for (const std::string& name : node.inputs) m.bytes(1, name);
  for (const std::string& name : node.outputs) m.bytes(2, name);
  if (!node.outputs.empty()) m.bytes(3, node.outputs[0]);  // its name
  m.bytes(4, node.op);
  for (const auto& [name, value] : node.attributes) m.message(5, attribute(name, value));
  return m;
}

Message message_of(const OnnxValue& value) {
  Message shape;
  for (const auto& size : value.shape) {
    Message dim;
    if (const auto* const name = std::get_if<std::string>(&size))
      dim.bytes(2, *name);
    else
      dim.number(1, std::get<int64_t>(size));
    shape.message(1, dim);
  }
  return Message()
      .bytes(1, value.name)
      .message(2,
               Message().message(1, Message().number(1, onnx_type(value.dtype)).message(2, shape)));
}

// A tensor's message without its numbers.
Message message_of(const std::string& name, const Tensor& t) {
  Message m;
  for (const int64_t n : t.shape()) m.number(1, n);
  return m.number(2, onnx_type(t.dtype())).bytes(8, name);
}

Message entry(std::string_view key, std::string_view value) {
  return Message().bytes(1, key).bytes(2, value);
}

// Writes the numbers of all tensors to a second file of this name, at multiples of a page, and
// their messages to `graph`.
void write_external(AtomicFile& file, const std::string& file_name, const StateDict& tensors,
                    Message& graph) {
  constexpr uint64_t page = 4096;
  uint64_t at = 0;
  for (const auto& [name, t] : tensors) {
    const uint64_t start = internal::round_up(at, page);
    file.write(std::string(start - at, '\0'));
    write_elements(file, t);
    at = start + t.nbytes();
    Message m = message_of(name, t);
    m.message(13, entry("location", file_name));
    m.message(13, entry("offset", std::to_string(start)));
    m.message(13, entry("length", std::to_string(t.nbytes())));
    graph.message(5, m.number(14, 1));
  }
}

}  // namespace

int64_t onnx_type(DType dtype) {
  constexpr int64_t types[] = {11, 1, 10, 16, 7, 6, 2, 9, 3, 5, 4, 12, 17, 19, 24};  // as DType's
  return types[static_cast<int>(dtype)];
}

void save_onnx(const std::string& path, const OnnxGraph& g, bool external) {
  check_writable(path, g.initializers, {});
  const std::string numbers_path = target_of_links(path) + ".data";
  const std::string numbers_name = std::filesystem::path(numbers_path).filename().string();
  if (external && !is_utf8(numbers_name))
    fail("{}: the graph cannot hold the name of a second file: it must be UTF-8", quote(path));
  Message model, graph;
  model.number(1, ir_version(g.opset)).bytes(2, "Mixtape");
  model.message(8, Message().bytes(1, "").number(2, g.opset));
  for (const OnnxNode& node : g.nodes) graph.message(1, message_of(node));
  graph.bytes(2, g.name);
  for (const OnnxValue& value : g.inputs) graph.message(11, message_of(value));
  for (const OnnxValue& value : g.outputs) graph.message(12, message_of(value));

  // Fields of a message come in any order. Initializers are last, so that they are not copied.
  std::vector<std::string> heads;
  uint64_t rest = 0;
  for (const auto& [name, t] : g.initializers) {
    if (external) break;
    const Message numbers = Message().bytes(9, "", t.nbytes());
    const std::string head = message_of(name, t).text() + numbers.text();
    heads.push_back(Message().bytes(5, head, t.nbytes()).text());
    rest += heads.back().size() + t.nbytes();
  }
  AtomicFile file(path);
  std::optional<AtomicFile> data;  // appears only when both are complete
  if (external) write_external(data.emplace(numbers_path), numbers_name, g.initializers, graph);
  check(graph.text().size() + rest < most_bytes - model.text().size() - 16,
        "{}: {} bytes are more than an ONNX file may have (write its numbers to a second one)",
        path, graph.text().size() + rest);
  file.write(model.bytes(7, graph.text(), rest).text());
  for (size_t i = 0; i < heads.size(); ++i) {
    file.write(heads[i]);
    write_elements(file, g.initializers[i].second);
  }
  if (data) data->commit();
  file.commit();
}

}  // namespace mixtape::io
