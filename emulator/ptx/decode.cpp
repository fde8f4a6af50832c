// The decoder: from the text of PTX to Code. Functions are inlined.
#include <algorithm>
#include <bit>
#include <charconv>
#include <unordered_map>

#include "emulator/ptx/text.h"

namespace mixtape::ptx {
namespace {

struct Operand {
  std::string_view text = {}, also = {};  // also: the predicate of d|p
  bool negated = false, address = false;
  int64_t offset = 0;                        // added to an address
  std::vector<std::string_view> parts = {};  // a and b of {a, b}
};

class Decoder {
 public:
  Decoder(Module& module, const std::string& name) : module_(module) {
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
  std::unique_ptr<Kernel> result() { return std::make_unique<Kernel>(std::move(kernel_)); }

 private:
  struct Registers {  // one declaration
    int width;
    bool many;
  };
  struct Scope {
    std::map<std::string_view, Registers> declared;
    std::unordered_map<std::string_view, Slot> slots;
    std::map<std::string_view, Module::Variable> variables;
    bool function = false;  // outer names are not visible
  };
  struct Found {
    Slot slot;
    int width;
  };

  void enter(bool function = false) { scopes_.emplace_back().function = function; }
  void leave() { scopes_.pop_back(); }

  void head(std::string_view text) {
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
  void body(std::string_view text, int function) {
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

  void statement(std::string_view text, int function) {
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
  uint64_t share(int bytes, int alignment) {
    kernel_.shared_bytes = round_up(kernel_.shared_bytes, alignment);
    kernel_.shared_bytes += bytes;
    return uint64_t(kernel_.shared_bytes - bytes);
  }
  void registers(const std::vector<std::string_view>& t) {  // .reg .b32 %r<9>, low;
    for (size_t i = 2; i < t.size(); ++i) {
      if (t[i] == ",") continue;
      const bool many = i + 1 < t.size() && t[i + 1] == "<";
      scopes_.back().declared[t[i]] = {width_of(t[1]), many};
      scopes_.back().slots.erase(t[i]);
      if (many) i += 3;
    }
  }

  // Until the end, registers are numbered from specials_end on.
  std::optional<Found> find(std::string_view name, bool is_result = false) {
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
  std::optional<Module::Variable> variable(std::string_view name) {
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

  Slot constant(uint64_t bits, int width) {
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
  std::optional<uint64_t> literal(std::string_view text, int width) {
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
  Slot source(const Operand& o, Width width) {
    if (const auto r = find(o.text)) {
      if (r->width != width) unknown("width of a register", o.text);
      return r->slot;
    }
    if (const auto n = literal(o.text, width)) return constant(*n, width);
    if (const auto v = variable(o.text)) return constant(v->address, width);
    unknown("operand", o.text);
  }
  Slot result(const Operand& o, Width width) {
    if (o.text == "_") return Special::sink;
    const auto r = find(o.text, true);
    if (!r || r->width != width) unknown("result", o.text);
    return r->slot;
  }

  static size_t read_parts(std::span<const std::string_view> t, size_t i, Operand& o) {
    for (++i; t[i] != "}"; ++i)
      if (t[i] != ",") o.parts.push_back(t[i]);
    return i;
  }
  static std::vector<Operand> operands(std::span<const std::string_view> t) {
    std::vector<Operand> all;
    for (size_t i = 0; i < t.size(); ++i) {
      Operand o;
      if (t[i] == "!") o.negated = true, ++i;
      if (t[i] == "{") {
        i = read_parts(t, i, o);
      } else if (t[i] == "[") {
        o.address = true;
        o.text = t[++i];
        int64_t sign = 1;
        for (++i; t[i] != "]"; ++i) {
          if (t[i] == "-")
            sign = -sign;
          else if (t[i] == "{")
            i = read_parts(t, i, o);
          else if (t[i] != "+" && t[i] != ",")
            o.offset = sign * to_number(t[i]);
        }
      } else if (t[i] == "-") {  // one text with the number
        o.text = {t[i].data(), size_t(t[i + 1].data() + t[i + 1].size() - t[i].data())};
        ++i;
      } else {
        o.text = t[i];
        if (i + 2 < t.size() && t[i + 1] == "|") o.also = t[i + 2], i += 2;
      }
      all.push_back(o);
      ++i;  // the comma
    }
    return all;
  }

  void instruction(const std::vector<std::string_view>& t, std::string_view text, int function) {
    Code c;
    c.file = file_, c.line = line_;
    size_t i = 0;
    if (t[0] == "@") {
      c.guarded = true;
      c.unless = t[1] == "!";
      i = c.unless ? 2 : 1;
      c.guard = source({.text = t[i++]}, 0);
    }
    c.name = intern(t[i]);
    // (An address tells whether it is another block's.)
    std::string name(t[i++]);
    for (const std::string_view scope : {"::cta", "::cluster"})
      if (const size_t at = name.find(scope); at != name.npos) name.erase(at, scope.size());
    if (name == "call" || name == "call.uni") return call(std::span(t).subspan(i), text);
    const std::vector<Operand> o = operands(std::span(t).subspan(i));
    if (!formed(c, name, o) && !flow(c, name, o, function) && !memory(c, name, o) &&
        !move(c, name, o) && !together(c, name, o) && !plain(c, name, o))
      unknown("instruction", text);
    kernel_.code.push_back(c);
  }

  bool flow(Code& c, std::string_view name, const std::vector<Operand>& o, int function) {
    if (name == "bra" || name == "bra.uni") {
      c.flow = Flow::Branch;
      branches_.push_back({kernel_.code.size(), {function, o[0].text}});
    } else if (name == "ret" && function >= 0) {
      c.flow = Flow::Branch;
      branches_.push_back({kernel_.code.size(), {function, "end"}});
    } else if (name == "ret" || name == "exit") {
      c.flow = Flow::Exit;
    } else if (name == "brx.idx" || name == "brx.idx.uni") {
      c.flow = Flow::Switch;
      c.at[0] = source(o[0], 4);
      switches_.push_back({kernel_.code.size(), {function, o[1].text}});
    } else if (name == "bar.sync" || name == "barrier.sync" || name == "barrier.sync.aligned" ||
               name == "bar.arrive") {
      c.flow = Flow::Barrier;
      c.at = {source(o[0], 4), o.size() > 1 ? source(o[1], 4) : constant(0, 4)};
      c.width[0] = name == "bar.arrive";
    } else if (name == "bar.warp.sync") {
      c.flow = Flow::Together;
      c.target = source(o[0], 4);
    } else {
      return false;
    }
    return true;
  }

  bool formed(Code& c, std::string_view name, const std::vector<Operand>& o) {
    const Form form = form_of(name, o.size());
    if (!form.run) return false;
    c.run = form.run, c.flow = form.flow, c.offset = form.number;
    c.width[0] = form.types[0], c.width[1] = form.types[1];
    if (c.flow == Flow::Together) meet(c, constant(~0u, 4));
    std::vector<Slot> slots;
    if (form.operands.size() != o.size()) return false;
    for (size_t i = 0; i < o.size(); ++i) form_operand(c, form.operands[i], o[i], slots);
    c.list = uint32_t(kernel_.lists.size());
    kernel_.lists.insert(kernel_.lists.end(), slots.begin(), slots.end());
    return true;
  }
  void form_operand(Code& c, char kind, const Operand& o, std::vector<Slot>& slots) {
    const auto width = [&](std::string_view word, std::string_view wide) -> Width {
      return word.find(kind) != word.npos ? 4 : wide.find(kind) != wide.npos ? 8 : 0;
    };
    if (o.negated) unknown("operand", o.text);
    if (kind == 'i') {
      slots.push_back(
          Slot(o.text.starts_with('-') ? -to_number(o.text.substr(1)) : to_number(o.text)));
    } else if (kind == 'M') {
      meet(c, source(o, 4));
    } else if (kind == 'a' || kind == 'm') {
      const auto r = find(o.text);
      slots.push_back(r ? r->slot : source({.text = o.text}, 8));
      slots.push_back(constant(uint64_t(o.offset), 8));
      slots.push_back(r ? r->width : 8);
    } else if (kind == 'A' && !o.parts.empty()) {
      c.offset |= 1 << 16;
    } else if (kind == 'r' || kind == 'l' || kind == 'q' || kind == 'A') {
      slots.push_back(source(o, width("r", "lA")));
    } else if (kind == 'h') {
      slots.push_back(source(o, 2));
    } else if (kind != 'L' && kind != 'D') {
      slots.push_back(result(o, width("we", "W")));
      if (kind == 'e') slots.push_back(result({.text = o.also}, 0));
    }
    for (const std::string_view part : o.parts)
      slots.push_back(kind == 'D' ? result({.text = part}, 4) : source({.text = part}, 4));
  }

  // The address goes into slot `k`.
  bool address(Code& c, const Operand& o, int k) {
    c.offset = o.offset;
    c.width[1] = 8;
    if (const auto r = find(o.text)) {
      c.at[size_t(k)] = r->slot;
      c.width[1] = Width(r->width);
      return true;
    }
    uint64_t base = 0;
    if (const auto v = variable(o.text)) {
      base = v->address;
      if (c.space == Space::Param) c.space = v->space;  // parameters of a call are local
      if (base == dynamic_shared) late_addresses_.push_back(kernel_.code.size()), base = 0;
    } else if (const auto n = literal(o.text, 8)) {
      base = *n;
    } else {
      unknown("address", o.text);
    }
    c.offset += int64_t(base);
    c.at[size_t(k)] = constant(0, 8);
    return true;
  }
  static Space space_of(std::string_view name) {
    if (name.find(".global") != name.npos || name.find(".const") != name.npos) return Space::Global;
    if (name.find(".shared") != name.npos) return Space::Shared;
    if (name.find(".local") != name.npos) return Space::Local;
    if (name.find(".param") != name.npos) return Space::Param;
    return Space::Generic;
  }
  bool load_or_store(Code& c, std::string_view kind, std::string_view type,
                     const std::vector<Operand>& o) {
    const bool is_load = kind == "ld";
    const Operand &at = o[is_load ? 1 : 0], &value = o[is_load ? 0 : 1];
    const int n = std::max(1, int(value.parts.size()));
    c.run = memory_op(kind, type, n);
    if (!c.run) return false;
    address(c, at, is_load ? 1 : 0);
    c.width[0] = Width(width_of(type));
    const auto slot = [&](std::string_view text) {
      if (const auto r = find(text, is_load)) {
        c.width[0] = Width(r->width);
        return r->slot;
      }
      const auto width = Width(width_of(type));
      return is_load ? result({.text = text}, width) : source({.text = text}, width);
    };
    if (value.parts.empty()) {
      c.at[is_load ? 0 : 1] = slot(value.text);
    } else {
      c.list = uint32_t(kernel_.lists.size());
      for (const std::string_view part : value.parts) {
        const Slot s = slot(part);
        kernel_.lists.push_back(s);
      }
    }
    return true;
  }
  bool memory(Code& c, std::string_view name, const std::vector<Operand>& o) {
    const std::string_view kind = name.substr(0, name.find('.'));
    const std::string_view type = name.substr(name.rfind('.') + 1);
    c.space = space_of(name);
    if (kind == "ld" || kind == "st") return load_or_store(c, kind, type, o);
    if (kind == "atom" || kind == "red") {
      c.run = special_op(name);
      if (!c.run) return false;
      const auto t = Width(width_of(type));
      size_t next = 0;
      c.at[0] = kind == "atom" ? result(o[next++], t) : 0;
      address(c, o[next], 1);
      c.at[2] = source(o[next + 1], t);
      return true;
    }
    if (name.starts_with("wmma.load.") || name.starts_with("wmma.store.")) {
      c.run = special_op(name);
      if (!c.run || o.size() != 3) return false;
      const bool loads = name[5] == 'l';
      address(c, o[loads ? 1 : 0], 1);
      c.at[2] = source(o[2], 4);
      list(c, o[loads ? 0 : 1], loads);
      meet(c, constant(~0u, 4));
      return true;
    }
    if (name.starts_with("ldmatrix.")) {
      c.run = special_op(name);
      if (!c.run) return false;
      address(c, o[1], 1);
      list(c, o[0], true);
      meet(c, constant(~0u, 4));
      return true;
    }
    if (name == "cp.async.cg.shared.global") {
      c.run = special_op(name);
      address(c, o[0], 0);
      c.list = uint32_t(c.offset);
      c.width[0] = c.width[1];
      address(c, o[1], 1);
      if (to_number(o[2].text) != 16) return false;
      const auto last = o.size() > 3 ? find(o[3].text) : std::nullopt;  // a size, or a predicate
      const bool by_predicate = last && last->width == 0;
      c.at[2] = o.size() > 3 && !by_predicate ? source(o[3], 4) : constant(16, 4);
      c.at[3] = by_predicate ? last->slot : constant(0, 0);
      return true;
    }
    if (name.starts_with("cp.async.")) {
      c.run = special_op(name);
      c.offset = o.empty() ? 0 : to_number(o[0].text);
      return c.run != nullptr;
    }
    return false;
  }
  void list(Code& c, const Operand& o, bool are_results = false, Width width = 4) {
    if (c.list == 0) c.list = uint32_t(kernel_.lists.size());
    for (const std::string_view part : o.parts) {
      const Slot s = are_results ? result({.text = part}, width) : source({.text = part}, width);
      kernel_.lists.push_back(s);
    }
  }
  void meet(Code& c, Slot mask) {
    c.flow = Flow::Together;
    c.target = mask;
  }

  bool move(Code& c, std::string_view name, const std::vector<Operand>& o) {
    if (name.starts_with("cvta.")) {
      const Space space = space_of(name);
      const bool to = name.starts_with("cvta.to");
      c.at = {result(o[0], 8), source(o[1], 8)};
      if (space == Space::Global) {
        c.run = plain_ops().find("mov.u64")->second.run;
      } else {
        const uint64_t window = space == Space::Shared  ? shared_window
                                : space == Space::Local ? local_window
                                                        : param_window;
        c.run = plain_ops().find(to ? "sub.u64" : "add.u64")->second.run;
        c.at[2] = constant(window, 8);
      }
      return true;
    }
    if (name.starts_with("mov.b") && (!o[0].parts.empty() || !o[1].parts.empty())) {
      const bool apart = !o[0].parts.empty();
      const int width = width_of(name.substr(3)), n = int(o[apart ? 0 : 1].parts.size());
      const auto part = Width(width / n);
      c.run = pack_op(width, n, apart);
      c.at[0] = apart ? source(o[1], Width(width)) : result(o[0], Width(width));
      list(c, o[apart ? 0 : 1], apart, part);
      return c.run != nullptr;
    }
    if (name.starts_with("cvt.")) {
      c.run = convert_op(name, c.target);
      if (!c.run) return false;
      const std::string_view type = name.substr(name.rfind('.') + 1);
      const auto from = find(o[1].text), to = find(o[0].text, true);
      if (!to) return false;
      c.width[0] = Width(to->width);
      c.width[1] = Width(from ? from->width : width_of(type));
      c.at = {to->slot, from ? from->slot : source(o[1], c.width[1])};
      return true;
    }
    return false;
  }

  // Instructions between lanes. (`target` is the slot of the member mask.)
  bool together(Code& c, std::string_view name, const std::vector<Operand>& o) {
    const Width word = 4;
    if (name.starts_with("mma.") || name.starts_with("wmma.mma.")) {
      for (const Operand& part : o) list(c, part, &part == o.data());
      meet(c, constant(~0u, 4));
    } else if (name.starts_with("shfl.sync.")) {
      c.at = {result(o[0], word), o[0].also.empty() ? 0 : result({.text = o[0].also}, 0),
              source(o[1], word), source(o[2], word), source(o[3], word)};
      meet(c, source(o[4], word));
    } else if (name.starts_with("vote.sync.")) {
      c.at = {result(o[0], Width(name.ends_with("b32") ? 4 : 0)), source(o[1], 0)};
      c.width[0] = o[1].negated;
      meet(c, source(o[2], word));
    } else if (name.starts_with("match.any.") || name.starts_with("redux.")) {
      c.at = {result(o[0], word), source(o[1], Width(width_of(name.substr(name.rfind('.')))))};
      meet(c, source(o[2], word));
    } else {
      return false;
    }
    c.run = special_op(name);
    return c.run != nullptr;
  }

  bool plain(Code& c, std::string_view name, const std::vector<Operand>& o) {
    const auto& all = plain_ops();
    auto op = all.find(name);
    if (op == all.end()) {  // some are named .b32 for .u32, or the reverse
      std::string other(name);
      const size_t dot = other.rfind('.');
      if (other.substr(dot + 1, 1) == "b") other[dot + 1] = 'u';
      op = all.find(other);
    }
    if (op == all.end() || op->second.operands.size() != o.size()) return false;
    c.run = op->second.run;
    for (size_t i = 0; i < o.size(); ++i) {
      if (o[i].negated || o[i].address || !o[i].also.empty()) return false;
      const Width width = op->second.operands[i];
      c.at[i] = i == 0 ? result(o[i], width) : source(o[i], width);
    }
    return true;
  }

  // call (results), name, (arguments): inlines the function, with the caller's values as
  // parameters.
  void call(std::span<const std::string_view> t, std::string_view text) {
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

  // Registers whose live ranges do not overlap share a slot, so that those of a warp stay in the
  // cache. (A range goes from the first line to the last that names the register, extended over
  // every loop that it enters or leaves. Diverged lanes have elements of their own.)
  void place_registers() {
    std::vector<std::pair<int32_t, int32_t>> loops;
    for (size_t i = 0; i < kernel_.code.size(); ++i) {
      const Code& c = kernel_.code[i];
      if (c.flow == Flow::Branch && c.target <= int32_t(i)) loops.push_back({c.target, int32_t(i)});
      for (int32_t k = 0; c.flow == Flow::Switch && k < c.target; ++k)
        if (const Slot to = kernel_.lists[c.list + size_t(k)]; to <= int32_t(i))
          loops.push_back({to, int32_t(i)});
    }
    std::ranges::sort(loops);
    for (Life& life : lives_)
      for (bool grown = true; grown;) {
        grown = false;
        for (const auto& [begin, end] : loops)
          if (life.first < begin && life.last >= begin && life.last < end) {
            life.last = end;
            grown = true;
          } else if (life.first > begin && life.first <= end && life.last > end) {
            life.first = begin;  // the target of a backward jump may follow it
            grown = true;
          }
      }
    std::vector<size_t> order(lives_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](size_t i) { return lives_[i].first; });
    std::map<int, std::vector<Slot>> free;
    std::multimap<int32_t, size_t> ends;
    std::vector<Slot> places(lives_.size());
    int bytes = Special::specials_end;
    for (const size_t i : order) {
      const Life& life = lives_[i];
      while (!ends.empty() && ends.begin()->first < life.first) {
        const size_t gone = ends.begin()->second;
        free[lives_[gone].width].push_back(places[gone]);
        ends.erase(ends.begin());
      }
      auto& room = free[life.width];
      if (room.empty()) {
        const int size = life.width == 0 ? 4 : lanes * life.width;
        bytes = round_up(bytes, std::min(size, 64));
        room.push_back(bytes);
        bytes += size;
      }
      places[i] = room.back();
      room.pop_back();
      ends.emplace(life.last, i);
    }
    const auto place = [&](Slot& s) {
      if (s >= Special::specials_end) s = places[size_t(s - Special::specials_end)];
    };
    for (Code& c : kernel_.code) {
      for (Slot& s : c.at) place(s);
      place(c.guard);
      if (c.flow == Flow::Together) place(c.target);
    }
    for (size_t i = 0; i < slots_in_lists_; ++i) place(kernel_.lists[i]);
    kernel_.register_bytes = bytes;
  }

  void finish() {
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
          std::memcpy(kernel_.constants.data() + ~slot + l * key.second, &begin,
                      size_t(key.second));
        }
    place_registers();
    for (const size_t at : late_addresses_) kernel_.code[at].offset += kernel_.shared_bytes;
    kernel_.register_bytes = round_up(kernel_.register_bytes, 256);
  }

  static constexpr uint64_t dynamic_shared = 0x5eed'd15c'0000'0001;  // no number in any kernel
  using Label = std::pair<int, std::string_view>;

  Module& module_;
  Kernel kernel_;
  std::vector<Scope> scopes_;
  struct Life {
    int width;
    int32_t first, last;
  };
  static constexpr int32_t nowhere = INT32_MAX / 2;
  std::vector<Life> lives_;
  size_t slots_in_lists_ = 0;
  std::map<std::string_view, Module::Variable> parameters_;
  std::map<std::string_view, uint64_t> shared_;
  std::map<std::pair<uint64_t, int>, Slot> constants_;
  std::map<Label, int32_t> labels_;
  std::map<Label, std::vector<std::string_view>> tables_;
  std::vector<std::pair<size_t, Label>> branches_, switches_;
  std::vector<size_t> late_addresses_;
  std::string_view last_label_;
  int dynamic_alignment_ = 128;  // of shared memory
  int functions_ = -1, file_ = 0, line_ = 0;
};

}  // namespace

const Kernel& Module::kernel(const std::string& name) {
  auto& slot = decoded_[name];
  if (!slot) {
    if (!entries.contains(name)) throw Fault("no kernel " + name);
    slot = Decoder(*this, name).result();
  }
  return *slot;
}

}  // namespace mixtape::ptx
