// The Python names that pickles of torch.save may have, and the results of calling them.

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "io/elements.h"
#include "io/pickle.h"
#include "io/text.h"

namespace mixtape::io {
namespace {

constexpr TorchDType torch_dtypes[] = {
    {"float64", "DoubleStorage", 8, f64},
    {"float32", "FloatStorage", 4, f32},
    {"float16", "HalfStorage", 2, f16},
    {"bfloat16", "BFloat16Storage", 2, bf16},
    {"int64", "LongStorage", 8, i64},
    {"int32", "IntStorage", 4, i32},
    {"uint8", "ByteStorage", 1, u8},
    {"bool", "BoolStorage", 1, boolean},
    {"int16", "ShortStorage", 2, i16},
    {"int8", "CharStorage", 1, i8},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
    {"complex32", "", 4},
    {"qint8", "QInt8Storage", 1},  // quantised ones, whose tensors are not read
    {"quint8", "QUInt8Storage", 1},
    {"qint32", "QInt32Storage", 4},
    {"quint4x2", "QUInt4x2Storage", 1},
    {"quint2x4", "QUInt2x4Storage", 1},
    {"uint16", "", 2, u16},
    {"uint32", "", 4, u32},
    {"uint64", "", 8},
    {"float8_e4m3fn", "", 1, f8_e4m3},
    {"float8_e5m2", "", 1, f8_e5m2},
    {"float8_e4m3fnuz", "", 1},
    {"float8_e5m2fnuz", "", 1},
    {"float8_e8m0fnu", "", 1, f8_e8m0},
    {"float4_e2m1fn_x2", "", 1},
};

// The bytes that a value stands for, or none. (An array's data cannot be an array, so they do not
// nest.)
PickleValue bytes_of(const PickleValue& v) {
  const bool is_data = v.kind == PickleValue::Bytes || v.kind == PickleValue::Latin1;
  return is_data ? v : PickleValue();
}

}  // namespace

struct Pickle::Global {
  enum Meaning : uint8_t {
    MakesDict,
    MakesCounter,
    MakesDefaultDict,
    MakesNamespace,
    MakesSet,
    MakesBytes,
    MakesTensor,
    MakesTensorOfDType,
    MakesParameter,
    MakesFromType,
    MakesSize,
    MakesDevice,
    MakesNumpyType,
    MakesArray,
    MakesArrayOfBytes,
    MakesScalar,
    IsType,
    IsArray,
    IsUntyped,
    IsStorage,  // its size tells the dtype
  };
  std::string_view module, name;
  Meaning meaning;
};

const Pickle::Global Pickle::globals[] = {
    {"collections", "OrderedDict", Global::MakesDict},
    {"collections", "Counter", Global::MakesCounter},
    {"collections", "defaultdict", Global::MakesDefaultDict},
    {"argparse", "Namespace", Global::MakesNamespace},
    {"builtins", "set", Global::MakesSet},
    {"__builtin__", "set", Global::MakesSet},
    {"builtins", "frozenset", Global::MakesSet},
    {"__builtin__", "frozenset", Global::MakesSet},
    {"_codecs", "encode", Global::MakesBytes},
    {"builtins", "bytearray", Global::MakesBytes},
    {"__builtin__", "bytearray", Global::MakesBytes},
    {"builtins", "bytes", Global::MakesBytes},
    {"__builtin__", "bytes", Global::MakesBytes},
    {"numpy", "dtype", Global::MakesNumpyType},
    {"numpy", "ndarray", Global::IsArray},
    {"numpy.core.multiarray", "_reconstruct", Global::MakesArray},
    {"numpy._core.multiarray", "_reconstruct", Global::MakesArray},
    {"numpy.core.numeric", "_frombuffer", Global::MakesArrayOfBytes},
    {"numpy._core.numeric", "_frombuffer", Global::MakesArrayOfBytes},
    {"numpy.core.multiarray", "scalar", Global::MakesScalar},
    {"numpy._core.multiarray", "scalar", Global::MakesScalar},
    {"torch._utils", "_rebuild_tensor", Global::MakesTensor},
    {"torch._utils", "_rebuild_tensor_v2", Global::MakesTensor},
    {"torch._utils", "_rebuild_tensor_v3", Global::MakesTensorOfDType},
    {"torch._utils", "_rebuild_parameter", Global::MakesParameter},
    {"torch._utils", "_rebuild_parameter_with_state", Global::MakesParameter},
    {"torch._tensor", "_rebuild_from_type_v2", Global::MakesFromType},
    {"torch", "Size", Global::MakesSize},
    {"torch", "device", Global::MakesDevice},
    {"torch", "Tensor", Global::IsType},
    {"torch._tensor", "Tensor", Global::IsType},
    {"torch.nn.parameter", "Parameter", Global::IsType},
    {"torch.nn.parameter", "Buffer", Global::IsType},
    {"torch", "UntypedStorage", Global::IsUntyped},
    {"torch.storage", "UntypedStorage", Global::IsUntyped},
    {"torch", "*Storage", Global::IsStorage},
    {"torch.cuda", "*Storage", Global::IsStorage},
};

const TorchDType& torch_dtype(DType t) {
  return *std::ranges::find(torch_dtypes, std::optional(t), &TorchDType::here);  // has all
}

PickleValue Pickle::global(std::string_view module, std::string_view name) {
  const auto* const dtype = std::ranges::find_if(torch_dtypes, [&](const TorchDType& t) {
    return name == t.storage || (module == "torch" && name == t.name);
  });
  const bool is_dtype = dtype != std::end(torch_dtypes) && !name.empty();
  const std::string_view wanted = is_dtype ? "*Storage" : name;
  const auto* const found = std::ranges::find_if(globals, [&](const Global& g) {
    return g.module == module && g.name == wanted && (g.meaning == Global::IsStorage) == is_dtype;
  });
  if (found == std::end(globals)) return unknown(module, name);
  return Value::of(Value::Global, uint64_t(found - globals),
                   is_dtype ? uint32_t(dtype - torch_dtypes) : 0);
}

PickleValue Pickle::unknown(std::string_view module, std::string_view name) {
  take(sizeof(Unknown));
  unknowns_.push_back({module, name, at_});
  return Value::of(Value::Unknown, unknowns_.size() - 1);
}

// ("storage", type, key, device, numel), and in old files None or (key, offset, numel) of a view;
// or in old files ("module", type, file, source) for the type of a module.
PickleValue Pickle::persistent(const Value& id) {
  const std::vector<Value>& parts = list(id);
  if (parts.size() > 1 && parts[1].kind == Value::Unknown) return parts[1];
  if (const Value& kind = argument(parts, 0, Value::Text); text(kind) != "storage")
    refuse(fmt::format("it holds a {}, not tensors alone", quote(text(kind))));
  const Value& type = argument(parts, 1, Value::Global);
  const Global::Meaning meaning = globals[type.index].meaning;
  if (meaning != Global::IsStorage && meaning != Global::IsUntyped) refuse("a storage has no type");
  const int64_t numel = argument(parts, 4, Value::Int).whole;
  Storage s{.key = text(argument(parts, 2, Value::Text)),
            .dtype = meaning == Global::IsStorage ? &torch_dtypes[type.size] : nullptr,
            .numel = uint64_t(numel),
            .offset = 0};
  if (parts.size() > 5 && parts[5].kind == Value::List)
    s.offset = argument(list(parts[5]), 1, Value::Int).whole;
  if (numel < 0 || s.offset < 0 || s.offset > numel) refuse("a storage's size is out of range");
  take(sizeof s);
  storages_.push_back(s);
  return Value::of(Value::Storage, storages_.size() - 1);
}

const PickleValue& Pickle::argument(const std::vector<Value>& arguments, size_t i,
                                    Value::Kind kind) const {
  if (i >= arguments.size() || arguments[i].kind != kind)
    refuse(fmt::format("argument {} is missing or of another type", i));
  return arguments[i];
}

// Calls a function. The result is unread if the function or its first argument is.
PickleValue Pickle::call(const Value& function, const Value& arguments) {
  if (function.kind == Value::Unknown) return function;
  if (function.kind != Value::Global) refuse("a value of another type is on the stack");
  const Global& global = globals[function.index];
  if (global.meaning == Global::MakesDefaultDict) return make(Value::Dict, {});
  const std::vector<Value>& given = list(arguments);
  if (!given.empty() && given[0].is_unread()) return given[0];
  const auto first = [&](Value::Kind kind) { return argument(given, 0, kind); };
  switch (global.meaning) {
    case Global::MakesDict:
      return rebuilt_dict(given);
    case Global::MakesCounter:
      return given.empty() ? make(Value::Dict, {}) : first(Value::Dict);
    case Global::MakesNamespace:
      return Value::of(Value::Dict, make(Value::Dict, {}).index, 1);
    case Global::MakesBytes:
      return encoded(global, given);
    case Global::MakesNumpyType:
      return numpy_type(text(first(Value::Text)));
    case Global::MakesArray:
      if (globals[first(Value::Global).index].meaning != Global::IsArray)
        refuse("an array is of another type");
      return array_of({f64}, {});
    case Global::MakesArrayOfBytes:
      return array_of_bytes(given);
    case Global::MakesScalar:
      return array_of(numpy_types_[first(Value::NumpyType).index],
                      given.size() > 1 ? given[1] : Value());
    case Global::MakesSet:
    case Global::MakesSize:
      return first(Value::List);
    case Global::MakesTensor:
    case Global::MakesTensorOfDType:
      return rebuilt_tensor(given, global.meaning == Global::MakesTensorOfDType);
    case Global::MakesParameter:
      return first(Value::Tensor);
    case Global::MakesFromType: {
      const Value rebuild = first(Value::Global), inner = argument(given, 2, Value::List);
      const Global::Meaning meaning = globals[rebuild.index].meaning;
      if (meaning < Global::MakesTensor || meaning > Global::MakesParameter)
        refuse("no tensor is rebuilt");
      return call(rebuild, inner);
    }
    case Global::MakesDevice: {
      const Value type = first(Value::Text);
      if (given.size() < 2) return type;
      made_.push_back(fmt::format("{}:{}", text(type), argument(given, 1, Value::Int).whole));
      take(sizeof(std::string) + made_.back().size());
      return Value::of(Value::Text, text_.size() + made_.size() - 1, uint32_t(made_.back().size()));
    }
    default:
      refuse("a type is called, which makes nothing that is read");
  }
}

// Bytes from nothing, from bytes, or from a text and its encoding.
PickleValue Pickle::encoded(const Global& function, const std::vector<Value>& arguments) {
  if (arguments.empty()) return Value::of(Value::Bytes, 0);
  if (arguments[0].kind == Value::Bytes || arguments[0].kind == Value::Latin1) return arguments[0];
  const std::string_view encoding = text(argument(arguments, 1, Value::Text));
  if (encoding != "latin1" && encoding != "latin-1") return unknown(function.module, function.name);
  const Value& given = argument(arguments, 0, Value::Text);
  return Value::of(Value::Latin1, given.index, given.size);
}

std::string Pickle::content(const Value& v) const {
  const std::string_view stored = text(v);
  if (v.kind == Value::Bytes) return std::string(stored);
  std::string bytes;
  for (size_t i = 0; i < stored.size(); ++i) {
    const auto lead = uint8_t(stored[i]);
    if (lead < 0x80) {
      bytes += stored[i];
      continue;
    }
    const auto next = i + 1 < stored.size() ? uint8_t(stored[++i]) : uint8_t{0};
    if ((lead != 0xc2 && lead != 0xc3) || (next & 0xc0) != 0x80)
      refuse("bytes are no text of Latin-1");
    bytes += char(lead << 6 | (next & 0x3f));
  }
  return bytes;
}

PickleValue Pickle::numpy_type(std::string_view code) {
  const auto* const found = std::ranges::find(numpy_dtypes, code, [](auto& d) { return d.first; });
  if (found == std::end(numpy_dtypes)) return unknown("numpy.dtype", code);
  take(sizeof(NumpyType));
  numpy_types_.push_back({found->second});
  return Value::of(Value::NumpyType, numpy_types_.size() - 1);
}

PickleValue Pickle::array_of(const NumpyType& type, const Value& data) {
  take(sizeof(Array));
  arrays_.push_back({type, {}, false, bytes_of(data)});
  return Value::of(Value::Array, arrays_.size() - 1);
}

// (bytes, dtype, shape, "C" or "F"), as NumPy writes arrays in protocol 5
PickleValue Pickle::array_of_bytes(const std::vector<Value>& arguments) {
  if (arguments.size() > 1 && arguments[1].kind == Value::Unknown) return arguments[1];
  const Value data = argument(arguments, 0, Value::Bytes),
              type = argument(arguments, 1, Value::NumpyType),
              shape = argument(arguments, 2, Value::List), unread = high_rank(shape);
  if (unread.is_unread()) return unread;
  const Value made = array_of(numpy_types_[type.index], data);
  Array& array = arrays_[made.index];
  array.shape = shape_of(shape);
  array.by_columns = text(argument(arguments, 3, Value::Text)) == "F";
  return made;
}

// Gives the value on top of the stack its state. The state of a dict, such as a state_dict's
// _metadata, is ignored.
void Pickle::build(const Value& state) {
  const Value v = top();
  if (v.kind == Value::Dict && v.size > 0 && state.kind == Value::Dict) {
    append(Value::Dict, std::vector(list(state)));
  } else if (v.kind == Value::NumpyType) {
    if (state.kind != Value::List) refuse("a dtype of NumPy has no state");
    // The memo may hold the type already, without its byte order.
    numpy_types_[v.index].big_endian = text(argument(list(state), 1, Value::Text)) == ">";
  } else if (v.kind == Value::Array) {
    if (state.kind != Value::List) refuse("an array has no state");
    build_array(arrays_[v.index], list(state));
  } else if (v.kind != Value::Dict && v.kind != Value::Unknown) {
    refuse("a value of another type is on the stack");
  }
}

// (version, shape, dtype, whether columns come first, bytes)
void Pickle::build_array(Array& array, const std::vector<Value>& state) {
  if (state.size() > 2 && state[2].kind == Value::Unknown) {
    array.data = state[2];
    return;
  }
  const Value& shape = argument(state, 1, Value::List);
  array.data = high_rank(shape);
  if (array.data.is_unread()) return;
  array.shape = shape_of(shape);
  array.type = numpy_types_[argument(state, 2, Value::NumpyType).index];
  array.by_columns = argument(state, 3, Value::Bool).whole != 0;
  array.data = state.size() > 4 ? bytes_of(state[4]) : Value();
}

// A dict from no argument or one list of pairs.
PickleValue Pickle::rebuilt_dict(const std::vector<Value>& arguments) {
  std::vector<Value> items;
  if (!arguments.empty())
    for (const Value& pair : list(argument(arguments, 0, Value::List))) {
      if (pair.kind != Value::List || list(pair).size() != 2)
        refuse("an item of a dict is not a pair");
      items.insert(items.end(), list(pair).begin(), list(pair).end());
      take(2 * sizeof(Value));  // before they are added, since a list may hold a pair many times
    }
  return make(Value::Dict, std::move(items));
}

PickleValue Pickle::high_rank(const Value& shape) const {
  const size_t rank = list(shape).size();
  return rank > size_t{max_rank} ? Value::of(Value::HighRank, 0, uint32_t(rank)) : Value();
}

Shape Pickle::shape_of(const Value& tuple) const {
  Shape shape;
  if (list(tuple).size() > size_t{max_rank})
    refuse(fmt::format("a tensor has more than {} dimensions", max_rank));
  for (size_t i = 0; i < list(tuple).size(); ++i) {
    const int64_t size = argument(list(tuple), i, Value::Int).whole;
    if (size < 0) refuse("a tensor's size or stride is negative");
    shape.push_back(size);
  }
  return shape;
}

// (storage, offset, shape, strides, requires_grad, hooks), a dtype if the storage has none, and a
// dict of marks if there are any.
PickleValue Pickle::rebuilt_tensor(const std::vector<Value>& arguments, bool has_dtype) {
  if (has_dtype && arguments.size() > 6 && arguments[6].kind == Value::Unknown) return arguments[6];
  const Value& shape = argument(arguments, 2, Value::List);
  if (const Value unread = high_rank(shape); unread.is_unread()) return unread;
  const size_t index = argument(arguments, 0, Value::Storage).index;
  const Storage& s = storages_[index];
  const TorchDType* dtype = s.dtype;
  if (has_dtype) {
    const Value& given = argument(arguments, 6, Value::Global);
    if (globals[given.index].meaning != Global::IsStorage)
      refuse("a tensor's dtype is of another type");
    dtype = &torch_dtypes[given.size];
  }
  if (!dtype || (s.dtype && s.dtype != dtype)) refuse("a tensor's dtype is not its storage's");
  Tensor t{index, dtype,
           internal::Layout(shape_of(shape), shape_of(argument(arguments, 3, Value::List)),
                            argument(arguments, 1, Value::Int).whole)};
  if (t.layout.offset < 0 || t.layout.strides.rank != t.layout.rank())
    refuse("a tensor's offset or number of strides is wrong");
  if (__builtin_add_overflow(t.layout.offset, s.offset, &t.layout.offset))
    refuse("a tensor's offset is out of range");
  check_reach(t);
  const size_t last = has_dtype ? 7 : 6;
  const Value marks = arguments.size() > last ? arguments[last] : Value();
  t.negated = item(marks, "neg").whole != 0;
  t.conjugated = item(marks, "conj").whole != 0;
  take(sizeof t);
  tensors_.push_back(t);
  return Value::of(Value::Tensor, tensors_.size() - 1);
}

void Pickle::check_reach(const Tensor& t) const {
  const Storage& s = storages_[t.storage];
  const uint64_t numel = s.dtype ? s.numel : s.numel / t.dtype->bytes;
  int64_t last = t.layout.offset, count = t.dtype->bytes;  // of the elements, and their bytes
  bool fits = true, empty = false;
  for (int d = 0; d < t.layout.rank(); ++d) {
    const int64_t size = t.layout.shape[d];
    int64_t reach = 0;
    empty = empty || size == 0;
    fits = fits && !__builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count) &&
           !__builtin_mul_overflow(std::max<int64_t>(size - 1, 0), t.layout.strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  if (!fits || (!empty && uint64_t(last) >= numel))
    refuse(fmt::format("a tensor {} with strides {} at {} reaches beyond its storage of {}",
                       t.layout.shape.to_string(), t.layout.strides.to_string(), t.layout.offset,
                       numel));
}

}  // namespace mixtape::io
