#pragma once
// Pickles of torch.save, read as data by lists of known opcodes and known Python names, none of
// which runs code. Other names make unknown values, of which only the name is kept. Values refer to
// the text and to pools of the Pickle, so a hostile one takes memory in proportion to its length,
// and nesting causes no recursion.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/layout.h"

namespace mixtape::io {

// PyTorch's names of a dtype and of its storages.
struct TorchDType {
  std::string_view name, storage;  // "float32", "FloatStorage"; newer dtypes have no storage
  uint8_t bytes;                   // of an element
  std::optional<DType> here = {};  // our dtype, if there is one
};
const TorchDType& torch_dtype(DType t);

struct PickleValue {
  enum Kind : uint8_t {
    None,
    Bool,
    Int,
    Large,  // an integer of more than 64 bits
    Float,
    Text,
    Bytes,
    Latin1,  // bytes as the characters of a text, as in protocol 2
    List,
    Dict,
    Global,
    Storage,
    Tensor,
    NumpyType,
    Array,     // NumPy's arrays and scalars
    HighRank,  // a tensor or array of more dimensions than tensors may have here
    Unknown
  };
  Kind kind = None;
  // Bytes of Text, Large, Bytes and Latin1; dimensions of HighRank; 1 for a Dict whose attributes
  // are its items.
  uint32_t size = 0;
  union {
    int64_t whole = 0;  // of Bool and Int
    double real;
    uint64_t index;  // of the first byte of texts and bytes, in a pool
  };

  static PickleValue of(Kind kind, uint64_t index, uint32_t size = 0) {
    PickleValue v;
    v.kind = kind;
    v.size = size;
    v.index = index;
    return v;
  }
  // True for a value of which no content is kept, nor of what is made from it.
  bool is_unread() const { return kind == Unknown || kind == HighRank; }
};

class Pickle {
 public:
  using Value = PickleValue;

  // A persistent id, which stands for numbers elsewhere in the file.
  struct Storage {
    std::string_view key;
    const TorchDType* dtype;  // null if untyped: bytes
    uint64_t numel;
    int64_t offset;  // in elements; an old file's storage may be a view of another
  };
  struct Tensor {
    size_t storage;
    const TorchDType* dtype;
    internal::Layout layout;
    // PyTorch's marks of views whose numbers it has not changed yet.
    bool negated = false, conjugated = false;
  };

  struct NumpyType {
    DType dtype;
    bool big_endian = false;
  };
  struct Array {
    NumpyType type;
    Shape shape;
    bool by_columns;
    Value data;  // Bytes or Latin1; None if there are none; Unknown or HighRank if the array is
  };
  // A name that is not among the known ones, and the byte after it.
  struct Unknown {
    std::string_view module, name;
    uint64_t at;
  };

  // Reads one pickle at the start of `text`, which must outlive it. Errors begin with `where`.
  // Throws Error if more than `most` bytes of memory are needed.
  Pickle(std::string_view text, std::string where, uint64_t most);

  const Value& value() const { return value_; }
  uint64_t length() const { return at_; }  // bytes read
  uint64_t memory() const { return memory_; }
  std::string_view text(const Value& v) const {
    return v.index < text_.size() ? text_.substr(v.index, v.size) : made_[v.index - text_.size()];
  }
  std::string content(const Value& v) const;  // of Bytes and Latin1
  // The elements of a list; for a dict, keys and values in turn.
  const std::vector<Value>& list(const Value& v) const { return lists_[v.index]; }
  // The value of a key; None if there is none, or `dict` is no dict.
  Value item(const Value& dict, std::string_view key) const;
  const std::vector<Storage>& storages() const { return storages_; }
  const Tensor& tensor(const Value& v) const { return tensors_[v.index]; }
  const Array& array(const Value& v) const { return arrays_[v.index]; }
  const Unknown& unknown(const Value& v) const { return unknowns_[v.index]; }

 private:
  struct Global;
  static const Global globals[];

  [[noreturn]] void refuse(std::string_view what) const;
  void take(uint64_t bytes);  // counts memory; throws Error beyond the limit

  uint64_t number(int width);  // the next bytes of the text
  std::string_view bytes(uint64_t n);
  std::string_view line();

  void push(const Value& v);
  void push_text(Value::Kind kind, uint64_t n);
  void push_int(int64_t x);
  void push_long(uint64_t bytes);
  Value pop(Value::Kind kind);
  Value pop();
  std::vector<Value> pop_mark();
  Value make(Value::Kind kind, std::vector<Value> elements);
  Value top();
  void append(Value::Kind kind, const std::vector<Value>& elements);
  void put(uint64_t at);
  void get(uint64_t at);
  Value tuple(size_t n);

  bool run(uint8_t opcode);  // false at the end
  bool push_scalar(uint8_t opcode);
  bool push_container(uint8_t opcode);
  bool use_memo(uint8_t opcode);
  Value global(std::string_view module, std::string_view name);
  Value unknown(std::string_view module, std::string_view name);
  Value persistent(const Value& id);
  Value call(const Value& function, const Value& arguments);
  Value encoded(const Global& function, const std::vector<Value>& arguments);
  Value numpy_type(std::string_view code);
  Value array_of(const NumpyType& type, const Value& data);
  Value array_of_bytes(const std::vector<Value>& arguments);
  void build(const Value& state);
  void build_array(Array& array, const std::vector<Value>& state);
  Value rebuilt_dict(const std::vector<Value>& arguments);
  Value rebuilt_tensor(const std::vector<Value>& arguments, bool has_dtype);
  void check_reach(const Tensor& t) const;  // throws Error unless elements are in the storage
  const Value& argument(const std::vector<Value>& arguments, size_t i, Value::Kind kind) const;
  Shape shape_of(const Value& tuple) const;
  Value high_rank(const Value& shape) const;  // None if it is not

  const std::string_view text_;
  const std::string where_;
  const uint64_t most_;
  uint64_t at_ = 0, memory_ = 0;
  std::vector<Value> stack_, memo_;
  std::vector<size_t> marks_;
  std::vector<std::vector<Value>> lists_;
  std::vector<Storage> storages_;
  std::vector<Tensor> tensors_;
  std::vector<NumpyType> numpy_types_;
  std::vector<Array> arrays_;
  std::vector<Unknown> unknowns_;
  std::deque<std::string> made_;  // texts, beside those of the pickle
  Value value_;
};

}  // namespace mixtape::io
