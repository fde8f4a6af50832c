#include "dist/nccl_engine.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "core/stream.h"
#include "dist/nccl.h"

namespace mixtape::dist {
namespace {

class Nccl {
 public:
  Nccl() {
    const char* const named = std::getenv("MIXTAPE_NCCL");
    const std::string file = named && *named ? named : "libnccl.so.2";
    // (Never closed: its threads may run until the process ends.)
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* const error = dlerror();
      fail(
          "the engine nccl needs NCCL 2.19 or later, which was not found ({}): install it "
          "(libnccl2 on Debian and Ubuntu), or name its file by MIXTAPE_NCCL",
          error);
    }
    const auto find = [&]<class F>(F*& function, const char* name) {
      function = reinterpret_cast<F*>(dlsym(library, name));
      check(function, "{} has no {}: it is not NCCL, or older than 2.19", file, name);
    };
#define MIXTAPE_NCCL_FIND(name, parameters) find(functions_.name, "nccl" #name);
    MIXTAPE_NCCL_FUNCTIONS(MIXTAPE_NCCL_FIND)
#undef MIXTAPE_NCCL_FIND
    find(functions_.GetErrorString, "ncclGetErrorString");
    find(functions_.GetLastError, "ncclGetLastError");
    functions_.GetVersion(&version_);
    check(version_ >= int(nccl::Config::least_version), "NCCL must be 2.19 or later, got {}",
          version());
  }
  const nccl::Functions* operator->() const { return &functions_; }
  std::string version() const {
    return fmt::format("{}.{}.{}", version_ / 10000, version_ / 100 % 100, version_ % 100);
  }
  // Throws Error if a call failed. (Non-blocking calls go on after they return.)
  void require(nccl::Result code, nccl::Comm comm, const char* what) const {
    if (code == nccl::Success || code == nccl::InProgress) return;
    const std::string more = functions_.GetLastError(comm);
    fail("NCCL: {} failed: {}{}{}", what, functions_.GetErrorString(code), more.empty() ? "" : ": ",
         more);
  }

 private:
  nccl::Functions functions_;
  int version_ = 0;
};

class NcclEngine final : public Engine {
 public:
  NcclEngine(Engine& host, Device device) : host_(host), device_(device) {}
  // All ranks have met before, so nothing is under way.
  ~NcclEngine() override {
    if (!comm_) return;
    nccl::Result state = nccl_->CommFinalize(comm_);
    for (int polls = 0; state == nccl::InProgress && polls < 5000; ++polls) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (nccl_->CommGetAsyncError(comm_, &state) != nccl::Success) break;
    }
    state == nccl::Success ? nccl_->CommDestroy(comm_) : nccl_->CommAbort(comm_);
  }

  std::string name() const override {
    return fmt::format("NCCL {} over {}", nccl_.version(), host_.name());
  }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int local_rank() const override { return host_.local_rank(); }
  Device device() const override { return device_; }
  std::unique_ptr<Request> start(std::span<const Transfer> sends,
                                 std::span<const Transfer> receives) override {
    return std::make_unique<OnStream>(*this, sends, receives);
  }
  // Ends work that waits on the device.
  void abort(int) noexcept override {
    if (comm_) nccl_->CommAbort(std::exchange(comm_, nullptr));
  }

 private:
  // Transfers in this thread's stream, which begin once the ranks are connected.
  class OnStream final : public Request {
   public:
    OnStream(NcclEngine& engine, std::span<const Transfer> sends,
             std::span<const Transfer> receives)
        : engine_(engine),
          sends_(sends.begin(), sends.end()),
          receives_(receives.begin(), receives.end()) {}
    ~OnStream() override {
      if (mark_) runtime().destroy_mark(mark_);
    }

    // NCCL hands work to the stream some time after the call.
    bool is_queued() override {
      if (mark_) return true;
      if (!engine_.connect() || !engine_.is_idle("connecting GPUs")) return false;
      if (!has_called_) call();
      if (!engine_.is_idle("a transfer")) return false;
      const Device d = engine_.device_;
      mark_ = runtime().create_mark(d.index, /*timed=*/false);
      runtime().record(mark_, Stream::current(d).handle, d.index);
      return true;
    }
    bool done() override {
      return is_queued() && engine_.is_idle("a transfer") &&
             runtime().has_passed(mark_, engine_.device_.index);
    }
    // NCCL does not say which ranks are missing.
    std::vector<int> missing() const override {
      if (engine_.meeting_) return engine_.meeting_->missing();
      std::vector<int> ranks;
      for (const auto* transfers : {&sends_, &receives_})
        for (const Transfer& t : *transfers) ranks.push_back(t.rank);
      return ranks;
    }
    std::vector<int> lost() const override {
      return engine_.meeting_ ? engine_.meeting_->lost() : std::vector<int>();
    }

   private:
    const runtime::Runtime& runtime() const { return runtime::of(engine_.device_.type); }
    void call() {
      has_called_ = true;
      const Nccl& nccl = engine_.nccl_;
      const nccl::Comm comm = engine_.comm_;
      const nccl::Stream stream = Stream::current(engine_.device_).handle;
      const auto require = [&](nccl::Result code) { nccl.require(code, comm, "a transfer"); };
      runtime().select(engine_.device_.index);
      require(nccl->GroupStart());
      for (const Transfer& t : sends_)
        if (t.bytes) require(nccl->Send(t.data, t.bytes, nccl::Uint8, t.rank, comm, stream));
      for (const Transfer& t : receives_)
        if (t.bytes) require(nccl->Recv(t.data, t.bytes, nccl::Uint8, t.rank, comm, stream));
      require(nccl->GroupEnd());
    }

    NcclEngine& engine_;
    const std::vector<Transfer> sends_, receives_;
    bool has_called_ = false;
    runtime::Mark mark_ = nullptr;  // recorded after the transfers
  };

  // Connects: rank 0 tells all where to meet. Returns true once this rank knows and has begun.
  bool connect() {
    if (comm_) return true;
    if (!meeting_) {
      std::vector<Transfer> sends, receives;
      if (rank() == 0) {
        nccl_.require(nccl_->GetUniqueId(&id_), nullptr, "beginning");
        for (int r = 1; r < size(); ++r) sends.push_back({r, &id_, sizeof id_});
      } else {
        receives.push_back({0, &id_, sizeof id_});
      }
      meeting_ = host_.start(sends, receives);
    }
    if (!meeting_->done()) return false;
    meeting_.reset();
    runtime::of(device_.type).select(device_.index);
    nccl::Config config;
    nccl_.require(nccl_->CommInitRankConfig(&comm_, size(), id_, rank(), &config), nullptr,
                  "connecting GPUs");
    return true;
  }
  // Returns true once NCCL has completed the call. Throws Error if it failed.
  bool is_idle(const char* what) const {
    nccl::Result state = nccl::Success;
    nccl_.require(nccl_->CommGetAsyncError(comm_, &state), comm_, what);
    nccl_.require(state, comm_, what);
    return state == nccl::Success;
  }

  const Nccl nccl_;
  Engine& host_;
  const Device device_;
  nccl::UniqueId id_ = {};
  std::unique_ptr<Request> meeting_;
  nccl::Comm comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Engine> open_nccl(Engine& host, Device device) {
  check(!device.is_host(), "the engine nccl connects GPUs, but this rank computes on {}", device);
  return std::make_unique<NcclEngine>(host, device);
}

}  // namespace mixtape::dist
