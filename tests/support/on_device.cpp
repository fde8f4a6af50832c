// Linked into every test program. MIXTAPE_TEST_DEVICE=cuda:0 is the default device of its tests;
// they skip if it does not exist, or if the device in MIXTAPE_NEEDS_DEVICE does not. Signals that a
// script ignores for its jobs in the background end the tests as anywhere else.

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <optional>

#include "core/device.h"
#include "core/runtime.h"

namespace mixtape {
namespace {

class OnDevice : public testing::Environment {
  void SetUp() override {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
    const char* const here = std::getenv("MIXTAPE_TEST_DEVICE");
    const char* const needed = here ? here : std::getenv("MIXTAPE_NEEDS_DEVICE");
    if (!needed) return;
    if (runtime::devices().empty()) GTEST_SKIP() << runtime::cuda().no_device_reason();
    if (here) default_.emplace(Device::parse(here));
  }
  void TearDown() override { default_.reset(); }
  std::optional<DefaultDevice> default_;
};

[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new OnDevice);

}  // namespace
}  // namespace mixtape
