#pragma once
// Data sets from tables of numbers: .csv text, or .npy arrays.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/data/dataset.h"

namespace mixtape::train {

struct Csv;

struct CsvOptions {
  std::string target = {};                   // the column to predict; by default the last
  std::vector<std::string> columns = {};     // those of x, in this order; by default all others
  std::vector<std::string> categories = {};  // those among them that hold names, to be numbered
  bool classes = false;  // the target's different values are classes, also where all are numbers
  std::optional<float> missing = {};  // what an empty field stands for, in columns of numbers
  bool header = true;  // the first line names the columns; else they are "0", "1", ...
  char separator = ',';
  // A table read before, as of training for one of validation: its target, columns, categories and
  // classes are those here, with the same numbers. A name that it does not have is an error.
  const Csv* like = nullptr;
};

struct Csv {
  TensorDataset data;                // x: f32 [n, columns]; y: f32 [n], or i64 [n] for classes
  std::vector<std::string> columns;  // of x
  std::string target;
  std::vector<std::string> classes;  // label i is classes[i]; sorted, by value if all are numbers
  std::map<std::string, std::vector<std::string>> categories;  // of each such column, likewise
};

// Comma-separated values as in RFC 4180: fields may stand in double quotes, with "" for a quote and
// line ends inside. All columns are numbers, except categories, and a target that holds anything
// else, whose values are classes. A packed .gz will do. Throws Error that names file, line and
// column when a line has fewer or more fields than the first, a field is no number, or a quote
// stays open; and when there is but one column, as with another separator.
Csv read_csv(const std::string& path, const CsvOptions& options = {});
// The same from memory; `name` stands for the file in errors.
Csv parse_csv(std::string_view text, const std::string& name, const CsvOptions& options = {});

// Two arrays of NumPy's, [n, ...] each: see io/npy.h.
TensorDataset from_npy(const std::string& x_path, const std::string& y_path);

}  // namespace mixtape::train
