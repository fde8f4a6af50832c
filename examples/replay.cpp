// Runs the op of an overflow's capsule again, in each precision.

#include "amp/capsule.h"
#include "examples/command_line.h"

using namespace mixtape;
using namespace mixtape::examples;

int main(int argc, char** argv) {
  std::string file, device = "cpu";
  CommandLine line(
      "mixtape-replay",
      "Runs the op in which an overflow began again, in f16, bf16, f32 and f64, says "
      "which of them cure it, and prints a program that tests it. Trust a capsule like a "
      "program: its op is run with whatever attributes the file has.");
  line.add("FILE", file, " ", "what amp::OverflowCapsule wrote").required().check(not_empty());
  line.add("--device", device, "NAME", "cpu or cuda:0 (default: cpu)").check(not_empty());
  return line.run(argc, argv, [&]() -> CommandLine::Work {
    const auto capsule = std::make_shared<amp::Capsule>(amp::Capsule::load(file));
    const Device on = usable(device);
    return [&file, capsule, on] {
      const DefaultDevice here(on);
      fmt::print("{}\n{}", capsule->report(), capsule->test(file));
    };
  });
}
