// Prints a line per op with its precision and the rows that test it; script/docs writes tables from
// them.

#include <fmt/format.h>

#include "core/dispatch.h"
#include "tests/support/op_cases.h"

int main() {
  using namespace mixtape;
  std::vector<tests::OpCase> cases = tests::op_cases();
  if (Device::best()
          .is_host())  // it has no row there, and documents must not depend on the machine
    cases.push_back({.op = "to_device", .inputs = {}, .run = {}});
  for (const OpInfo* op : all_ops()) {
    fmt::print("{} {}", op->name, name(op->precision));
    for (const tests::OpCase& c : cases)
      if (c.op == op->name) fmt::print(" {}", c.name());
    fmt::print("\n");
  }
}
