#include "train/data/tables.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <deque>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/npy.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

// Splits text into records of raw fields, which keep their quotes.
class Reader {
 public:
  // A record with more than `most` fields is an Error.
  Reader(std::string_view text, char separator, const std::string& name, uint64_t most)
      : text_(text), separator_(separator), name_(name), most_(most) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
  }
  // Reads the next record, if there is one; skips empty lines.
  bool next() {
    while (at_ < text_.size() && take_line_end()) {
    }
    if (at_ == text_.size()) return false;
    line_ = next_line_;
    fields_.clear();
    add_field();
    while (at_ < text_.size() && !take_line_end()) {
      if (text_[at_] != separator_)
        fail("{}: line {}: {} follows a closing quote", name_, next_line_,
             io::quote(text_.substr(at_, 1)));
      ++at_;
      add_field();
    }
    return true;
  }
  int64_t line() const { return line_; }  // the first line of the record, from 1
  const std::vector<std::string_view>& fields() const { return fields_; }

 private:
  static bool ends_line(char c) { return c == '\n' || c == '\r'; }
  bool take_line_end() {
    const size_t length = text_.substr(at_, 2) == "\r\n" ? 2 : ends_line(text_[at_]);
    at_ += length;
    next_line_ += length > 0;
    return length > 0;
  }
  void add_field() {
    check(fields_.size() < most_, "{}: line {} has more than {} fields (raise max_memory)", name_,
          line_, most_);
    const size_t begin = at_;
    if (at_ < text_.size() && text_[at_] == '"')
      skip_quoted();
    else
      while (at_ < text_.size() && text_[at_] != separator_ && !ends_line(text_[at_])) ++at_;
    fields_.push_back(text_.substr(begin, at_ - begin));
  }
  void skip_quoted() {
    const int64_t first = next_line_;
    do {  // a doubled quote does not end it
      const size_t begin = ++at_, end = text_.find('"', begin);
      check(end != text_.npos, "{}: the quote that line {} opens is never closed", name_, first);
      next_line_ += std::count(text_.begin() + int64_t(begin), text_.begin() + int64_t(end), '\n');
      at_ = end + 1;
    } while (at_ < text_.size() && text_[at_] == '"');
  }

  const std::string_view text_;
  const char separator_;
  const std::string& name_;
  const uint64_t most_;
  std::vector<std::string_view> fields_;
  size_t at_ = 0;
  int64_t line_ = 1, next_line_ = 1;
};

// A field without its quotes; uses `room` if there are quotes inside it.
std::string_view unquoted(std::string_view raw, std::string& room) {
  if (!raw.starts_with('"')) return raw;
  raw = raw.substr(1, raw.size() - 2);
  if (raw.find('"') == raw.npos) return raw;
  room.clear();
  for (size_t i = 0; i < raw.size(); i += raw[i] == '"' ? 2 : 1) room += raw[i];
  return room;
}
std::string unquoted(std::string_view raw) {
  std::string room;
  return std::string(unquoted(raw, room));
}

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}
// True if a number is below 1, told by its first digit and its exponent. For those beyond doubles.
bool is_below_one(std::string_view text) {
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  const size_t point = std::min(text.find('.'), e), first = text.find_first_of("123456789");
  int exponent = 0;
  if (e < text.size()) {
    const bool negative = text[e + 1] == '-', has_sign = negative || text[e + 1] == '+';
    if (std::from_chars(&text[e + 1 + has_sign], text.end(), exponent).ec != std::errc{})
      exponent = INT_MAX;
    if (negative) exponent = -exponent;
  }
  return exponent + int64_t(point) < int64_t(first);
}
// The number in a text, 0 if it is too small; none if it is not a number or exceeds f32.
std::optional<double> number(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (end != text.end()) return {};
  if (error == std::errc::result_out_of_range && is_below_one(text))
    return text.starts_with('-') ? -0.0 : 0.0;
  if (error != std::errc{}) return {};
  if (std::isfinite(value) && !std::isfinite(static_cast<float>(value))) return {};
  return value;
}

float number_at(std::string_view raw, const std::string& name, int64_t line,
                const std::string& column) {
  std::string room;
  const std::string_view field = unquoted(raw, room);
  const auto value = number(field);
  if (!value)
    fail("{}: line {}, column {}: {} is not a number that f32 holds{}", name, line,
         io::quote(column), io::quote(field),
         trimmed(field).empty() ? " (write nan for a missing one, or set .missing)" : "");
  return static_cast<float>(*value);
}

std::string quoted(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& n : names) all.push_back(io::quote(n));
  return internal::listed(all, 20);
}

// The places of names in a list.
class Places {
 public:
  explicit Places(const std::vector<std::string>& names) {
    sorted_.reserve(names.size());
    for (size_t i = 0; i < names.size(); ++i) sorted_.emplace_back(names[i], i);
    std::ranges::sort(sorted_);
  }
  // All places with this name.
  std::span<const std::pair<std::string_view, size_t>> find(std::string_view name) const {
    const auto begin = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(name, size_t{0}));
    return {begin, std::lower_bound(begin, sorted_.end(), std::pair(name, SIZE_MAX))};
  }

 private:
  std::vector<std::pair<std::string_view, size_t>> sorted_;
};

// The distinct values of a column, sorted, and the label of each. As numbers, 1 and 1.0 are the
// same value, with the name of the first occurrence; NaN comes last. With a finite number from 2^53
// on, such as an id of 19 digits, all are texts: doubles would merge ids.
class Labels {
 public:
  explicit Labels(const std::vector<std::string_view>& values)
      : numbers_(std::ranges::all_of(values, is_exact)) {
    if (!numbers_) {
      std::vector<std::string_view> sorted = values;
      std::ranges::sort(sorted);
      all.assign(sorted.begin(), std::unique(sorted.begin(), sorted.end()));
      return;
    }
    std::vector<std::pair<double, size_t>> sorted;
    sorted.reserve(values.size());
    for (const std::string_view v : values) sorted.emplace_back(*number(v), sorted.size());
    std::ranges::sort(sorted, [](const auto& a, const auto& b) {
      return is_less(a.first, b.first) || (!is_less(b.first, a.first) && a.second < b.second);
    });
    for (const auto& [value, place] : sorted) {
      if (!keys_.empty() && !is_less(keys_.back(), value)) continue;
      keys_.push_back(value);
      all.emplace_back(values[place]);
    }
  }
  std::optional<int64_t> label(std::string_view value) const {
    if (!numbers_) {
      const auto found = std::ranges::lower_bound(all, value);
      if (found == all.end() || *found != value) return {};
      return found - all.begin();
    }
    const auto key = number(value);
    if (!key) return {};
    const auto found = std::ranges::lower_bound(keys_, *key, is_less);
    if (found == keys_.end() || is_less(*key, *found)) return {};
    return found - keys_.begin();
  }

  std::vector<std::string> all;

 private:
  static bool is_exact(std::string_view text) {
    const auto x = number(text);
    return x && (!std::isfinite(*x) || std::abs(*x) < 0x1p53);
  }
  static bool is_less(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

  bool numbers_;
  std::vector<double> keys_;  // of numbers
};

// The columns to use, and their positions in the file.
struct Selection {
  Csv csv;  // without data
  size_t target;
  std::vector<size_t> columns;               // of x
  std::map<size_t, std::string> categories;  // names of category columns by their place in x
};

Selection select_columns(const std::vector<std::string>& header, const std::string& name,
                         const CsvOptions& options) {
  const Places places(header);
  const auto index_of = [&](const std::string& column) {
    const auto found = places.find(column);
    if (found.empty())
      fail("{}: no column is named {}; there are {}", name, io::quote(column), quoted(header));
    if (found.size() > 1) fail("{}: two columns are named {}", name, io::quote(column));
    return found.front().second;
  };
  const Csv* const like = options.like;
  Selection selection;
  Csv& csv = selection.csv;
  csv.target = like ? like->target : options.target.empty() ? header.back() : options.target;
  selection.target = index_of(csv.target);
  check(header.size() > 1, "{}: there is only one column, {}: is {} the wrong separator?", name,
        io::quote(csv.target), io::quote({&options.separator, 1}));
  csv.columns = like ? like->columns : options.columns;
  for (const std::string& column : csv.columns) selection.columns.push_back(index_of(column));
  if (csv.columns.empty())
    for (size_t i = 0; i < header.size(); ++i)
      if (i != selection.target) {
        selection.columns.push_back(i);
        csv.columns.push_back(header[i]);
      }
  const Places in_x(csv.columns);
  check(in_x.find(csv.target).empty(), "{}: {} is both the target and in columns", name,
        io::quote(csv.target));
  for (const std::string& column : options.categories) csv.categories[column];
  if (like) csv.categories = like->categories;
  for (const auto& [column, names] : csv.categories) {
    const auto found = in_x.find(column);
    if (found.size() != 1)
      fail("{}: {} is not one of the columns {}", name, io::quote(column), quoted(csv.columns));
    selection.categories.emplace(found.front().second, column);
  }
  return selection;
}

// Reads a text twice: the first time it counts records and looks at targets, the second time it
// fills tensors of that size. So nothing grows, and no number is kept as text.
class CsvParser {
 public:
  CsvParser(std::string_view text, const std::string& name, const CsvOptions& options,
            uint64_t file_bytes)
      : text_(text), name_(name), options_(options), file_bytes_(file_bytes) {}

  Csv parse() {
    if (text_.substr(0, 4096).find('\0') != text_.npos)
      fail("{}: not a text: it has zero bytes{}", name_,
           io::but_is(io::InputBytes(std::as_bytes(std::span(text_)), name_)));
    Reader reader = start();
    check(reader.next(), "{}: has no lines", name_);
    std::vector<std::string> header;
    header.reserve(reader.fields().size());
    for (const std::string_view field : reader.fields())
      header.push_back(options_.header ? unquoted(field) : std::to_string(header.size()));
    selection_ = select_columns(header, name_, options_);
    fields_ = header.size();
    look();
    const Csv* const like = options_.like;
    const bool known = like && !like->classes.empty();
    if (!known && empty_ > 0)
      fail("{}: line {} has no {}, which every line needs: it is the target", name_, empty_,
           io::quote(csv().target));
    classes_ = known || (!like && (options_.classes || !numbers_));
    if (known) csv().classes = like->classes;
    const uint64_t width = csv().columns.size(), texts = selection_.categories.size() + classes_;
    take(text_.size() + fields_ * column_bytes +
         uint64_t(n_) * (width * sizeof(float) + sizeof(int64_t) +
                         (texts > 0 ? texts + 1 : 0) * sizeof(std::string_view)));
    x_ = Tensor({n_, int64_t(width)}, f32, Device::cpu());
    y_ = Tensor({n_}, classes_ ? i64 : f32, Device::cpu());
    fill();
    label_texts();
    csv().data = TensorDataset(x_, y_, name_);
    return std::move(csv());
  }

 private:
  static constexpr uint64_t column_bytes = 200;  // memory for a name and its places

  Csv& csv() { return selection_.csv; }
  Reader start() const {
    return Reader(text_, options_.separator, name_,
                  io::memory_limit(file_bytes_, options_.max_memory) / column_bytes);
  }
  // A reader after the header.
  Reader start_records() const {
    Reader reader = start();
    if (options_.header) reader.next();
    return reader;
  }

  // Counts records and learns the kind of targets.
  void look() {
    std::string room;
    for (Reader reader = start_records(); reader.next(); ++n_) {
      if (reader.fields().size() != fields_)
        fail("{}: line {} has {} fields, but the first line has {}", name_, reader.line(),
             reader.fields().size(), fields_);
      const std::string_view target = unquoted(reader.fields()[selection_.target], room);
      if (number(target)) continue;
      if (!trimmed(target).empty())
        numbers_ = false;
      else if (empty_ == 0)
        empty_ = reader.line();
    }
  }

  // Counts memory that is needed; throws Error beyond the limit.
  void take(uint64_t bytes) {
    taken_ += bytes;
    io::check_memory(taken_, name_, file_bytes_, options_.max_memory);
  }

  // Fills x and y with numbers, and texts_ with the other fields.
  void fill() {
    std::vector<std::vector<std::string_view>*> text_of(csv().columns.size());
    texts_.resize(selection_.categories.size() + classes_);
    for (size_t i = 0; const auto& [k, column] : selection_.categories) text_of[k] = &texts_[i++];
    for (auto& text : texts_) text.reserve(size_t(n_));
    float* x = x_.data<float>();
    float* y = classes_ ? nullptr : y_.data<float>();
    std::string room;
    for (Reader reader = start_records(); reader.next();) {
      const auto& fields = reader.fields();
      for (size_t k = 0; k < text_of.size(); ++k, ++x) {
        const std::string_view field = fields[selection_.columns[k]];
        if (text_of[k]) {
          text_of[k]->push_back(field);
          *x = 0;
        } else if (options_.missing && trimmed(unquoted(field, room)).empty()) {
          *x = *options_.missing;
        } else {
          *x = number_at(field, name_, reader.line(), csv().columns[k]);
        }
      }
      const std::string_view target = fields[selection_.target];
      if (classes_)
        texts_.back().push_back(target);
      else
        *y++ = number_at(target, name_, reader.line(), csv().target);
    }
  }

  void label_texts() {
    const int64_t width = x_.size(1);
    for (size_t i = 0; const auto& [k, column] : selection_.categories) {
      float* const x = x_.data<float>() + k;
      label(column, std::exchange(texts_[i++], {}), csv().categories[column],
            [&](int64_t row, int64_t label) { x[row * width] = float(label); });
    }
    if (classes_)
      label(csv().target, std::exchange(texts_.back(), {}), csv().classes,
            [&](int64_t row, int64_t label) { y_.data<int64_t>()[row] = label; });
  }

  // Calls put(row, label) for each field of a column of names; sets `known`, or with .like uses it.
  template <class Put>
  void label(const std::string& column, std::vector<std::string_view> fields,
             std::vector<std::string>& known, const Put& put) {
    std::deque<std::string> rooms;  // texts of fields with quotes inside
    for (std::string_view& field : fields)
      if (std::string room; field.starts_with('"')) {
        field = unquoted(field, room);
        if (!room.empty()) field = rooms.emplace_back(std::move(room));
      }
    Labels labels(options_.like ? std::vector<std::string_view>(known.begin(), known.end())
                                : fields);
    take(labels.all.size() * (sizeof(std::string) + 2 * sizeof(double)));
    for (size_t row = 0; row < fields.size(); ++row) {
      const auto found = labels.label(fields[row]);
      if (!found)
        fail("{}: line {}, column {}: {} is not among {}", name_, line_of(row), io::quote(column),
             io::quote(fields[row]), quoted(known));
      put(int64_t(row), *found);
    }
    known = std::move(labels.all);
  }

  int64_t line_of(size_t row) const {
    Reader reader = start_records();
    while (reader.next() && row > 0) --row;
    return reader.line();
  }

  const std::string_view text_;
  const std::string& name_;
  const CsvOptions& options_;
  const uint64_t file_bytes_;
  Selection selection_ = {};
  uint64_t fields_ = 0, taken_ = 0;
  int64_t n_ = 0, empty_ = 0;              // records; the line of the first without a target
  bool numbers_ = true, classes_ = false;  // true if all targets are numbers; if y has classes
  Tensor x_, y_;
  std::vector<std::vector<std::string_view>> texts_;  // of categories, then of classes
};

}  // namespace

Csv parse_csv(std::string_view text, const std::string& name, const CsvOptions& options) {
  return CsvParser(text, name, options, text.size()).parse();
}

Csv read_csv(const std::string& path, const CsvOptions& options) {
  const uint64_t packed = io::InputFile(path).size();
  const std::vector<std::byte> file = io::read_whole(path, options.max_memory, 1);
  return CsvParser(io::as_text(file), path, options, packed).parse();
}

TensorDataset from_npy(const std::string& x_path, const std::string& y_path) {
  return {io::load_npy(x_path), io::load_npy(y_path), x_path};
}

}  // namespace mixtape::train
