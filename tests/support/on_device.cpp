// Linked into a test program: with MIXTAPE_TEST_DEVICE=cuda:0 in the environment, its tests make
// their tensors there.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "core/device.h"

namespace mixtape {
namespace {

class OnDevice : public testing::Environment {
  void SetUp() override {
    if (const char* const device = std::getenv("MIXTAPE_TEST_DEVICE"))
      default_.emplace(Device::parse(device));
  }
  void TearDown() override { default_.reset(); }
  std::optional<DefaultDevice> default_;
};

[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new OnDevice);

}  // namespace
}  // namespace mixtape
