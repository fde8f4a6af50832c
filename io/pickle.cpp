// A machine with a stack and a memo, like that of Python's pickle module, for protocols 2 to 5.

#include "io/pickle.h"

#include <fmt/format.h>

#include <cstring>

#include "core/check.h"

namespace mixtape::io {

Pickle::Pickle(std::string_view text, std::string where, uint64_t most)
    : text_(text), where_(std::move(where)), most_(most) {
  if (!text.starts_with('\x80')) refuse("begins with no opcode PROTO, so its protocol is below 2");
  while (run(static_cast<uint8_t>(number(1)))) {
  }
}

void Pickle::refuse(std::string_view what) const {
  fail("{}: pickle: near byte {}: {}", where_, at_, what);
}

void Pickle::take(uint64_t bytes) {
  memory_ += bytes;
  check(memory_ <= most_, "{}: pickle: takes more than {} bytes of memory (raise max_memory)",
        where_, most_);
}

uint64_t Pickle::number(int width) {
  uint64_t value = 0;
  std::memcpy(&value, bytes(uint64_t(width)).data(), size_t(width));
  return value;
}

std::string_view Pickle::bytes(uint64_t n) {
  if (n > text_.size() - at_) refuse("it ends early");
  at_ += n;
  return text_.substr(at_ - n, n);
}

std::string_view Pickle::line() {
  const size_t end = text_.find('\n', at_);
  if (end == text_.npos) refuse("it ends early");
  const std::string_view found = bytes(end - at_);
  ++at_;
  return found;
}

void Pickle::push(const Value& v) {
  take(sizeof v);
  stack_.push_back(v);
}

void Pickle::push_text(Value::Kind kind, uint64_t n) {
  if (n > UINT32_MAX) refuse("a text of more than 4 GB");
  const Value v = Value::of(kind, at_, static_cast<uint32_t>(n));
  bytes(n);
  push(v);
}

void Pickle::push_int(int64_t x) { push(Value::of(Value::Int, uint64_t(x))); }

void Pickle::push_long(uint64_t bytes) {
  if (bytes > 8) return push_text(Value::Large, bytes);
  const auto width = static_cast<int>(bytes), unused = 64 - 8 * width;
  push_int(width == 0 ? 0 : int64_t(number(width) << unused) >> unused);
}

PickleValue Pickle::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse("nothing is on the stack");
  const Value v = stack_.back();
  stack_.pop_back();
  return v;
}

PickleValue Pickle::pop(Value::Kind kind) {
  const Value v = pop();
  if (v.kind != kind) refuse("a value of another type is on the stack");
  return v;
}

std::vector<PickleValue> Pickle::pop_mark() {
  if (marks_.empty()) refuse("no mark is on the stack");
  const auto begin = stack_.begin() + std::ptrdiff_t(marks_.back());
  std::vector<Value> found(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return found;
}

PickleValue Pickle::make(Value::Kind kind, std::vector<Value> elements) {
  if (kind == Value::Dict && elements.size() % 2 > 0) refuse("a dict has a key without a value");
  take(sizeof elements + elements.size() * sizeof(Value));
  lists_.push_back(std::move(elements));
  return Value::of(kind, lists_.size() - 1);
}

PickleValue Pickle::item(const Value& dict, std::string_view key) const {
  if (dict.kind != Value::Dict) return {};
  const std::vector<Value>& items = list(dict);
  for (size_t i = 0; i + 1 < items.size(); i += 2)
    if (items[i].kind == Value::Text && text(items[i]) == key) return items[i + 1];
  return {};
}

PickleValue Pickle::top() {
  const Value v = pop();
  stack_.push_back(v);
  return v;
}

// Appends to the list or dict on top of the stack, or to an unknown value there.
void Pickle::append(Value::Kind kind, const std::vector<Value>& elements) {
  if (kind == Value::Dict && elements.size() % 2 > 0) refuse("a dict has a key without a value");
  const Value to = top();
  if (to.kind == Value::Unknown) return;
  if (to.kind != kind) refuse("a value of another type is on the stack");
  take(elements.size() * sizeof(Value));
  lists_[to.index].insert(lists_[to.index].end(), elements.begin(), elements.end());
}

void Pickle::put(uint64_t at) {
  const Value v = top();
  if (at >= text_.size()) refuse("a number of the memo is larger than the pickle");
  if (at >= memo_.size()) {
    take((at + 1 - memo_.size()) * sizeof v);
    memo_.resize(at + 1);
  }
  memo_[at] = v;
}

void Pickle::get(uint64_t at) {
  if (at >= memo_.size()) refuse("the memo has no such number");
  push(memo_[at]);
}

PickleValue Pickle::tuple(size_t n) {
  std::vector<Value> elements(n);
  for (size_t i = n; i-- > 0;) elements[i] = pop();
  return make(Value::List, std::move(elements));
}

// The opcodes are those of Python's module pickle, where each is described.
bool Pickle::run(uint8_t opcode) {
  if (push_scalar(opcode) || push_container(opcode) || use_memo(opcode)) return true;
  switch (opcode) {
    case 0x80:  // PROTO
      if (number(1) > 5) refuse("a protocol above 5");
      return true;
    case 0x95:  // FRAME
      bytes(8);
      return true;
    case '.':  // STOP
      value_ = pop();
      return false;
    case '(':  // MARK
      take(sizeof(size_t));
      marks_.push_back(stack_.size());
      return true;
    case '0':  // POP
      if (!marks_.empty() && marks_.back() == stack_.size())
        marks_.pop_back();
      else
        pop();
      return true;
    case '1':  // POP_MARK
      pop_mark();
      return true;
    case 'c': {  // GLOBAL
      const std::string_view module = line(), name = line();
      push(global(module, name));
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const Value name = pop(Value::Text), module = pop(Value::Text);
      push(global(text(module), text(name)));
      return true;
    }
    case 'Q':  // BINPERSID
      push(persistent(pop(Value::List)));
      return true;
    case 'R':     // REDUCE
    case 0x81: {  // NEWOBJ
      const Value arguments = pop(Value::List), function = pop();
      push(call(function, arguments));
      return true;
    }
    case 0x92: {  // NEWOBJ_EX, with arguments by name
      pop(Value::Dict);
      const Value arguments = pop(Value::List), type = pop();
      push(call(type, arguments));
      return true;
    }
    case 'b':  // BUILD
      build(pop());
      return true;
    default:
      refuse(fmt::format("opcode {:#x} is not among those that are read", opcode));
  }
}

bool Pickle::push_scalar(uint8_t opcode) {
  switch (opcode) {
    case 'N':  // NONE
      push({});
      return true;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      push(Value::of(Value::Bool, opcode == 0x88));
      return true;
    case 'J':  // BININT
      push_int(static_cast<int32_t>(number(4)));
      return true;
    case 'K':  // BININT1
      push_int(int64_t(number(1)));
      return true;
    case 'M':  // BININT2
      push_int(int64_t(number(2)));
      return true;
    case 0x8a:  // LONG1
      push_long(number(1));
      return true;
    case 0x8b:  // LONG4
      push_long(number(4));
      return true;
    case 'G':  // BINFLOAT, big-endian
      push(Value::of(Value::Float, __builtin_bswap64(number(8))));
      return true;
    case 'X':  // BINUNICODE
    case 'T':  // BINSTRING, Python 2's
      push_text(Value::Text, number(4));
      return true;
    case 0x8c:  // SHORT_BINUNICODE
    case 'U':   // SHORT_BINSTRING
      push_text(Value::Text, number(1));
      return true;
    case 0x8d:  // BINUNICODE8
      push_text(Value::Text, number(8));
      return true;
    case 'B':  // BINBYTES
      push_text(Value::Bytes, number(4));
      return true;
    case 'C':  // SHORT_BINBYTES
      push_text(Value::Bytes, number(1));
      return true;
    case 0x8e:  // BINBYTES8
    case 0x96:  // BYTEARRAY8
      push_text(Value::Bytes, number(8));
      return true;
    default:
      return false;
  }
}

bool Pickle::push_container(uint8_t opcode) {
  switch (opcode) {
    case ']':   // EMPTY_LIST
    case ')':   // EMPTY_TUPLE
    case 0x8f:  // EMPTY_SET
      push(make(Value::List, {}));
      return true;
    case '}':  // EMPTY_DICT
      push(make(Value::Dict, {}));
      return true;
    case 't':   // TUPLE
    case 'l':   // LIST
    case 0x91:  // FROZENSET
      push(make(Value::List, pop_mark()));
      return true;
    case 'd':  // DICT
      push(make(Value::Dict, pop_mark()));
      return true;
    case 0x85:  // TUPLE1
    case 0x86:  // TUPLE2
    case 0x87:  // TUPLE3
      push(tuple(opcode - 0x84u));
      return true;
    case 'a': {  // APPEND
      const Value v = pop();
      append(Value::List, {v});
      return true;
    }
    case 'e':   // APPENDS
    case 0x90:  // ADDITEMS
      append(Value::List, pop_mark());
      return true;
    case 's': {  // SETITEM
      const Value v = pop(), key = pop();
      append(Value::Dict, {key, v});
      return true;
    }
    case 'u':  // SETITEMS
      append(Value::Dict, pop_mark());
      return true;
    default:
      return false;
  }
}

bool Pickle::use_memo(uint8_t opcode) {
  switch (opcode) {
    case '2':  // DUP
      push(top());
      return true;
    case 'q':  // BINPUT
      put(number(1));
      return true;
    case 'r':  // LONG_BINPUT
      put(number(4));
      return true;
    case 0x94:  // MEMOIZE
      put(memo_.size());
      return true;
    case 'h':  // BINGET
      get(number(1));
      return true;
    case 'j':  // LONG_BINGET
      get(number(4));
      return true;
    default:
      return false;
  }
}

}  // namespace mixtape::io
