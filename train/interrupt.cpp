#include "train/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>

namespace mixtape::train {
namespace {

constexpr std::array signals = {SIGINT, SIGTERM};
// Lock-free, since a signal handler sets them.
std::atomic<bool> flag = false;
std::atomic<int> last = 0;
std::atomic<bool> kept = false;
std::mutex mutex;
int alive = 0;  // the number of Interrupts in all threads
std::array<struct sigaction, signals.size()> before;

void put_back() {
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before[i], nullptr);
}

void on_signal(int signal) {
  last = signal;
  flag = true;
  put_back();
}

}  // namespace

Interrupt::Interrupt() {
  const std::lock_guard lock(mutex);
  if (alive++ > 0) return;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // writes to pipes continue
  for (size_t i = 0; i < signals.size(); ++i) {
    sigaction(signals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(signals[i], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  const std::lock_guard lock(mutex);
  if (--alive > 0) return;
  put_back();
  flag = false;
}

bool Interrupt::requested() { return flag; }
void Interrupt::take_over(int signal) {
  const std::lock_guard lock(mutex);
  if (alive > 0 && !flag) on_signal(signal);
}
int Interrupt::last_signal() { return last; }
void Interrupt::forget() { kept = false; }
void Interrupt::keep() { kept = true; }
void Interrupt::raise_kept() {
  if (kept.exchange(false)) std::raise(last);
}

}  // namespace mixtape::train
