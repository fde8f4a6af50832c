#pragma once
// Peers: the processes of other ranks on this machine, watched to notice at once that one has
// ended.

#include <string>
#include <vector>

#include "core/no_copy.h"

namespace mixtape::dist {

// Each holds a lock in memory that the others see. The kernel marks it when the process ends,
// before it closes files, by which launchers notice, who may then kill the others before they
// speak.
class Peers : NoCopy {
 public:
  // Names this machine or container, or is empty.
  static std::string machine();

  Peers();  // on the thread whose end is that of the process
  ~Peers();
  // Says which process this is, to the others.
  std::string introduction() const;
  // `introductions` of all ranks. Those of other machines or containers are not watched, and none
  // whose memory this process may not see.
  void watch(const std::vector<std::string>& introductions, int rank);
  std::vector<int> ended() const;  // ranks whose processes have

 private:
  struct Lock;
  static Lock* map(int file);

  const int file_;  // in memory, with this process's lock
  Lock* own_ = nullptr;
  std::vector<int> ranks_;
  std::vector<Lock*> locks_;
};

}  // namespace mixtape::dist
