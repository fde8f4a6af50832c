#pragma once
// RunFolder: the folder for the log, charts and checkpoints of a training run.

#include <string>

namespace mixtape::train {

class RunFolder {
 public:
  // Creates the folder and its parents if needed. Throws Error if it cannot be made or is a file.
  explicit RunFolder(const std::string& folder);

  const std::string& path() const { return folder_; }  // absolute
  // The path of a file inside ("log.jsonl", "checkpoints/3.safetensors"); creates its folders.
  // Throws Error for a name that leads outside.
  std::string path(const std::string& name) const;

 private:
  std::string folder_;
};

}  // namespace mixtape::train
