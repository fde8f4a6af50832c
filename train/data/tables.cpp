#include "train/data/tables.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

struct Record {
  int64_t line;  // its first line, from 1
  std::vector<std::string> fields;
};

// Splits text into records.
class Reader {
 public:
  Reader(std::string_view text, char separator, const std::string& name)
      : text_(text), separator_(separator), name_(name) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte order mark
  }
  // The next record, if any; skips empty lines.
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
// Nothing if the text is not a number or exceeds f32.
std::optional<double> number(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc{} || end != text.end()) return {};
  if (std::isfinite(value) && !std::isfinite(static_cast<float>(value))) return {};
  return value;
}

float number_at(const std::string& field, const std::string& name, int64_t line,
                const std::string& column) {
  const auto value = number(field);
  check(value.has_value(), "{}: line {}, column {}: {} is not a number that f32 holds{}", name,
        line, io::quote(column), io::quote(field),
        trimmed(field).empty() ? " (write nan for a missing one, or set .missing)" : "");
  return static_cast<float>(*value);
}

std::string quoted(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : ", ") + io::quote(n);
  return all;
}

// The distinct values of a column, sorted, and the label of each. As numbers, 1 and 1.0 are the
// same value and are named as in the first occurrence.
class Labels {
 public:
  explicit Labels(const std::vector<std::string>& values)
      : numbers_(std::ranges::all_of(values, [](const auto& v) { return number(v).has_value(); })) {
    std::map<Key, std::string> names;
    for (const std::string& v : values) names.emplace(key_of(v), v);
    for (const auto& [key, name] : names) {
      label_.emplace(key, int64_t(all.size()));
      all.push_back(name);
    }
  }
  std::optional<int64_t> label(const std::string& value) const {
    if (numbers_ && !number(value)) return {};
    const auto found = label_.find(key_of(value));
    return found == label_.end() ? std::nullopt : std::optional(found->second);
  }

  std::vector<std::string> all;

 private:
  using Key = std::tuple<bool, double, std::string>;  // NaN comes last
  Key key_of(const std::string& text) const {
    if (!numbers_) return Key(false, 0, text);
    const double value = *number(text);
    return std::isnan(value) ? Key(true, 0, "") : Key(false, value, "");
  }

  bool numbers_;
  std::map<Key, int64_t> label_;
};

// The columns to use, and their positions in the file.
struct Selection {
  Csv csv;  // without data
  size_t target;
  std::vector<size_t> columns;  // of x
};

Selection select_columns(const std::vector<std::string>& header, const std::string& name,
                         const CsvOptions& options) {
  const auto index_of = [&](const std::string& column) {
    const auto found = std::ranges::find(header, column);
    check(found != header.end(), "{}: no column is named {}; there are {}", name, io::quote(column),
          quoted(header));
    check(std::ranges::count(header, column) == 1, "{}: two columns are named {}", name,
          io::quote(column));
    return size_t(found - header.begin());
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
  check(std::ranges::count(csv.columns, csv.target) == 0,
        "{}: {} is both the target and in columns", name, io::quote(csv.target));
  for (const std::string& column : options.categories) csv.categories[column];
  if (like) csv.categories = like->categories;
  for (const auto& [column, names] : csv.categories)
    check(std::ranges::count(csv.columns, column) == 1, "{}: {} is not one of the columns {}", name,
          io::quote(column), quoted(csv.columns));
  return selection;
}

// The fields of the selected columns.
struct Table {
  std::vector<int64_t> lines;                             // of the records
  std::vector<float> x;                                   // 0 in categories
  std::map<std::string, std::vector<std::string>> texts;  // of the target and of categories
};

Table read_table(Reader& reader, std::optional<Record> record, size_t fields_per_line,
                 const std::string& name, const Selection& selection,
                 const std::optional<float>& missing) {
  const Csv& csv = selection.csv;
  Table table;
  for (; record; record = reader.next()) {
    const auto& fields = record->fields;
    check(fields.size() == fields_per_line, "{}: line {} has {} fields, but the first line has {}",
          name, record->line, fields.size(), fields_per_line);
    for (size_t k = 0; k < selection.columns.size(); ++k) {
      const std::string& field = fields[selection.columns[k]];
      if (csv.categories.contains(csv.columns[k])) {
        table.texts[csv.columns[k]].push_back(field);
        table.x.push_back(0);
      } else if (missing && trimmed(field).empty()) {
        table.x.push_back(*missing);
      } else {
        table.x.push_back(number_at(field, name, record->line, csv.columns[k]));
      }
    }
    table.texts[csv.target].push_back(fields[selection.target]);
    table.lines.push_back(record->line);
  }
  return table;
}

}  // namespace

Csv parse_csv(std::string_view text, const std::string& name, const CsvOptions& options) {
  Reader reader(text, options.separator, name);
  std::optional<Record> record = reader.next();
  check(record.has_value(), "{}: has no lines", name);
  std::vector<std::string> header = record->fields;
  if (options.header)
    record = reader.next();
  else
    for (size_t i = 0; i < header.size(); ++i) header[i] = std::to_string(i);
  Selection selection = select_columns(header, name, options);
  Csv& csv = selection.csv;
  const Csv* const like = options.like;
  Table table =
      read_table(reader, std::move(record), header.size(), name, selection, options.missing);

  const size_t n = table.lines.size(), width = csv.columns.size();
  // Calls put(i, label) for each field of a column of names; sets `known`, or uses it with `like`.
  const auto label = [&](const std::string& column, std::vector<std::string>& known, auto put) {
    const std::vector<std::string>& fields = table.texts[column];
    const Labels labels(like ? known : fields);
    for (size_t i = 0; i < n; ++i) {
      const auto found = labels.label(fields[i]);
      check(found.has_value(), "{}: line {}, column {}: {} is not among {}", name, table.lines[i],
            io::quote(column), io::quote(fields[i]), quoted(known));
      put(i, *found);
    }
    known = labels.all;
  };
  for (auto& [column, names] : csv.categories) {
    const auto k = size_t(std::ranges::find(csv.columns, column) - csv.columns.begin());
    label(column, names, [&](size_t i, int64_t which) { table.x[i * width + k] = float(which); });
  }
  const std::vector<std::string>& targets = table.texts[csv.target];
  const bool known = like && !like->classes.empty();
  const bool numbers = !known && std::ranges::none_of(targets, [](const std::string& field) {
    return !number(field) && !trimmed(field).empty();
  });
  for (size_t i = 0; i < n && numbers; ++i)
    check(!trimmed(targets[i]).empty(), "{}: line {} has no {}, but the others are numbers", name,
          table.lines[i], io::quote(csv.target));
  Tensor y({int64_t(n)}, f32, Device::cpu());
  if (known || (!like && (options.classes || !numbers))) {
    y = Tensor({int64_t(n)}, i64, Device::cpu());
    if (known) csv.classes = like->classes;
    label(csv.target, csv.classes, [&](size_t i, int64_t which) { y.data<int64_t>()[i] = which; });
  } else {
    for (size_t i = 0; i < n; ++i)
      y.data<float>()[i] = number_at(targets[i], name, table.lines[i], csv.target);
  }
  const Tensor rows({int64_t(n), int64_t(width)}, f32, Device::cpu());
  std::ranges::copy(table.x, rows.data<float>());
  csv.data = TensorDataset(rows, y, name);
  return std::move(csv);
}

Csv read_csv(const std::string& path, const CsvOptions& options) {
  const std::vector<std::byte> file = io::read_file(path);
  return parse_csv({reinterpret_cast<const char*>(file.data()), file.size()}, path, options);
}

TensorDataset from_npy(const std::string& x_path, const std::string& y_path) {
  return {io::load_npy(x_path), io::load_npy(y_path), x_path};
}

}  // namespace mixtape::train
