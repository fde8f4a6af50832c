// Prints every op of the library and its precision, a line each: what script/docs writes tables of.

#include <fmt/core.h>

#include "core/op.h"

int main() {
  for (const mixtape::OpInfo* op : mixtape::all_ops())
    fmt::print("{} {}\n", op->name, name(op->precision));
}
