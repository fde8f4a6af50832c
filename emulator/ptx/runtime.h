#pragma once
// The state of the runtime that its calls share: devices, streams and errors.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mixtape::ptx {

// Kernel tests pass host memory, and no stream.
inline const bool host_memory = std::getenv("MIXTAPE_PTX_HOST") != nullptr;
inline const bool late = std::getenv("MIXTAPE_LATE") != nullptr;

// The second device is a Hopper, and runs what was compiled for 90a.
int capability(int device);
// 8.6 and 8.9 have the least shared memory of all devices that run sm_80 code.
size_t most_shared(int device);

extern std::atomic<bool> broken;  // the next call that waits fails
extern thread_local int current_device;

using Work = std::vector<std::function<void()>>;
struct Stream {
  int device;
  std::deque<std::function<void()>> work = {};
  std::shared_ptr<Work> captured = nullptr;  // during a capture

  void add(std::function<void()> f) {
    if (captured)
      captured->push_back(std::move(f));
    else if (late)
      work.push_back(std::move(f));
    else
      f();
  }
  void do_next() {
    const auto next = std::move(work.front());
    work.pop_front();
    next();
  }
  void catch_up() {
    while (!work.empty()) do_next();
  }
};
Stream* known(cudaStream_t s);  // null if there is no such stream

cudaError_t give(cudaError_t code);
cudaError_t refuse(cudaError_t code, const std::string& what);
// True, and an error, for a call that the stream, if any, or this thread must not make in a
// capture.
bool is_refused(const char* call, const Stream* stream = nullptr);
// The result of calls that report earlier errors.
cudaError_t done();

// Writes which kernels ran to a file, if MIXTAPE_PTX_REPORT=FOLDER is set.
void report_kernels();

}  // namespace mixtape::ptx
