#pragma once
// A user's header with the name of one of ours.

namespace mine {
struct File {
  int value = 1;
};
}  // namespace mine
