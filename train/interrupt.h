#pragma once
// Interrupt: while one is alive, the first Ctrl-C only sets a flag, so that a training can end
// after its step. A second Ctrl-C ends the program as usual.

#include "core/no_copy.h"

namespace mixtape::train {

class Interrupt : NoCopy {
 public:
  Interrupt();
  ~Interrupt();

  static bool requested();  // true after Ctrl-C, until the last Interrupt is destroyed
};

}  // namespace mixtape::train
