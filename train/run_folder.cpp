#include "train/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/check.h"
#include "io/file.h"

namespace mixtape::train {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  check(!error, "{}: cannot make this folder: {}", folder.string(), error.message());
}

}  // namespace

RunFolder::RunFolder(const std::string& folder) : folder_(io::absolute(folder)) {
  check(!folder_.empty(), "a run folder needs a name");
  make_folder(folder);
}

std::string RunFolder::path(const std::string& name) const {
  const fs::path inside(name);
  const bool stays = !name.empty() && inside.is_relative() &&
                     std::find(inside.begin(), inside.end(), fs::path("..")) == inside.end();
  check(stays, "\"{}\" is not a name inside {}", name, folder_);
  const fs::path full = fs::path(folder_) / inside;
  make_folder(full.parent_path());
  return full.string();
}

}  // namespace mixtape::train
