#include "examples/command_line.h"

#include <csignal>
#include <cstdio>

#include "core/check.h"
#include "core/format.h"
#include "core/half.h"
#include "core/runtime.h"
#include "kernels/cpu/parallel.h"

namespace mixtape::examples {
namespace {

bool trains(DType t) { return t == f32 || t == f16 || t == bf16; }

}  // namespace

CLI::Validator one_of(std::vector<std::string> names) {
  const auto wrong = [names = std::move(names)](const std::string& text) -> std::string {
    if (std::ranges::count(names, text)) return {};
    const auto last = names.end() - 1;
    return fmt::format("\"{}\" is not {} or {}", text, fmt::join(names.begin(), last, ", "), *last);
  };
  return {wrong, ""};
}

CLI::Validator name_of(const char* what) {
  const auto wrong = [what](const std::string& text) {
    return text.empty() ? fmt::format("the name of the {} is empty", what) : std::string();
  };
  return {wrong, ""};
}

CLI::Validator precision() {
  const auto wrong = [](const std::string& text) -> std::string {
    try {
      if (trains(parse_dtype(text))) return {};
    } catch (const Error&) {
    }
    return fmt::format("\"{}\" is not float32, float16 or bfloat16", text);
  };
  return {wrong, ""};
}

DType low(const std::string& name) { return parse_dtype(name); }

Device usable(const std::string& name) {
  const Device device = Device::parse(name);
  device.require();
  kernels::cpu::num_threads();  // throws where MIXTAPE_NUM_THREADS is no number
  return device;
}

std::string on_device(const Device& device) {
  if (device.is_cpu()) return {};
  return fmt::format(", on {} ({})", device, runtime::properties(device.index).name);
}

int CommandLine::run(int argc, char** argv, const std::function<Work()>& prepare) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app_.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& e) {
    return complain(fmt::format("{} (--help lists the options)", e.what()), 2);
  }
  Work work;
  try {
    work = prepare();
  } catch (const std::exception& e) {
    return complain(e.what(), 2);
  }
  try {
    work();
    check(std::fflush(stdout) == 0, "cannot write to the standard output");
  } catch (const Interrupted& e) {
    return complain(fmt::format("interrupted: {}", e.what()), 128 + SIGINT);
  } catch (const std::exception& e) {
    return complain(e.what(), 1);
  }
  return 0;
}

// One line for people: the lines after the first say where in the source it was raised.
int CommandLine::complain(const std::string& text, int code) const {
  fmt::print(stderr, "{}: {}\n", app_.get_name(), text.substr(0, text.find('\n')));
  return code;
}

}  // namespace mixtape::examples
