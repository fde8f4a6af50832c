#include "amp/policy.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/text.h"

namespace mixtape::amp {
using namespace internal;
namespace {

// Matches `*` with any characters, `?` with one. After a mismatch the last `*` takes one more.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, swallowed = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      swallowed = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++swallowed;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

// True if the pattern matches the module or one that contains it.
bool matches_path(std::string_view pattern, std::string_view path) {
  for (size_t end = 0; end <= path.size(); ++end)
    if ((end == path.size() || path[end] == '.') && matches(pattern, path.substr(0, end)))
      return true;
  return false;
}

using Entry = std::pair<std::string_view, Precision>;
constexpr Entry fast[] = {{"*_norm", Precision::Native},
                          {"softmax", Precision::Native},
                          {"log_softmax", Precision::Native}};
constexpr Entry safe[] = {{"gelu*", Precision::Full},
                          {"silu", Precision::Full},
                          {"sigmoid", Precision::Full},
                          {"tanh", Precision::Full},
                          {"scaled_dot_product_attention", Precision::Full}};
constexpr std::string_view losses[] = {"*_loss", "*cross_entropy*", "kl_div*"};

Precision look_up(std::span<const Entry> table, const OpInfo& op) {
  for (const auto& [pattern, precision] : table)
    if (matches(pattern, op.name)) return precision;
  return op.precision;
}

Precision of_preset(Preset preset, const OpInfo& op) {
  const auto is_loss = [&](std::string_view pattern) { return matches(pattern, op.name); };
  if (preset == Preset::Fast) return look_up(fast, op);
  if (preset == Preset::Safe) return look_up(safe, op);
  if (preset == Preset::TensorCoresOnly)
    return op.precision == Precision::Low ? Precision::Low : Precision::Any;
  const bool narrows =
      preset == Preset::O3 || (preset == Preset::O2 && std::ranges::none_of(losses, is_loss));
  return narrows && op.precision == Precision::Full ? Precision::Native : op.precision;
}

// A name without case and underscores, in which spellings usually differ.
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name)
    if (c != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The number of insertions, deletions and substitutions from a to b (Levenshtein).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t change = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

bool names_op(std::string_view pattern) {
  return std::ranges::any_of(all_ops(),
                             [&](const OpInfo* op) { return matches(pattern, op->name); });
}

using Near = std::vector<std::pair<size_t, std::string_view>>;  // names by distance

std::string listed(Near names, size_t most = 8) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  names.resize(std::min(names.size(), most));
  std::vector<std::string_view> texts;  // (clang 14 does not compile views::values of libstdc++ 12)
  for (const auto& [d, name] : names) texts.push_back(name);
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Ops that a pattern may mean which is written like a misspelt op.
Near similar_ops(std::string_view pattern) {
  if (pattern.find_first_of(".*?") != pattern.npos || std::isdigit(pattern.back())) return {};
  const std::string text = plain(pattern);
  // Short names resemble some op by chance: attn and atan, ln and le.
  const size_t allowed = text.size() < 5 ? 0 : text.size() < 7 ? 1 : 2;
  Near near;
  for (const OpInfo* op : all_ops())
    if (const size_t d = distance(text, plain(op->name)); d <= allowed)
      near.emplace_back(d, op->name);
  return near;
}

void check_plausible_path(std::string_view pattern) {
  check(!pattern.empty(), "an override needs a name, got ''");
  const Near near = similar_ops(pattern);
  if (near.empty()) return;
  fail("no op is called {}; similar names: {} (for a module of that name, write {})",
       io::quote(pattern), listed(near), io::quote(std::string(pattern) + '*'));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r";
  const size_t begin = text.find_first_not_of(blank);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

std::optional<Precision> parse_precision(std::string_view text) {
  for (const Precision p :
       {Precision::Any, Precision::Native, Precision::Low, Precision::Full, Precision::Widest})
    if (plain(text) == plain(mixtape::name(p))) return p;
  return {};
}

// `where` precedes the line in errors.
Overrides parse(std::string_view text, std::string_view where) {
  Overrides overrides;
  for (int line = 1; !text.empty(); ++line) {
    const std::string_view whole = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), whole.size() + 1));
    const std::string_view rule = trimmed(whole.substr(0, whole.find('#')));
    if (rule.empty()) continue;
    const size_t equals = rule.find('=');
    check(equals != rule.npos, "{}line {}: {} is not of the form 'softmax = Native'", where, line,
          io::quote(rule));
    const std::string_view pattern = trimmed(rule.substr(0, equals));
    const std::string_view value = trimmed(rule.substr(equals + 1));
    check(!pattern.empty(), "{}line {}: {} names no op and no module", where, line,
          io::quote(rule));
    const auto precision = parse_precision(value);
    check(precision.has_value(),
          "{}line {}: {} is not a precision; known are Any, Native, Low, Full, Widest", where, line,
          io::quote(value));
    overrides.push_back({std::string(pattern), *precision});
  }
  return overrides;
}

// The rules of regions that this thread opened. There are none while statics are destroyed, though
// their destructors may open regions.
struct KnownRules : std::vector<std::shared_ptr<const Rules>> {
  ~KnownRules() { ended = true; }
  static KnownRules* of_thread() {
    if (ended) return nullptr;
    thread_local KnownRules known;
    return &known;
  }
  static inline thread_local constinit bool ended = false;
};

}  // namespace

std::string_view name(Preset p) {
  constexpr std::string_view names[] = {"Torch", "Fast", "Safe", "TensorCoresOnly", "O0", "O1",
                                        "O2",    "O3",   "Off"};
  return names[static_cast<int>(p)];
}

std::string path_pattern(std::string_view path) {
  std::string pattern(path);
  if (!similar_ops(path).empty()) pattern += '*';
  return names_op(pattern) ? "" : pattern;
}

Overrides parse_overrides(std::string_view text) { return parse(text, ""); }

Overrides load_overrides(const std::string& path) {
  constexpr uint64_t most = uint64_t{1} << 20;
  return parse(io::as_text(io::read_file(path, most)), path + ": ");
}

// Kept per thread, so that a region in a training loop finds the rules of an earlier one.
std::shared_ptr<const Rules> Rules::make(Preset preset, const Overrides& own, const Rules* outer) {
  static const Levels none;
  const Levels& around = outer ? outer->levels_ : none;
  const size_t first = own.empty() ? 0 : 1;
  const auto is_asked = [&](const std::shared_ptr<const Rules>& r) {
    const Levels& levels = r->levels_;
    return r->preset_ == preset && levels.size() == around.size() + first &&
           (own.empty() || std::ranges::equal(levels[0], own)) &&
           std::equal(around.begin(), around.end(), levels.begin() + int64_t(first));
  };
  KnownRules* const known = KnownRules::of_thread();
  if (known)
    if (const auto found = std::ranges::find_if(*known, is_asked); found != known->end()) {
      if (!own.empty()) (*found)->check_paths();  // (a region within may be opened before all ran)
      return *found;
    }

  auto rules = std::make_shared<Rules>();
  rules->preset_ = preset;
  if (!own.empty()) rules->levels_.emplace_back();
  for (const Override& o : own) {
    const bool op = names_op(o.pattern);
    if (!op) check_plausible_path(o.pattern);
    rules->own_paths_ |= !op;
    rules->levels_[0].push_back({o, op});
  }
  rules->levels_.insert(rules->levels_.end(), around.begin(), around.end());
  if (!known) return rules;
  constexpr size_t most = 32;
  if (known->size() == most) known->erase(known->begin());
  return known->emplace_back(std::move(rules));
}

Rules::Choice Rules::choice(const OpInfo& op) const {
  if (levels_.empty() && preset_ == Preset::Torch) return {op.precision, false};
  const CallSite site{&op, levels_.empty() ? nullptr : Scope::module_path()};
  const auto [entry, first] = resolved_.try_emplace(site);
  if (first) entry->second = resolve(site);
  return entry->second;
}

// A model's modules all have their paths once its root ran, even those that did not run.
void Rules::check_paths() const {
  if (!modules_ran_) return;
  const std::vector<std::string_view> paths = interned();
  if (std::exchange(paths_seen_, paths.size()) != paths.size()) return;
  for (const CompiledOverride& r : levels_[0]) {
    const auto matched = [&](std::string_view path) { return matches_path(r.pattern, path); };
    if (r.names_op || std::ranges::any_of(paths, matched)) continue;
    Near near;
    for (const std::string_view path : paths)
      if (!path.empty()) near.emplace_back(distance(r.pattern, path), path);
    const std::string names = listed(near, 4);
    fail("no module that ran has the path {}{}{}", io::quote(r.pattern),
         names.empty() ? "" : "; nearest are ", names);
  }
  modules_ran_ = false;
}

Rules::Choice Rules::resolve(const CallSite& site) const {
  modules_ran_ |= own_paths_ && site.module;
  const OpInfo& op = *site.op;
  if (op.name == "cast" || op.name == "cast_to_integer") return {Precision::Any, false};
  for (const std::vector<CompiledOverride>& level : levels_) {
    const CompiledOverride* by_path = nullptr;
    for (auto r = level.rbegin(); r != level.rend(); ++r) {
      if (r->names_op && matches(r->pattern, op.name)) return {r->precision, true};
      if (!r->names_op && !by_path && op.precision != Precision::Any && site.module &&
          matches_path(r->pattern, *site.module))
        by_path = &*r;
    }
    if (by_path) return {by_path->precision, true};
  }
  return {of_preset(preset_, op), false};
}

}  // namespace mixtape::amp
