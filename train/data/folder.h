#pragma once
// A folder of PNG files with one subfolder per class, whose name is the class. Files are read when
// their example is asked for: by the loader's threads, and never all at once.

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/dataset.h"

namespace mixtape::train {

// Images u8 [channels, height, width] and labels i64 []. A batch needs images of one size; errors
// name the file.
class ImageFolder final : public Dataset {
 public:
  ImageFolder() = default;  // none
  // folder/CLASS/*.png, in the order of their names; names that begin with a dot do not count.
  // Throws Error if there is no class, or something else than PNG files in one, or none.
  explicit ImageFolder(std::string folder, int channels = 3);

  std::string name() const override { return folder_; }
  std::string name_of(int64_t i) const override;
  int64_t size() const override { return int64_t(files_.size()); }
  Example get(int64_t i) const override;

  const std::vector<std::string>& classes() const { return classes_; }  // sorted; labels count them
  std::string path(int64_t i) const;
  ImageFolder part(const std::vector<int64_t>& indices) const;  // some of its examples

 private:
  struct File {
    std::string name;
    int64_t label;
  };
  std::string folder_;
  int channels_ = 3;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

struct FolderOptions {
  int channels = 3;             // 1: grey, 3: colour; others are converted
  double valid_fraction = 0.1;  // unused where there are folders train and valid
  uint64_t seed = 0;            // of which examples validate
};

// The folders train and valid of `path`, if it has such, which must have the same classes;
// else a random part of its images validates.
Split<ImageFolder> from_folder(const std::string& path, const FolderOptions& options = {});

}  // namespace mixtape::train
