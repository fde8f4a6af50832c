#pragma once
// Data sets from tables of numbers: .csv text, or .npy arrays.

#include <string>
#include <string_view>
#include <vector>

#include "train/data/dataset.h"

namespace mixtape::train {

struct CsvOptions {
  std::string target = {};  // the column to predict; by default the last
  bool classes = false;     // its different values are classes, also where all are numbers
  bool header = true;       // the first line names the columns; else they are "0", "1", ...
  char separator = ',';
};

struct Csv {
  TensorDataset data;                // x: f32 [n, columns]; y: f32 [n], or i64 [n] for classes
  std::vector<std::string> columns;  // of x
  std::string target;
  std::vector<std::string> classes;  // label i is classes[i]; sorted, by value if all are numbers
};

// Comma-separated values as in RFC 4180: fields may stand in double quotes, with "" for a quote and
// line ends inside. All columns are numbers, except a target that holds anything else, whose values
// are classes. A packed .gz will do. Throws Error that names file, line and column when a line has
// fewer or more fields than the first, a field is no number (a missing one is written nan), or a
// quote stays open; and when there is but one column, as with another separator.
Csv read_csv(const std::string& path, const CsvOptions& options = {});
// The same from memory; `name` stands for the file in errors.
Csv parse_csv(std::string_view text, const std::string& name, const CsvOptions& options = {});

// Two arrays of NumPy's, [n, ...] each: see io/npy.h.
TensorDataset from_npy(const std::string& x_path, const std::string& y_path);

}  // namespace mixtape::train
