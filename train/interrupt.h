#pragma once
// Interrupt: a guard. The first SIGINT (Ctrl-C) or SIGTERM (from a batch system) only sets a flag,
// so that training can end after a step. A second signal ends the program, as usual.

#include "core/no_copy.h"

namespace mixtape::train {

class Interrupt : NoCopy {
 public:
  Interrupt();  // leaves signals alone that the program ignores, as a script's background job does
  ~Interrupt();

  static bool requested();   // true after a signal, until the last Interrupt is destroyed
  static int last_signal();  // the signal that an Interrupt got last, SIGINT or SIGTERM; 0: none
  // Lets the program go on training after an interrupted fit. Otherwise the next fit, unless it
  // resumes, raises the signal again, so that a loop over fits ends as if there were no Interrupt.
  static void forget();

 private:
  friend class Learner;
  static void take_over(int signal);  // treats a signal that another rank got as this process's
  static void keep();                 // keeps the signal for the next fit
  static void raise_kept();           // raises a signal that an earlier fit kept
};

}  // namespace mixtape::train
