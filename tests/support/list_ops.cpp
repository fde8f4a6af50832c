// Prints every op of the library, its precision and the rows that test it, a line each: what
// script/docs writes tables of.

#include <fmt/core.h>

#include "core/dispatch.h"
#include "tests/support/op_cases.h"

int main() {
  using namespace mixtape;
  std::vector<tests::OpCase> cases = tests::op_cases();
  if (Device::best().is_host())  // there it has no row, and documents are the same everywhere
    cases.push_back({.op = "to_device", .inputs = {}, .run = {}});
  for (const OpInfo* op : all_ops()) {
    fmt::print("{} {}", op->name, name(op->precision));
    for (const tests::OpCase& c : cases)
      if (c.op == op->name) fmt::print(" {}", c.name());
    fmt::print("\n");
  }
}
