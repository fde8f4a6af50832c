#include "train/data/folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "core/check.h"
#include "core/format.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/jpeg.h"
#include "io/png.h"
#include "io/text.h"

namespace mixtape::train {
namespace {

namespace fs = std::filesystem;

// The files or folders in a folder, sorted, since the system's order is arbitrary.
std::vector<std::string> names_in(const std::string& folder, bool folders) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unreadable;
    if (name[0] != '.' && (!folders || it->is_directory(unreadable))) names.push_back(name);
  }
  check(!error, "{}: cannot read this folder: {}", folder, error.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_image(const std::string& name) {
  return io::has_extension(name, ".png") || io::has_extension(name, ".jpg") ||
         io::has_extension(name, ".jpeg");
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

}  // namespace

Tensor load_image(const std::string& path, const ImageOptions& o) {
  const std::vector<std::byte> file = io::read_whole(path, o.max_memory, 1);
  const std::string_view text = io::as_text(file);
  if (text.starts_with(io::jpeg_signature))
    return io::parse_jpeg(file, path, {o.channels, o.min_side, o.max_memory});
  if (!text.starts_with(io::png_signature))
    fail("{}: not a PNG or JPEG file: {}", path, io::wrong_begin(io::InputBytes(file, path)));
  return io::parse_png(file, path, o.channels, o.max_memory);
}

ImageFolder::ImageFolder(std::string folder, const ImageOptions& options)
    : folder_(std::move(folder)), options_(options), classes_(names_in(folder_, true)) {
  const int channels = options.channels;
  check(channels == 1 || channels == 3, "channels must be 1 or 3, got {}", channels);
  check(!classes_.empty(), "{}: has no folder for any class", folder_);
  for (size_t label = 0; label < classes_.size(); ++label) {
    const std::vector<std::string> names = names_in(folder_ + "/" + classes_[label], false);
    check(!names.empty(), "{}/{}: no images", folder_, classes_[label]);
    for (const std::string& name : names) {
      check(is_image(name), "{}/{}/{}: not a .png, .jpg or .jpeg file", folder_, classes_[label],
            name);
      files_.push_back({name, int64_t(label)});
    }
  }
}

std::string ImageFolder::path(int64_t i) const {
  check_index(i);
  const File& file = files_[size_t(i)];
  return folder_ + "/" + classes_[size_t(file.label)] + "/" + file.name;
}

std::string ImageFolder::name_of(int64_t i) const {
  return fmt::format("example {} ({})", i, path(i));
}

Example ImageFolder::get(int64_t i) const {
  const Tensor y({}, i64, Device::cpu());
  const Tensor x = load_image(path(i), options_);
  *y.data<int64_t>() = files_[size_t(i)].label;
  return {x, y};
}

ImageFolder ImageFolder::part(const std::vector<int64_t>& indices) const {
  ImageFolder part;
  part.folder_ = folder_;
  part.options_ = options_;
  part.classes_ = classes_;
  for (const int64_t i : indices) {
    check_index(i);
    part.files_.push_back(files_[size_t(i)]);
  }
  return part;
}

Split<ImageFolder> from_folder(const std::string& path, const FolderOptions& options) {
  const ImageOptions images{options.channels, options.min_side, options.max_memory};
  for (const std::string name : {"valid", "val"})
    if (is_folder(path + "/train") && is_folder(path + "/" + name)) {
      const ImageFolder train(path + "/train", images), valid(path + "/" + name, images);
      check(train.classes() == valid.classes(), "{}: train has classes {}, {} {}", path,
            fmt::join(train.classes(), ", "), name, fmt::join(valid.classes(), ", "));
      return {train, valid};
    }
  const ImageFolder all(path, images);
  const auto parts = split(all, {.valid_fraction = options.valid_fraction, .seed = options.seed});
  return {all.part(parts.train.indices()), all.part(parts.valid.indices())};
}

}  // namespace mixtape::train
