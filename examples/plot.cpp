// Charts of runs, from the metrics.jsonl in their folders: one per quantity, with a curve per run.

#include <filesystem>

#include "examples/program.h"
#include "train/charts.h"

using namespace mixtape;

namespace {

namespace fs = std::filesystem;

// The last part of each folder's name, or all of it where two have that in common.
std::vector<std::string> names(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    const fs::path path = fs::absolute(folder).lexically_normal();
    names.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
  }
  std::vector<std::string> unique = names;
  for (size_t i = 0; i < names.size(); ++i)
    if (std::ranges::count(names, names[i]) > 1) unique[i] = folders[i];
  return unique;
}

std::vector<train::RunLog> read(const std::vector<std::string>& folders) {
  std::vector<train::RunLog> runs;
  const auto all = names(folders);
  for (size_t i = 0; i < folders.size(); ++i)
    for (auto& run : train::read_run(folders[i], folders.size() > 1 ? all[i] : ""))
      runs.push_back(std::move(run));
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> folders;
  std::string out;
  CLI::App app("Draws charts of runs: loss.svg, lr.svg and one more for each other quantity.",
               "mixtape-plot");
  app.add_option("RUN", folders, "folders of runs, each with its metrics.jsonl")
      ->required()
      ->check(folder_name);
  app.add_option("--out", out, "where the charts go (default: the folder of a single run, else .)")
      ->type_name("DIR")
      ->check(folder_name);
  if (const auto code = parse(app, argc, argv, [] {})) return *code;
  if (out.empty()) out = folders.size() == 1 ? folders[0] : ".";

  std::vector<train::RunLog> runs;
  try {
    runs = read(folders);
    train::charts(runs);
  } catch (const std::exception& e) {
    return complain(app, e.what(), 2);
  }
  try {
    for (const std::string& file : train::save_charts(runs, train::RunFolder(out)))
      fmt::print("{}\n", file);
  } catch (const std::exception& e) {
    return complain(app, e.what(), 1);
  }
  return 0;
}
