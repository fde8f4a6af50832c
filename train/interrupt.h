#pragma once
// Ctrl-C as a wish: while an Interrupt is alive it only raises a flag, so that a training can end
// after its step. A second Ctrl-C ends the program as ever.

namespace mixtape::train {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;

  static bool wished();  // since the first of those alive was made
};

}  // namespace mixtape::train
