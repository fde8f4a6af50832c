#include "dist/mpi_engine.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "dist/plugins/mpi_plugin.h"

namespace mixtape::dist {
namespace {

using Table = mixtape_mpi_table;

void require(const Table& mpi, int code, const char* what) {
  if (code == 0) return;
  char text[512] = "";
  mpi.message(code, text, sizeof text);
  fail("MPI: {} failed: {}", what, text);
}

class MpiRequest final : public Request {
 public:
  MpiRequest(const Table& mpi, std::span<const Transfer> sends, std::span<const Transfer> receives)
      : mpi_(mpi) {
    for (const auto& transfers : {sends, receives})
      for (const Transfer& t : transfers) transfers_.push_back({t.rank, t.data, t.bytes});
    const int count = int(sends.size());
    const int code = mpi.start(transfers_.data(), count, transfers_.data() + count,
                               int(receives.size()), &request_);
    if (code != 0) release();
    require(mpi, code, "a transfer");
  }
  ~MpiRequest() override { release(); }

  bool done() override {
    int done = 0;
    require(mpi_, mpi_.test(request_, &done), "a transfer");
    return done != 0;
  }
  std::vector<int> missing() const override {
    std::vector<char> under_way(transfers_.size());
    mpi_.missing(request_, under_way.data());
    std::vector<int> ranks;
    for (size_t i = 0; i < under_way.size(); ++i)
      if (under_way[i]) ranks.push_back(transfers_[i].rank);
    return ranks;
  }

 private:
  void release() {
    if (request_) mpi_.release(request_);
    request_ = nullptr;
  }

  const Table& mpi_;
  std::vector<mixtape_mpi_transfer> transfers_;
  void* request_ = nullptr;
};

class MpiEngine final : public Engine {
 public:
  explicit MpiEngine(const Table& mpi) : mpi_(mpi) {
    require(mpi, mpi.init(&rank_, &size_, &local_rank_), "starting");
    char library[64] = "";
    mpi.library(library, sizeof library);
    name_ = library;
  }
  ~MpiEngine() override { mpi_.finalize(); }

  std::string name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  std::unique_ptr<Request> start(std::span<const Transfer> sends,
                                 std::span<const Transfer> receives) override {
    return std::make_unique<MpiRequest>(mpi_, sends, receives);
  }
  void abort(int code) noexcept override { mpi_.abort(code); }

 private:
  const Table& mpi_;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  std::string name_;
};

// The folder of the file with this code: the shared library or the program.
std::string own_folder() {
  Dl_info info;
  const bool known = dladdr(reinterpret_cast<const void*>(&open_mpi), &info) && info.dli_fname;
  // A program's name is as the shell gave it, perhaps without a folder.
  const char* const file =
      known && std::strchr(info.dli_fname, '/') ? info.dli_fname : "/proc/self/exe";
  const std::unique_ptr<char, void (*)(void*)> path(realpath(file, nullptr), std::free);
  return path ? std::string(path.get(), std::strrchr(path.get(), '/') + 1) : "";
}

// The names of plug-ins to try, the most likely first: one compiled on site, then the one for the
// MPI that started this process.
std::vector<std::string> candidates() {
  const char* const named = std::getenv("MIXTAPE_MPI_PLUGIN");
  if (named && *named) return {named};
  const bool hydra = std::getenv("PMI_RANK") && !std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string first = hydra ? "mpich" : "openmpi", second = hydra ? "openmpi" : "mpich";
  const std::string own = own_folder();
  std::vector<std::string> files;
  for (const std::string& kind : {std::string(), "_" + first, "_" + second})
    // Folders: this file's, one beside the program's, those of an installation and a build, the
    // loader's.
    for (const std::string& folder :
         {own, own + "../lib/", std::string(MIXTAPE_LIBDIR "/"), own + "../dist/", std::string()})
      files.push_back(folder + "libmixtape_mpi" + kind + ".so");
  return files;
}

}  // namespace

std::unique_ptr<Engine> open_mpi() {
  std::string problem;
  for (const std::string& file : candidates()) {
    // Global, since the MPI behind it opens parts of its own, which look for its names.
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      const char* const error = dlerror();
      if (problem.empty() || access(file.c_str(), F_OK) == 0) problem = error;
      continue;
    }
    const auto* const table = static_cast<const Table*>(dlsym(library, "mixtape_mpi"));
    check(table && table->version == mixtape_mpi_version,
          "{} is not a plug-in of this version of Mixtape", file);
    return std::make_unique<MpiEngine>(*table);
  }
  fail(
      "MPI is to connect the ranks, but Mixtape's plug-in for it was not found ({}): build Mixtape "
      "where the headers of the MPI are (libopenmpi-dev or libmpich-dev on Debian), or name the "
      "plug-in by MIXTAPE_MPI_PLUGIN",
      problem);
}

}  // namespace mixtape::dist
