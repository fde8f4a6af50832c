#pragma once
// Data sets from tables: .csv text or .npy arrays.

#include <map>

#include "train/data/dataset.h"

namespace mixtape::train {

struct Csv;

struct CsvOptions {
  std::string target = {};                   // the column to predict; by default the last
  std::vector<std::string> columns = {};     // of x, in this order; by default all others
  std::vector<std::string> categories = {};  // columns of names, which become numbers
  bool classes = false;                      // true: numbers of the target are classes, too
  std::optional<float> missing = {};         // the value of empty fields in number columns
  bool header = true;  // the first line has column names; else they are "0", "1", ...
  char separator = ',';
  // A table read before, such as the training data, whose target, columns, categories and classes
  // are used, with the same numbers. A name that it lacks is an Error.
  const Csv* like = nullptr;
  uint64_t max_memory = 0;  // bytes that reading may take; 0: see io::memory_limit()
};

struct Csv {                         // a table that was read
  TensorDataset data;                // x: f32 [n, columns]; y: f32 [n], or i64 [n] for classes
  std::vector<std::string> columns;  // of x
  std::string target;
  std::vector<std::string> classes;  // names of labels; sorted, by value if numbers below 2^53
  std::map<std::string, std::vector<std::string>> categories;  // by column, sorted likewise
};

// Reads comma-separated values (RFC 4180): fields may be in double quotes, with "" for a quote and
// line breaks inside. Columns are numbers, except categories, and a target that contains other
// text, whose values are classes. The file may be a .gz. Throws Error that names file, line and
// column if lines differ in their number of fields, a field is not a number, a line has no target,
// or a quote is not closed; also if there is only one column, which suggests a wrong separator, and
// before it takes more memory than max_memory.
Csv read_csv(const std::string& path, const CsvOptions& options = {});
// Parses a file in memory; errors call it `name`.
Csv parse_csv(std::string_view text, const std::string& name, const CsvOptions& options = {});

// Reads two NumPy arrays [n, ...]; see io/npy.h.
TensorDataset from_npy(const std::string& x_path, const std::string& y_path);

}  // namespace mixtape::train
