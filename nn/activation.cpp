#include "nn/activation.h"

#include "core/check.h"

namespace mixtape::nn {
using namespace internal;

GELU::GELU(std::string_view approximate) : tanh_(approximate == "tanh") {
  check(tanh_ || approximate == "none",
        "GELU: approximate must be \"none\" or \"tanh\", got \"{}\"", approximate);
}

}  // namespace mixtape::nn
