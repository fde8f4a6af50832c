#pragma once
// Peers: watches the processes of other ranks on this machine, to notice at once that one has
// ended.

#include <string>
#include <vector>

#include "core/no_copy.h"

namespace mixtape::dist {

// Each process holds a lock in memory that the others see. The kernel marks the lock when the
// process ends, before it closes files. (Launchers notice closed files, and may kill the others
// before they can report the error.)
class Peers : NoCopy {
 public:
  // The name of this machine or container; empty if unknown.
  static std::string machine();

  Peers();  // made on the thread that ends with the process
  ~Peers();
  // A text that tells the others which process this is.
  std::string introduction() const;
  // Watches the processes of `introductions`, one per rank, except those on other machines or in
  // other containers, and those whose memory this process may not see.
  void watch(const std::vector<std::string>& introductions, int rank);
  std::vector<int> ended() const;  // ranks whose processes have ended

 private:
  struct Lock;
  static Lock* map(int file);

  const int file_;  // in memory, with this process's lock
  Lock* own_ = nullptr;
  std::vector<int> ranks_;
  std::vector<Lock*> locks_;
};

}  // namespace mixtape::dist
