#include "train/data/tables.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

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
  bool take_line_end() {
    const size_t length = text_.substr(at_, 2) == "\r\n" ? 2 : text_[at_] == '\n';
    at_ += length;
    line_ += length > 0;
    return length > 0;
  }
  std::string field() {
    if (at_ < text_.size() && text_[at_] == '"') return quoted();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != separator_ && text_[at_] != '\n' &&
           text_.substr(at_, 2) != "\r\n")
      ++at_;
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

std::optional<double> number(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc{} || end != text.end()) return {};
  return value;
}

// The different values of a column, sorted: by value if all are numbers.
std::vector<std::string> distinct(const std::vector<std::string>& values, bool numbers) {
  std::vector<std::string> all = values;
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (numbers)
    std::stable_sort(all.begin(), all.end(), [](const std::string& a, const std::string& b) {
      const auto key = [](double v) { return std::pair(std::isnan(v), std::isnan(v) ? 0 : v); };
      return key(*number(a)) < key(*number(b));
    });
  return all;
}

Tensor labels(const std::vector<std::string>& values, const std::vector<std::string>& classes) {
  std::map<std::string_view, int64_t> numbers;
  for (const std::string& c : classes) numbers.emplace(c, int64_t(numbers.size()));
  const Tensor y({int64_t(values.size())}, i64, Device::cpu());
  for (size_t i = 0; i < values.size(); ++i) y.data<int64_t>()[i] = numbers.at(values[i]);
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
  const auto target = size_t(found - columns.begin());

  std::vector<float> x;
  std::vector<std::string> targets;
  bool numbers = true;
  for (; record; record = reader.next()) {
    const auto& fields = record->fields;
    check(fields.size() == columns.size(), "{}: line {} has {} fields, the first {}", name,
          record->line, fields.size(), columns.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      const auto value = number(fields[i]);
      if (i == target) {
        numbers = numbers && value;
        continue;
      }
      check(value.has_value(), "{}: line {}, column {}: {} is not a number", name, record->line,
            io::quote(columns[i]), io::quote(fields[i]));
      x.push_back(static_cast<float>(*value));
    }
    targets.push_back(fields[target]);
  }

  Csv csv;
  csv.target = columns[target];
  columns.erase(columns.begin() + int64_t(target));
  csv.columns = std::move(columns);
  const auto n = int64_t(targets.size());
  const Tensor rows({n, int64_t(csv.columns.size())}, f32, Device::cpu());
  std::copy(x.begin(), x.end(), rows.data<float>());
  Tensor y({n}, f32, Device::cpu());
  if (options.classes || !numbers) {
    csv.classes = distinct(targets, numbers);
    y = labels(targets, csv.classes);
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
