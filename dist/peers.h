#pragma once
// Peers: the processes of other ranks on this machine, watched to notice at once that one has
// ended.

#include <string>
#include <vector>

#include "core/no_copy.h"

namespace mixtape::dist {

class Peers : NoCopy {
 public:
  // Names this machine or container, or is empty.
  static std::string machine();
  // Says which process this is, to the others.
  static std::string introduction();

  // `introductions` of all ranks. Those of other machines or containers are not watched, and none
  // where the kernel cannot (Linux before 5.3).
  Peers(const std::vector<std::string>& introductions, int rank);
  ~Peers();
  std::vector<int> ended() const;  // ranks whose processes have

 private:
  std::vector<int> ranks_, files_;
};

}  // namespace mixtape::dist
