// The instructions of a kernel's text: their operands, and the op that each runs.
#include <algorithm>

#include "emulator/ptx/decoder.h"

namespace mixtape::ptx {

size_t Decoder::read_parts(std::span<const std::string_view> t, size_t i, Operand& o) {
  for (++i; t[i] != "}"; ++i)
    if (t[i] != ",") o.parts.push_back(t[i]);
  return i;
}

std::vector<Operand> Decoder::operands(std::span<const std::string_view> t) {
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

void Decoder::instruction(const std::vector<std::string_view>& t, std::string_view text,
                          int function) {
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

bool Decoder::flow(Code& c, std::string_view name, const std::vector<Operand>& o, int function) {
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

bool Decoder::formed(Code& c, std::string_view name, const std::vector<Operand>& o) {
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

void Decoder::form_operand(Code& c, char kind, const Operand& o, std::vector<Slot>& slots) {
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
bool Decoder::address(Code& c, const Operand& o, int k) {
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

Space Decoder::space_of(std::string_view name) {
  if (name.find(".global") != name.npos || name.find(".const") != name.npos) return Space::Global;
  if (name.find(".shared") != name.npos) return Space::Shared;
  if (name.find(".local") != name.npos) return Space::Local;
  if (name.find(".param") != name.npos) return Space::Param;
  return Space::Generic;
}

bool Decoder::load_or_store(Code& c, std::string_view kind, std::string_view type,
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

bool Decoder::memory(Code& c, std::string_view name, const std::vector<Operand>& o) {
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

void Decoder::list(Code& c, const Operand& o, bool are_results, Width width) {
  if (c.list == 0) c.list = uint32_t(kernel_.lists.size());
  for (const std::string_view part : o.parts) {
    const Slot s = are_results ? result({.text = part}, width) : source({.text = part}, width);
    kernel_.lists.push_back(s);
  }
}

void Decoder::meet(Code& c, Slot mask) {
  c.flow = Flow::Together;
  c.target = mask;
}

bool Decoder::move(Code& c, std::string_view name, const std::vector<Operand>& o) {
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
bool Decoder::together(Code& c, std::string_view name, const std::vector<Operand>& o) {
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

bool Decoder::plain(Code& c, std::string_view name, const std::vector<Operand>& o) {
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

}  // namespace mixtape::ptx
