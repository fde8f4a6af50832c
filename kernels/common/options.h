#pragma once
// Option: a number or flag of an optimizer by name, with the bounds that set_option() checks.

#include <cstdint>
#include <string_view>

#include "core/half.h"  // MIXTAPE_HD
#include "core/inline_vector.h"

namespace mixtape::kernels {

enum class Bounds { AtLeast0, Limit, Below1, Any };  // [0, inf), [0, inf], [0, 1), all but NaN

struct Option {
  Option(std::string_view n, double& value, Bounds b = Bounds::AtLeast0)
      : name(n), number(&value), bounds(b) {}
  Option(std::string_view n, bool& value) : name(n), flag(&value) {}
  double get() const { return flag ? *flag : *number; }
  void set(double value) const {
    if (flag)
      *flag = value != 0;
    else
      *number = value;
  }

  std::string_view name;
  double* number = nullptr;
  bool* flag = nullptr;  // 0 or 1
  Bounds bounds = Bounds::Any;
};
using Options = InlineVector<Option, 8>;

// A condition on two options together. If it does not hold, an Error gives its text and both
// values.
struct Requirement {
  bool holds;
  std::string_view text;
  double first, second;
};
using Requirements = InlineVector<Requirement, 2>;

// The extent of a state: a number for each element of a parameter or, if that is a matrix or
// several (in its last two dimensions), for each row or each column.
enum class Over : uint8_t { Elements, Rows, Columns };

// The name of an optimizer's state, and its kind. 8-bit codes need no sign for sums of squares.
// Weights keep their bits, since they move by less than the distance of two codes. States of rows
// or columns come after those of elements.
struct StateInfo {
  std::string_view name;
  bool nonnegative = false, is_weight = false;
  Over over = Over::Elements;
  constexpr StateInfo(const char* n) : name(n) {}
  constexpr StateInfo(std::string_view n, bool is_nonnegative, bool is_a_weight,
                      Over what = Over::Elements)
      : name(n), nonnegative(is_nonnegative), is_weight(is_a_weight), over(what) {}
};
constexpr StateInfo square(std::string_view name, Over over = Over::Elements) {
  return {name, true, false, over};
}
constexpr StateInfo weight(std::string_view name) { return {name, false, true}; }

struct Betas {  // decay rates of the running means of the gradient and of its square
  double first, second;
  constexpr Betas(double b1, double b2) : first(b1), second(b2) {}
};

// An optimizer's options as a kernel gets them: a value or, in a graph, a place in device memory
// that each replay writes.
template <class O>
struct OptionsNow {
  O given;
  const O* place;
  MIXTAPE_HD O operator()() const { return place ? *place : given; }
};

}  // namespace mixtape::kernels
