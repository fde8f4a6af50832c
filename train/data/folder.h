#pragma once
// ImageFolder: PNG files in one subfolder per class. The loader's threads read each file when they
// need it, so a data set may be larger than memory.

#include "train/data/dataset.h"

namespace mixtape::train {

// Images u8 [channels, height, width], of one size per batch, and labels i64 []. Errors name files.
class ImageFolder final : public Dataset {
 public:
  ImageFolder() = default;  // empty
  // Lists folder/CLASS/*.png in the order of names; ignores names that begin with a dot. Throws
  // Error if there is no class, or if a class has no PNG files or other files. max_memory is that
  // of io::load_png, for each image.
  explicit ImageFolder(std::string folder, int channels = 3, uint64_t max_memory = 0);

  std::string name() const override { return folder_; }
  std::string name_of(int64_t i) const override;
  int64_t size() const override { return int64_t(files_.size()); }
  Example get(int64_t i) const override;

  const std::vector<std::string>& classes() const { return classes_; }  // sorted; labels index them
  std::string path(int64_t i) const;
  ImageFolder part(const std::vector<int64_t>& indices) const;  // these examples only

 private:
  struct File {
    std::string name;
    int64_t label;
  };
  std::string folder_;
  int channels_ = 3;
  uint64_t max_memory_ = 0;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

struct FolderOptions {
  int channels = 3;             // 1: grey, 3: colour; files are converted
  double valid_fraction = 0.1;  // unused with folders train and valid
  uint64_t seed = 0;            // of the random split
  uint64_t max_memory = 0;      // of an image: bytes, see io::load_png
};

// Reads the folders train and valid in `path`, with equal classes; without them, splits at random.
Split<ImageFolder> from_folder(const std::string& path, const FolderOptions& options = {});

}  // namespace mixtape::train
