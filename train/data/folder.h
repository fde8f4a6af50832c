#pragma once
// ImageFolder: PNG and JPEG files in one subfolder per class. Loaders' threads read each file when
// it is needed, so a data set may be larger than memory.

#include "train/data/dataset.h"

namespace mixtape::train {

struct ImageOptions {
  int channels = 3;         // 1: grey, 3: colour; files are converted
  int64_t min_side = 0;     // decodes JPEG to a smaller size, see io::JpegOptions; 0: full size
  uint64_t max_memory = 0;  // bytes, see io::load_png
};
// Reads a PNG or JPEG file, whatever its name, as u8 [channels, height, width].
Tensor load_image(const std::string& path, const ImageOptions& options = {});

// Images u8 [channels, height, width] and labels i64 []. All images of a batch must have the same
// size; if files differ, wrap the data set in a Mapped (train/data/images.h). Errors name files.
class ImageFolder final : public Dataset {
 public:
  ImageFolder() = default;  // empty
  // Lists .png, .jpg and .jpeg files of folder/CLASS in the order of names; ignores names that
  // begin with a dot. Throws Error if there is no class, or if a class has no images or has other
  // files.
  explicit ImageFolder(std::string folder, const ImageOptions& options = {});

  std::string name() const override { return folder_; }
  std::string name_of(int64_t i) const override;
  int64_t size() const override { return int64_t(files_.size()); }
  Example get(int64_t i) const override;

  const std::vector<std::string>& classes() const { return classes_; }  // sorted; labels index them
  std::string path(int64_t i) const;                                    // of example i's file
  ImageFolder part(const std::vector<int64_t>& indices) const;          // only these examples

 private:
  struct File {
    std::string name;
    int64_t label;
  };
  std::string folder_;
  ImageOptions options_;
  std::vector<std::string> classes_;
  std::vector<File> files_;
};

struct FolderOptions {
  int channels = 3;             // 1: grey, 3: colour; files are converted
  double valid_fraction = 0.1;  // not used if there are folders train and valid
  uint64_t seed = 0;            // of the random split
  int64_t min_side = 0;         // as in ImageOptions
  uint64_t max_memory = 0;      // of an image: bytes, see io::load_png
};

// Reads the folders train and valid (or val, as in ImageNet) in `path`, which must have the same
// classes. Without them, splits the class folders in `path` at random, as for Caltech's data sets.
Split<ImageFolder> from_folder(const std::string& path, const FolderOptions& options = {});

}  // namespace mixtape::train
