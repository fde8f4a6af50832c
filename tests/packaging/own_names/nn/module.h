#pragma once
// A user's header with the name of one of ours.

namespace mine {
struct Module {
  int value = 1;
};
}  // namespace mine
