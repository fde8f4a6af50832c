// The file of a capsule. Numbers are stored once, in the order of their strides, so that broadcast
// inputs take no more space than in memory. Only tensors that are not dense have a layout there.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "amp/capsule.h"
#include "amp/trace.h"
#include "autograd/tape.h"
#include "core/check.h"
#include "core/format.h"
#include "io/crc.h"
#include "io/safetensors.h"

namespace mixtape::amp {
using namespace internal;
namespace {

constexpr auto format = "mixtape overflow capsule 1", sum_field = "description_checksum";

std::string text_of(std::span<const int64_t> numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}
std::span<const int64_t> span_of(const Shape& s) { return {s.dim, size_t(s.rank)}; }

// A checksum of everything but the tensors' numbers, to detect accidental changes.
std::string sum_of(const io::Metadata& fields, const StateDict& tensors,
                   const std::string& attributes) {
  std::string all;
  const auto add = [&](const std::string& text) { all.append(text.c_str(), text.size() + 1); };
  for (const auto& [name, value] : fields)
    if (name != sum_field) add(name), add(value);
  std::map<std::string, std::string> sorted;
  for (const auto& [name, t] : tensors) sorted[name] = fmt::format("{} {}", t.dtype(), t.shape());
  for (const auto& [name, what] : sorted) add(name), add(what);
  add(attributes);
  return fmt::format("{:08x}", io::crc32c(std::as_bytes(std::span(all))));
}

class Fields {
 public:
  Fields(const io::Metadata& all, const std::string& path) : all_(all), path_(path) {}
  const std::string& operator[](const std::string& name) const {
    const auto at = all_.find(name);
    check(at != all_.end(), "{}: no \"{}\": not a capsule of an overflow", path_, name);
    return at->second;
  }
  bool has(const std::string& name) const { return all_.contains(name); }

  // The whole numbers of a field, which spaces separate.
  template <class Number = int64_t>
  std::vector<Number> numbers(const std::string& name) const {
    const std::string& text = (*this)[name];
    std::vector<Number> all;
    const char *at = text.data(), *const end = at + text.size();
    while (at != end) {
      if (*at == ' ') {
        ++at;
        continue;
      }
      Number number = 0;
      const auto [next, error] = std::from_chars(at, end, number);
      check(error == std::errc() && number >= 0, "{}: {} must be whole numbers >= 0, got \"{}\"",
            path_, name, text);
      all.push_back(number);
      at = next;
    }
    return all;
  }
  // A tensor over stored numbers, of the layout that its fields give. Throws Error if it would read
  // beyond them.
  Tensor restored(const std::string& name, const Tensor& stored) const {
    if (!has(name + ".shape")) return stored;
    const std::vector<int64_t> sizes = numbers(name + ".shape"), steps = numbers(name + ".strides");
    check(sizes.size() == steps.size(),
          "{}: {}: shape and strides must have the same rank, got {} and {}", path_, name,
          sizes.size(), steps.size());
    const Layout layout{Shape(sizes), Shape(steps)};
    int64_t last = 0, size = 1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      size = sizes[d] == 0 ? 0 : size;
      int64_t reach = 0;
      const bool fits = sizes[d] == 0 || (!__builtin_mul_overflow(sizes[d] - 1, steps[d], &reach) &&
                                          !__builtin_add_overflow(last, reach, &last));
      check(fits && last < std::max<int64_t>(stored.numel(), 1),
            "{}: {}: strides {} reach beyond the {} numbers", path_, name, layout.strides,
            stored.numel());
    }
    check(size == 0 || stored.numel() > 0, "{}: {}: shape {} must have numbers, got none", path_,
          name, layout.shape);
    return stored.with_layout(layout);
  }

 private:
  const io::Metadata& all_;
  const std::string& path_;
};

}  // namespace

void Capsule::save(const std::string& path) const {
  const Unobserved aside;
  StateDict tensors;
  io::Metadata fields{{"format", format},
                      {"op", op},
                      {"module", module},
                      {"types", types},
                      {"finding", finding},
                      {"device", device},
                      {"instruction_set", instruction_set},
                      {"compiler", compiler},
                      {"random", fmt::format("{} {}", seed, offset)},
                      {"tf32", tf32 ? "allowed" : ""},
                      {"inputs", fmt::format("{}", inputs.size())},
                      {"lists", text_of(lists)},
                      {"out", out ? std::string(name(*out)) : ""},
                      {"checksum", checksum}};
  const auto add = [&](const std::string& name, const Tensor& t) {
    if (t.is_contiguous()) {
      tensors.emplace_back(name, t);
      return;
    }
    const auto [numbers, layout] = detail::numbers_of(t);
    tensors.emplace_back(name, numbers);
    fields[name + ".shape"] = text_of(span_of(layout.shape));
    fields[name + ".strides"] = text_of(span_of(layout.strides));
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].tensor) continue;
    const std::string name = fmt::format("input.{}", i);
    add(name, inputs[i].tensor);
    if (inputs[i].requires_grad) fields[name + ".gradient"] = mixtape::name(inputs[i].grad_dtype);
  }
  if (gradient) add("gradient", gradient);
  Tensor bytes({int64_t(attributes.size())}, u8, Device::cpu());
  std::copy(attributes.begin(), attributes.end(), bytes.data<uint8_t>());
  tensors.emplace_back("attributes", bytes);
  fields[sum_field] = sum_of(fields, tensors, attributes);
  io::save(path, tensors, fields);
}

Capsule Capsule::load(const std::string& path) {
  const io::SafeTensors file = io::load(path);
  const Fields fields(file.metadata, path);
  check(fields["format"] == format, "{}: \"{}\" is not \"{}\"", path, fields["format"], format);
  Capsule c;
  c.op = fields["op"], c.module = fields["module"], c.types = fields["types"];
  c.finding = fields["finding"], c.checksum = fields["checksum"];
  c.device = fields["device"];
  c.instruction_set = fields["instruction_set"], c.compiler = fields["compiler"];
  const std::vector<uint64_t> random = fields.numbers<uint64_t>("random");
  const std::vector<int64_t> count = fields.numbers("inputs");
  check(random.size() == 2 && count.size() == 1 && count[0] <= int64_t(file.tensors.size()) + 64,
        "{}: not a capsule of an overflow", path);
  c.seed = random[0], c.offset = random[1];
  c.tf32 = !fields["tf32"].empty();
  c.lists = fields.numbers("lists");
  if (!fields["out"].empty()) c.out = parse_dtype(fields["out"]);
  const auto get = [&](const std::string& name) {
    return fields.restored(name, file.tensors.at(name));
  };
  for (int64_t i = 0; i < count[0]; ++i) {
    Input& in = c.inputs.emplace_back();
    const std::string name = fmt::format("input.{}", i);
    if (!file.tensors.contains(name)) continue;
    in.tensor = get(name);
    in.requires_grad = fields.has(name + ".gradient");
    if (in.requires_grad) in.grad_dtype = parse_dtype(fields[name + ".gradient"]);
  }
  if (file.tensors.contains("gradient")) c.gradient = get("gradient");
  const Tensor bytes = file.tensors.at("attributes");
  check(bytes.dtype() == u8 && bytes.is_contiguous(), "{}: attributes must be u8, got {}", path,
        bytes.dtype());
  c.attributes.assign(bytes.data<uint8_t>(), bytes.data<uint8_t>() + bytes.numel());
  check(fields[sum_field] == sum_of(file.metadata, file.tensors, c.attributes),
        "{}: was changed since it was written", path);
  return c;
}

}  // namespace mixtape::amp
