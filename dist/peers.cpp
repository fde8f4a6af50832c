#include "dist/peers.h"

#include "dist/engine.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace mixtape::dist {

// Where a number is a process's: the boot of the machine, and the namespace of numbers.
std::string Peers::machine() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  char numbers[64] = "";
  if (boot.empty() || readlink("/proc/self/ns/pid", numbers, sizeof numbers - 1) < 0) return "";
  return boot + " " + numbers;
}

std::string Engine::machine() const { return Peers::machine(); }

std::string Peers::introduction() { return fmt::format("{} {}", machine(), getpid()); }

Peers::Peers(const std::vector<std::string>& introductions, int rank) {
#ifdef SYS_pidfd_open
  const auto place = [&](size_t r) {
    return introductions[r].substr(0, introductions[r].rfind(' '));
  };
  const std::string here = place(size_t(rank));
  if (here.empty()) return;  // unknown
  for (size_t r = 0; r < introductions.size(); ++r) {
    if (int(r) == rank || place(r) != here) continue;
    const long file = syscall(SYS_pidfd_open, std::atoi(&introductions[r][here.size() + 1]), 0);
    if (file < 0) continue;
    ranks_.push_back(int(r));
    files_.push_back(int(file));
  }
#endif
}

Peers::~Peers() {
  for (const int file : files_) close(file);
}

std::vector<int> Peers::ended() const {
  std::vector<pollfd> polls;
  for (const int file : files_) polls.push_back({file, POLLIN, 0});
  std::vector<int> ranks;
  if (poll(polls.data(), polls.size(), 0) <= 0) return ranks;
  for (size_t i = 0; i < polls.size(); ++i)
    if (polls[i].revents) ranks.push_back(ranks_[i]);
  return ranks;
}

}  // namespace mixtape::dist
