// Printing as NumPy's array2string with precision 4: words of equal width between brackets.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "core/check.h"
#include "core/effects.h"
#include "core/element.h"
#include "core/format.h"
#include "core/parse.h"

namespace mixtape {
using namespace internal;
namespace {

constexpr int64_t ellipsis = -1;  // replaces an index

thread_local constinit const PrintOptions* innermost = nullptr;

// The indices to print along each dimension.
std::vector<std::vector<int64_t>> shown(const Shape& shape, const PrintOptions& options) {
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(shape.rank));
  const int64_t edge = options.edge_items;
  for (int d = 0; d < shape.rank; ++d) {
    const bool shorten = shape.size() > options.threshold && shape[d] > 2 * edge;
    for (int64_t i = 0; i < shape[d]; ++i) {
      if (shorten && i == edge) {
        out[d].push_back(ellipsis);
        i = shape[d] - edge;
      }
      out[d].push_back(i);
    }
  }
  return out;
}

// The digits after the point that represent x, at most `precision`; `style` is 'f' or 'e'.
int digits_needed(double value, DType dtype, char style, int precision) {
  int longest = 0;  // without trailing zeros
  for (int digits = 0; digits <= precision; ++digits) {
    const std::string text = style == 'f' ? fmt::format("{:#.{}f}", value, digits)
                                          : fmt::format("{:#.{}e}", value, digits);
    // (Rounded up, the largest numbers are beyond doubles.)
    const double back = internal::parse_number<double>(text).value_or(INFINITY);
    const size_t point = text.find('.');
    if (text[point + static_cast<size_t>(digits)] != '0') longest = digits;
    if (rounded(back, dtype) == value) return digits;
  }
  return longest;
}

void align_right(std::vector<std::string>& words) {
  size_t width = 0;
  for (const std::string& w : words) width = std::max(width, w.size());
  for (std::string& w : words) w.insert(0, width - w.size(), ' ');
}

// True if magnitudes are too extreme, or too far apart, for columns of decimals.
bool wants_scientific(const std::vector<Element>& values, DType dtype) {
  double largest = 0, smallest = INFINITY;
  for (const Element& v : values) {
    const double a = std::abs(v.real);
    if (a == 0 || !std::isfinite(a)) continue;
    largest = std::max(largest, a);
    smallest = std::min(smallest, a);
  }
  // (Rounded to the dtype in which the comparison is made: 1000 times 0.9 is 900 in f32.)
  return largest > 0 && (largest >= 1e8 || smallest < rounded(1e-4, dtype) ||
                         rounded(largest / smallest, dtype) > 1000);
}

std::vector<std::string> float_words(const std::vector<Element>& values, DType dtype,
                                     const PrintOptions& options) {
  const char style = options.scientific && wants_scientific(values, dtype) ? 'e' : 'f';
  std::vector<int> digits;
  int most_digits = 0;
  for (const Element& v : values) {
    digits.push_back(std::isfinite(v.real) ? digits_needed(v.real, dtype, style, options.precision)
                                           : 0);
    most_digits = std::max(most_digits, digits.back());
  }

  std::vector<std::string> words;
  size_t most_exponent = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double v = values[i].real;
    if (!std::isfinite(v)) {
      words.push_back(std::isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
    } else if (style == 'f') {
      words.push_back(fmt::format("{:#.{}f}", v, digits[i]));
      words.back().append(static_cast<size_t>(most_digits - digits[i]), ' ');
    } else {
      words.push_back(fmt::format("{:#.{}e}", v, most_digits));
      most_exponent = std::max(most_exponent, words.back().size() - words.back().find('e'));
    }
  }
  if (style == 'e')  // exponents of equal width: 1.e+100 and 1.e+005
    for (std::string& w : words)
      if (const size_t e = w.find('e'); e != std::string::npos)
        w.insert(e + 2, most_exponent - (w.size() - e), '0');
  align_right(words);
  return words;
}

// A specification of fmt, such as ".3f", for one value.
template <class T>
std::string formatted(const T& value, std::string_view spec) {
  const std::string format = fmt::format("{{:{}}}", spec);
  return fmt::vformat(format, fmt::make_format_args(value));
}
// An integer as a floating-point number where the specification is for those.
std::string element(const Element& v, DType dtype, std::string_view spec) {
  if (v.whole && spec.find_first_of(".aefgAEFG") == spec.npos) return formatted(v.integer, spec);
  return v.whole || dtype == f64 ? formatted(v.real, spec) : formatted(float(v.real), spec);
}

std::vector<std::string> words_of(const std::vector<Element>& values, DType dtype,
                                  const PrintOptions& options, std::string_view spec, bool scalar) {
  std::vector<std::string> words;
  if (!spec.empty()) {
    for (const Element& v : values) words.push_back(element(v, dtype, spec));
  } else if (is_float(dtype) || is_f8(dtype)) {
    return float_words(values, dtype, options);
  } else if (dtype == boolean) {
    for (const Element& v : values)
      words.push_back(v.integer ? scalar ? "True" : " True" : "False");
  } else {
    for (const Element& v : values) words.push_back(std::to_string(v.integer));
  }
  align_right(words);
  return words;
}

class Page {
 public:
  Page(const Tensor& x, const PrintOptions& options, std::string_view spec)
      : x_(x),
        line_width_(static_cast<size_t>(options.line_width)),
        shown_(shown(x.shape(), options)) {
    ++internal::effects.reads;
    std::vector<Element> values;
    gather(0, 0, values);
    words_ = words_of(values, x.dtype(), options, spec, x.rank() == 0);
  }

  // The part of the tensor below `dim`. NumPy indents its lines by `dim` + 1.
  std::string text(int dim = 0) {
    if (dim == x_.rank()) return words_[next_++];
    const bool innermost = dim == x_.rank() - 1;
    return '[' + (innermost ? row(dim) : block(dim)) + ']';
  }

 private:
  void gather(int dim, int64_t position, std::vector<Element>& values) const {
    if (dim == x_.rank()) {
      const int64_t bytes = position * static_cast<int64_t>(size_of(x_.dtype()));
      values.push_back(read_element(static_cast<const char*>(x_.raw()) + bytes, x_.dtype()));
      return;
    }
    for (int64_t i : shown_[dim])
      if (i != ellipsis) gather(dim + 1, position + i * x_.strides()[dim], values);
  }

  // Words side by side, wrapped at the line width.
  std::string row(int dim) {
    const size_t indent = static_cast<size_t>(dim) + 1, closing = indent;
    std::string out, line(indent, ' ');
    for (size_t k = 0; k < shown_[dim].size(); ++k) {
      const std::string word = shown_[dim][k] == ellipsis ? "..." : words_[next_++];
      if (line.size() > indent && line.size() + word.size() + closing > line_width_) {
        out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
        line.assign(indent, ' ');
      }
      line += word;
      if (k + 1 < shown_[dim].size()) line += ' ';
    }
    return (out + line).substr(indent);
  }

  // Parts below each other, with one more empty line per rank between them.
  std::string block(int dim) {
    const std::string indent(static_cast<size_t>(dim) + 1, ' ');
    const std::string newline(static_cast<size_t>(x_.rank() - dim - 1), '\n');
    std::string out;
    for (int64_t i : shown_[dim]) {
      if (!out.empty()) out += newline + indent;
      out += i == ellipsis ? "..." : text(dim + 1);
    }
    return out;
  }

  const Tensor& x_;
  const size_t line_width_;
  std::vector<std::vector<int64_t>> shown_;
  std::vector<std::string> words_;
  size_t next_ = 0;
};

std::string elements(const Tensor& x, const PrintOptions& options, std::string_view spec) {
  return x.numel() == 0 ? "[]" : Page(x.copied_to(Device::cpu()), options, spec).text();
}

}  // namespace

PrintWith::PrintWith(const PrintOptions& options) : options_(options), outer_(innermost) {
  check(options.precision >= 0 && options.threshold >= 0 && options.edge_items > 0 &&
            options.line_width > 0,
        "precision {} and threshold {} must be >= 0, edge_items {} and line_width {} > 0",
        options.precision, options.threshold, options.edge_items, options.line_width);
  innermost = &options_;
}
PrintWith::~PrintWith() { innermost = outer_; }

std::string to_string(const Tensor& x) {
  if (!x) return "no tensor";
  return fmt::format("{}\n{} {}{}", elements(x, innermost ? *innermost : PrintOptions(), ""),
                     x.dtype(), x.shape(),
                     x.device().is_host() ? "" : " on " + x.device().to_string());
}
std::string to_string(const Tensor& x, const PrintOptions& options) {
  const PrintWith given(options);
  return to_string(x);
}
std::string detail::to_string(const Tensor& x, std::string_view spec) {
  return x ? elements(x, innermost ? *innermost : PrintOptions(), spec) : "no tensor";
}
std::string detail::to_string(std::string_view text, std::string_view spec) {
  return formatted(text, spec);
}

std::string internal::listed(std::span<const std::string> names, size_t most) {
  const auto shown = names.first(std::min(names.size(), most));
  const size_t more = names.size() - shown.size();
  return fmt::format("{}{}", fmt::join(shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

std::ostream& operator<<(std::ostream& out, DType t) { return out << name(t); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.to_string(); }
std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << device.to_string();
}
std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }

}  // namespace mixtape
