#include "train/interrupt.h"

namespace mixtape::train {
namespace {
volatile std::sig_atomic_t flag = 0;
}

Interrupt::Interrupt() {
  flag = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { flag = 1; };
  action.sa_flags = int(SA_RESETHAND);
  sigaction(SIGINT, &action, &outer_);
}

Interrupt::~Interrupt() { sigaction(SIGINT, &outer_, nullptr); }

bool Interrupt::wished() { return flag != 0; }

}  // namespace mixtape::train
