// Declarations, labels and calls in the text of a kernel; instructions.cpp has the instructions.
#include <algorithm>
#include <bit>
#include <charconv>

#include "emulator/ptx/decoder.h"

namespace mixtape::ptx {

Decoder::Decoder(Module& module, const std::string& name) : module_(module) {
  kernel_.name = name;
  kernel_.files = module.files;
  kernel_.register_bytes = Special::specials_end;
  kernel_.lists.push_back(0);  // so that no list begins at 0
  const Module::Function& f = module.entries.find(name)->second;
  head(f.head);
  enter();
  body(f.body, -1);
  Code last;
  last.name = intern("exit");
  last.flow = Flow::Exit;
  kernel_.code.push_back(last);
  finish();
}

void Decoder::head(std::string_view text) {
  const auto t = tokens_of(text);
  int& offset = kernel_.parameter_bytes;
  for (const Declared& d : parameters_of(t)) {
    offset = round_up(offset, d.alignment);
    kernel_.parameters.push_back({offset, d.bytes()});
    parameters_[d.name] = {Space::Param, uint64_t(offset)};
    offset += d.bytes();
  }
  int blocks = 1;  // per processor
  for (size_t i = 0; i < t.size(); ++i)
    if (t[i] == ".maxntid" || t[i] == ".reqntid") {
      kernel_.most_threads = 1;
      do kernel_.most_threads *= int(to_number(t[++i]));
      while (++i < t.size() && t[i] == ",");
      --i;
      kernel_.thread_registers = 65536 / kernel_.most_threads;
    } else if (t[i] == ".minnctapersm") {
      blocks = int(to_number(t[++i]));
    }
  kernel_.thread_registers = std::min(kernel_.thread_registers / blocks / 8 * 8, 256);
}

// Statements. Labels of an inlined function are made unique by its number.
void Decoder::body(std::string_view text, int function) {
  size_t i = 0;
  const auto rest = [&] { return text.substr(i); };
  while (true) {
    while (i < text.size() && std::isspace(static_cast<unsigned char>(text[i]))) ++i;
    if (i >= text.size()) return;
    if (rest().starts_with("//")) {
      i = std::min(text.find('\n', i), text.size());
    } else if (text[i] == '{') {
      enter(), ++i;
    } else if (text[i] == '}') {
      leave(), ++i;
    } else if ((rest().starts_with(".loc ") || rest().starts_with(".loc\t"))) {
      const size_t end = std::min(text.find('\n', i), text.size());
      const auto t = tokens_of(text.substr(i, end - i));
      file_ = int(to_number(t[1])), line_ = int(to_number(t[2]));
      i = end;
    } else {
      size_t end = word_end(text, i);
      if (text[end] == ':') {
        labels_[{function, text.substr(i, end - i)}] = int32_t(kernel_.code.size());
        last_label_ = text.substr(i, end - i);
        i = end + 1;
      } else {
        end = text.find(';', i);
        statement(text.substr(i, end - i), function);
        i = end + 1;
      }
    }
  }
}

void Decoder::statement(std::string_view text, int function) {
  const auto t = tokens_of(text);
  if (t.empty() || t[0] == ".pragma") return;
  if (t[0] == ".reg") return registers(t);
  if (t[0] == ".branchtargets") {
    auto& all = tables_[{function, last_label_}];
    for (size_t i = 1; i < t.size(); i += 2) all.push_back(t[i]);
  } else if (t[0] == ".local" || t[0] == ".param") {
    const Declared d = declared(std::span(t).subspan(1));
    kernel_.local_bytes = round_up(kernel_.local_bytes, d.alignment);
    scopes_.back().variables[d.name] = {Space::Local, uint64_t(kernel_.local_bytes)};
    kernel_.local_bytes += d.bytes();
  } else if (t[0] == ".shared") {
    const Declared d = declared(std::span(t).subspan(1));
    scopes_.back().variables[d.name] = {Space::Shared, share(d.bytes(), d.alignment)};
  } else if (t[0][0] == '.') {
    unknown("directive", text);
  } else {
    instruction(t, text, function);
  }
}

uint64_t Decoder::share(int bytes, int alignment) {
  kernel_.shared_bytes = round_up(kernel_.shared_bytes, alignment);
  kernel_.shared_bytes += bytes;
  return uint64_t(kernel_.shared_bytes - bytes);
}

void Decoder::registers(const std::vector<std::string_view>& t) {  // .reg .b32 %r<9>, low;
  for (size_t i = 2; i < t.size(); ++i) {
    if (t[i] == ",") continue;
    const bool many = i + 1 < t.size() && t[i + 1] == "<";
    scopes_.back().declared[t[i]] = {width_of(t[1]), many};
    scopes_.back().slots.erase(t[i]);
    if (many) i += 3;
  }
}

// Until the end, registers are numbered from specials_end on.
std::optional<Decoder::Found> Decoder::find(std::string_view name, bool is_result) {
  static const std::map<std::string_view, Slot> specials = {{"%tid.x", tid_x},
                                                            {"%tid.y", tid_y},
                                                            {"%tid.z", tid_z},
                                                            {"%laneid", lane_id},
                                                            {"%warpid", warp_id},
                                                            {"%ntid.x", ntid_x},
                                                            {"%ntid.y", ntid_y},
                                                            {"%ntid.z", ntid_z},
                                                            {"%ctaid.x", ctaid_x},
                                                            {"%ctaid.y", ctaid_y},
                                                            {"%ctaid.z", ctaid_z},
                                                            {"%nctaid.x", nctaid_x},
                                                            {"%nctaid.y", nctaid_y},
                                                            {"%nctaid.z", nctaid_z},
                                                            {"%cluster_ctarank", cluster_rank},
                                                            {"%cluster_nctarank", cluster_size}};
  if (const auto s = specials.find(name); s != specials.end()) return Found{s->second, 4};
  const std::string_view prefix = name.substr(0, name.find_last_not_of("0123456789") + 1);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    auto d = scope->declared.find(name);
    if (d == scope->declared.end() || d->second.many) {
      d = scope->declared.find(prefix);
      if (d != scope->declared.end() && !d->second.many) d = scope->declared.end();
    }
    if (d != scope->declared.end()) {
      const int width = d->second.width;
      const auto [slot, fresh] = scope->slots.try_emplace(name, 0);
      const int32_t now = int32_t(kernel_.code.size());
      if (fresh) {
        slot->second = Special::specials_end + Slot(lives_.size());
        lives_.push_back({width, is_result ? now : 0, is_result ? now : nowhere});
      }
      Life& life = lives_[size_t(slot->second - Special::specials_end)];
      life.last = std::max(life.last, now);
      return Found{slot->second, width};
    }
    if (scope->function) break;
  }
  return std::nullopt;
}

std::optional<Module::Variable> Decoder::variable(std::string_view name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto v = scope->variables.find(name);
    if (v != scope->variables.end()) return v->second;
    if (scope->function) break;
  }
  if (const auto p = parameters_.find(name); p != parameters_.end()) return p->second;
  const auto v = module_.variables.find(name);
  if (v == module_.variables.end()) return std::nullopt;
  if (v->second.space != Space::Shared) return v->second;
  // Dynamic shared memory follows all other, so its address is known at the end.
  const int bytes = int(v->second.address >> 16), alignment = int(v->second.address & 0xffff);
  if (bytes == 0) {
    dynamic_alignment_ = std::max(dynamic_alignment_, alignment);
    return Module::Variable{Space::Shared, dynamic_shared};
  }
  const auto [placed, fresh] = shared_.try_emplace(name, 0);
  if (fresh) placed->second = share(bytes, alignment);
  return Module::Variable{Space::Shared, placed->second};
}

Slot Decoder::constant(uint64_t bits, int width) {
  const auto [slot, fresh] = constants_.try_emplace({bits, width}, 0);
  if (fresh) {
    auto& all = kernel_.constants;
    all.resize(size_t(round_up(int(all.size()), 64)));
    slot->second = ~Slot(all.size());
    for (int l = 0; l < (width == 0 ? 1 : lanes); ++l)
      all.insert(all.end(), reinterpret_cast<const char*>(&bits),
                 reinterpret_cast<const char*>(&bits) + (width == 0 ? 4 : width));
  }
  return slot->second;
}

std::optional<uint64_t> Decoder::literal(std::string_view text, int width) {
  const bool minus = text.starts_with('-');
  const std::string_view digits = minus ? text.substr(1) : text;
  const auto hex = [&] {
    uint64_t n = 0;
    std::from_chars(digits.data() + 2, digits.data() + digits.size(), n, 16);
    return n;
  };
  if (digits.starts_with("0f") || digits.starts_with("0F")) {
    const uint32_t bits = uint32_t(hex());
    return width == 8 ? std::bit_cast<uint64_t>(double(std::bit_cast<float>(bits))) : bits;
  }
  if (digits.starts_with("0d") || digits.starts_with("0D")) return hex();
  const auto n = number(digits);
  if (!n) return std::nullopt;
  if (width == 0) return *n ? ~uint64_t{0} : 0;
  return uint64_t(minus ? -*n : *n);
}

// A register or a number, for an instruction that takes registers of `width`.
Slot Decoder::source(const Operand& o, Width width) {
  if (const auto r = find(o.text)) {
    if (r->width != width) unknown("width of a register", o.text);
    return r->slot;
  }
  if (const auto n = literal(o.text, width)) return constant(*n, width);
  if (const auto v = variable(o.text)) return constant(v->address, width);
  unknown("operand", o.text);
}

Slot Decoder::result(const Operand& o, Width width) {
  if (o.text == "_") return Special::sink;
  const auto r = find(o.text, true);
  if (!r || r->width != width) unknown("result", o.text);
  return r->slot;
}

// call (results), name, (arguments): inlines the function, with the caller's values as
// parameters.
void Decoder::call(std::span<const std::string_view> t, std::string_view text) {
  std::vector<std::vector<std::string_view>> lists;
  std::string_view callee;
  for (size_t i = 0; i < t.size(); ++i) {
    if (t[i] == "(") {
      auto& names = lists.emplace_back();
      for (++i; t[i] != ")"; ++i)
        if (t[i] != ",") names.push_back(t[i]);
    } else if (t[i] != ",") {
      callee = t[i];
    }
  }
  const auto f = module_.functions.find(callee);
  if (f == module_.functions.end()) unknown("function", text);
  const std::vector<Declared> names = parameters_of(tokens_of(f->second.head));
  std::vector<Module::Variable> values;
  for (const auto& names_given : lists)
    for (const std::string_view n : names_given) values.push_back(variable(n).value());
  if (names.size() != values.size()) unknown("arguments", text);
  enter(true);
  for (size_t i = 0; i < names.size(); ++i) scopes_.back().variables[names[i].name] = values[i];
  const int number = ++functions_;
  body(f->second.body, number);
  labels_[{number, "end"}] = int32_t(kernel_.code.size());
  leave();
}

void Decoder::finish() {
  slots_in_lists_ = kernel_.lists.size();
  const auto place = [&](std::pair<int, std::string_view> label) {
    const auto at = labels_.find(label);
    if (at == labels_.end()) unknown("label", label.second);
    return at->second;
  };
  for (const auto& [at, label] : branches_) kernel_.code[at].target = place(label);
  for (const auto& [at, label] : switches_) {
    Code& c = kernel_.code[at];
    c.list = uint32_t(kernel_.lists.size());
    for (const std::string_view target : tables_[label])
      kernel_.lists.push_back(place({label.first, target}));
    c.target = int32_t(kernel_.lists.size() - c.list);
  }
  // Dynamic shared memory begins here. (Only its address is a single constant.)
  kernel_.shared_bytes = round_up(kernel_.shared_bytes, dynamic_alignment_);
  for (const auto& [key, slot] : constants_)
    if (key.first == dynamic_shared)
      for (int l = 0; l < lanes; ++l) {
        const uint64_t begin = uint64_t(kernel_.shared_bytes);
        std::memcpy(kernel_.constants.data() + ~slot + l * key.second, &begin, size_t(key.second));
      }
  place_registers();
  for (const size_t at : late_addresses_) kernel_.code[at].offset += kernel_.shared_bytes;
  kernel_.register_bytes = round_up(kernel_.register_bytes, 256);
}

const Kernel& Module::kernel(const std::string& name) {
  auto& slot = decoded_[name];
  if (!slot) {
    if (!entries.contains(name)) throw Fault("no kernel " + name);
    slot = Decoder(*this, name).result();
  }
  return *slot;
}

}  // namespace mixtape::ptx
