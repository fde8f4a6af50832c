#include "train/data/tables.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

struct Record {
  int64_t line;  // where it begins, from 1
  std::vector<std::string> fields;
};

// Splits text into records.
class Reader {
 public:
  Reader(std::string_view text, char separator, const std::string& name)
      : text_(text), separator_(separator), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
  }
  // The next record, if there is one; lines with nothing in them are none.
  std::optional<Record> next() {
    while (at_ < text_.size() && take_line_end()) {
    }
    if (at_ == text_.size()) return {};
    Record record{line_, {field()}};
    while (at_ < text_.size() && !take_line_end()) {
      check(text_[at_] == separator_, "{}: line {}: {} follows a closing quote", name_, line_,
            io::quote(text_.substr(at_, 1)));
      ++at_;
      record.fields.push_back(field());
    }
    return record;
  }

 private:
  static bool ends_line(char c) { return c == '\n' || c == '\r'; }
  bool take_line_end() {
    const size_t length = text_.substr(at_, 2) == "\r\n" ? 2 : ends_line(text_[at_]);
    at_ += length;
    line_ += length > 0;
    return length > 0;
  }
  std::string field() {
    if (at_ < text_.size() && text_[at_] == '"') return quoted();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && !ends_line(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  std::string quoted() {
    const int64_t first = line_;
    std::string value;
    for (;;) {
      const size_t begin = ++at_, end = text_.find('"', begin);
      check(end != text_.npos, "{}: the quote that line {} opens is never closed", name_, first);
      value += text_.substr(begin, end - begin);
      line_ += std::count(text_.begin() + int64_t(begin), text_.begin() + int64_t(end), '\n');
      at_ = end + 1;
      if (at_ == text_.size() || text_[at_] != '"') return value;
      value += '"';
    }
  }

  const std::string_view text_;
  const char separator_;
  const std::string& name_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}
// None where the text is no number, or one beyond f32.
std::optional<double> number(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc{} || end != text.end()) return {};
  if (std::isfinite(value) && !std::isfinite(static_cast<float>(value))) return {};
  return value;
}

// The different values of a column in order, and which of them each is. Of numbers 1 and 1.0 are
// one, and have the name that comes first.
Tensor labels(const std::vector<std::string>& values, bool numbers,
              std::vector<std::string>& classes) {
  using Key = std::tuple<bool, double, std::string_view>;  // NaN comes last
  const auto key_of = [&](const std::string& text) {
    if (!numbers) return Key(false, 0, text);
    const double value = *number(text);
    return std::isnan(value) ? Key(true, 0, "") : Key(false, value, "");
  };
  std::map<Key, std::string> names;
  for (const std::string& v : values) names.emplace(key_of(v), v);
  std::map<Key, int64_t> label;
  for (const auto& [key, name] : names) {
    label.emplace(key, int64_t(classes.size()));
    classes.push_back(name);
  }
  const Tensor y({int64_t(values.size())}, i64, Device::cpu());
  for (size_t i = 0; i < values.size(); ++i) y.data<int64_t>()[i] = label.at(key_of(values[i]));
  return y;
}

}  // namespace

Csv parse_csv(std::string_view text, const std::string& name, const CsvOptions& options) {
  Reader reader(text, options.separator, name);
  std::optional<Record> record = reader.next();
  check(record.has_value(), "{}: has no lines", name);
  std::vector<std::string> columns = record->fields;
  if (options.header)
    record = reader.next();
  else
    for (size_t i = 0; i < columns.size(); ++i) columns[i] = std::to_string(i);
  const auto found = options.target.empty()
                         ? columns.end() - 1
                         : std::find(columns.begin(), columns.end(), options.target);
  if (found == columns.end()) {
    std::string all;
    for (const std::string& c : columns) all += (all.empty() ? "" : ", ") + io::quote(c);
    fail("{}: no column is {}; there are {}", name, io::quote(options.target), all);
  }
  check(std::count(columns.begin(), columns.end(), *found) == 1, "{}: two columns are {}", name,
        io::quote(*found));
  check(columns.size() > 1, "{}: all in one column, {}: is the separator not {}?", name,
        io::quote(*found), io::quote({&options.separator, 1}));
  const auto target = size_t(found - columns.begin());

  std::vector<float> x;
  std::vector<std::string> targets;
  bool numbers = true, texts = false;
  int64_t without = 0;  // a line that has no target
  for (; record; record = reader.next()) {
    const auto& fields = record->fields;
    check(fields.size() == columns.size(), "{}: line {} has {} fields, the first {}", name,
          record->line, fields.size(), columns.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      const auto value = number(fields[i]);
      if (i == target) {
        numbers = numbers && value;
        const bool none = trimmed(fields[i]).empty();
        texts = texts || (!value && !none);
        if (none && without == 0) without = record->line;
        continue;
      }
      check(value.has_value(), "{}: line {}, column {}: {} is not a number that f32 holds{}", name,
            record->line, io::quote(columns[i]), io::quote(fields[i]),
            trimmed(fields[i]).empty() ? " (a missing one is written nan)" : "");
      x.push_back(static_cast<float>(*value));
    }
    targets.push_back(fields[target]);
  }
  check(texts || without == 0, "{}: line {} has no {}, and the others are numbers", name, without,
        io::quote(columns[target]));

  Csv csv;
  csv.target = columns[target];
  columns.erase(columns.begin() + int64_t(target));
  csv.columns = std::move(columns);
  const auto n = int64_t(targets.size());
  const Tensor rows({n, int64_t(csv.columns.size())}, f32, Device::cpu());
  std::copy(x.begin(), x.end(), rows.data<float>());
  Tensor y({n}, f32, Device::cpu());
  if (options.classes || !numbers) {
    y = labels(targets, numbers, csv.classes);
  } else {
    for (size_t i = 0; i < targets.size(); ++i)
      y.data<float>()[i] = static_cast<float>(*number(targets[i]));
  }
  csv.data = TensorDataset(rows, y, name);
  return csv;
}

Csv read_csv(const std::string& path, const CsvOptions& options) {
  const std::vector<std::byte> file = io::read_file(path);
  return parse_csv({reinterpret_cast<const char*>(file.data()), file.size()}, path, options);
}

TensorDataset from_npy(const std::string& x_path, const std::string& y_path) {
  return {io::load_npy(x_path), io::load_npy(y_path), x_path};
}

}  // namespace mixtape::train
