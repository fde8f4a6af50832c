#pragma once
// Ctrl-C as a wish: while an Interrupt is alive it only raises a flag, so that a training can end
// after its step. A second Ctrl-C ends the program as ever.

#include "core/no_copy.h"

namespace mixtape::train {

class Interrupt : NoCopy {
 public:
  Interrupt();
  ~Interrupt();

  static bool wished();  // since the first of those alive was made
};

}  // namespace mixtape::train
