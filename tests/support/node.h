#pragma once
// A Node for tests of core, which only declares it.

namespace mixtape {

class Node {};

}  // namespace mixtape
