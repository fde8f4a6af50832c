#include "train/interrupt.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace mixtape::train {
namespace {
std::atomic<bool> flag = false;  // lock-free: a signal handler sets it
std::mutex mutex;
int alive = 0;  // Interrupts in all threads
struct sigaction before;
}  // namespace

Interrupt::Interrupt() {
  const std::lock_guard lock(mutex);
  if (alive++ > 0) return;
  struct sigaction action = {};
  action.sa_handler = [](int) { flag = true; };
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);  // writes to pipes continue
  sigaction(SIGINT, &action, &before);
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(mutex);
  if (--alive > 0) return;
  sigaction(SIGINT, &before, nullptr);
  flag = false;
}

bool Interrupt::requested() { return flag; }

}  // namespace mixtape::train
