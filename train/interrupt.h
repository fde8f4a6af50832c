#pragma once
// Interrupt: while one is alive, the first SIGINT (Ctrl-C) or SIGTERM (a batch system's) only sets
// a flag, so that a training can end after its step. A second one acts as usual: it ends the
// program.

#include "core/no_copy.h"

namespace mixtape::train {

class Interrupt : NoCopy {
 public:
  Interrupt();  // a signal that the program ignores, as a script's background job does, stays so
  ~Interrupt();

  static bool requested();   // true after a signal, until the last Interrupt is destroyed
  static int last_signal();  // SIGINT or SIGTERM, whichever an Interrupt got last; 0: none
  // Lets the program train on after an interrupted fit. Otherwise the next one, unless it resumes,
  // raises the signal again, so that a loop over fits ends as if there were no Interrupt.
  static void forget();

 private:
  friend class Learner;
  static void take_over(int signal);  // as if this process had got it; another rank did
  static void keep();                 // for the next fit
  static void raise_kept();           // what an earlier fit kept
};

}  // namespace mixtape::train
