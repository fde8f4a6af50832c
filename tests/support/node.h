#pragma once
// A Node for tests of core, which only declares it.

namespace mixtape::internal {

class Node {};

}  // namespace mixtape::internal
