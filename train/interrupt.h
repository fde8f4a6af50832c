#pragma once
// Ctrl-C as a wish: while an Interrupt is alive it only raises a flag, so that a training can end
// after its step. A second Ctrl-C ends the program as ever.

#include <csignal>

namespace mixtape::train {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;

  static bool wished();  // since the innermost Interrupt was made

 private:
  struct sigaction outer_;
};

}  // namespace mixtape::train
