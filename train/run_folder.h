#pragma once
// The folder that one training run writes into: its log, charts and checkpoints.

#include <string>

namespace mixtape::train {

class RunFolder {
 public:
  // Makes the folder and its parents; one that exists is used as it is. Removes nothing. Throws
  // Error when it cannot be made or is a file.
  explicit RunFolder(std::string folder);

  const std::string& path() const { return folder_; }
  // A file inside ("log.jsonl", "checkpoints/3.safetensors"); folders on the way to it are made.
  // Throws Error for a name that leads outside.
  std::string path(const std::string& name) const;

 private:
  std::string folder_;
};

}  // namespace mixtape::train
