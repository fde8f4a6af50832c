// The CUDA runtime. Errors of the driver become Errors; without a driver there is no device.
#include "core/runtime.h"

#include <fmt/format.h>

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/kernel_watch.h"
#include "core/warn.h"

namespace mixtape::runtime {
namespace {

void require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // clears the error, unless it is sticky
  fail("CUDA: {}: {} ({}){}", what, cudaGetErrorString(code), cudaGetErrorName(code),
       last_launches(code));
}

struct Devices {
  int count = 0;
  std::string reason;
  std::array<Properties, max_devices> properties;

  Devices() {
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
      count = 0;
      cudaGetLastError();
      reason = std::string("no CUDA device: ") + cudaGetErrorString(code);
      // Without a warning, Device::best() would be the CPU for no apparent reason.
      if (code != cudaErrorNoDevice && access("/dev/nvidia0", F_OK) == 0)
        warn(driver_warning(reason, CUDART_VERSION));
    } else if (count == 0) {
      reason = "no CUDA device";
    }
    count = std::min(count, max_devices);
    for (int i = 0; i < count; ++i) {
      cudaDeviceProp p{};
      require(cudaGetDeviceProperties(&p, i), "reading a device's properties");
      if (p.major < 8) {  // those after it are left out, too: CUDA lists the fastest first
        count = i;
        reason = fmt::format("no CUDA device of compute capability 8.0: {} has {}.{}", p.name,
                             p.major, p.minor);
        break;
      }
      properties[size_t(i)] = {p.name, p.major, p.minor, p.multiProcessorCount,
                               int64_t(p.totalGlobalMem)};
    }
  }
  static const Devices& all() {
    static const Devices devices;
    return devices;
  }
};

cudaStream_t stream_of(Handle h) { return static_cast<cudaStream_t>(h); }
cudaEvent_t event_of(Mark m) { return static_cast<cudaEvent_t>(m); }

class Cuda final : public Runtime {
 public:
  void select(int device) const override { require(cudaSetDevice(device), "selecting a device"); }

  int device_count() const override { return Devices::all().count; }
  std::string no_device_reason() const override { return Devices::all().reason; }
  const Properties& properties(int device) const override {
    check(device < device_count(), "there is no device {}", device);
    return Devices::all().properties[size_t(device)];
  }

  void* allocate(size_t bytes, int device) const override {
    select(device);
    void* block = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // allows this during a capture
    cudaThreadExchangeStreamCaptureMode(&mode);
    const cudaError_t code = cudaMalloc(&block, bytes);
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    require(code, "allocating");  // an error of an earlier kernel
    return block;
  }
  void release(void* block, int device) const noexcept override {
    // (An error here comes from an earlier kernel; the next call that may throw reports it.)
    // Restores the caller's device, on which it may be about to launch.
    int current = device;
    cudaGetDevice(&current);
    cudaSetDevice(device);
    cudaFree(block);
    cudaSetDevice(current);
  }
  void* allocate_pinned(size_t bytes) const noexcept override {
    void* block = nullptr;
    if (cudaMallocHost(&block, bytes) == cudaSuccess) return block;
    cudaGetLastError();
    return nullptr;
  }

  Handle create_stream(int device) const override {
    select(device);
    cudaStream_t stream = nullptr;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    return stream;
  }
  void wait(Handle waiting, int device, Handle other, int other_device) const override {
    const Mark mark = create_mark(other_device, false);
    record(mark, other, other_device);
    select(device);
    const cudaError_t code = cudaStreamWaitEvent(stream_of(waiting), event_of(mark), 0);
    destroy_mark(mark);  // the driver keeps the event until the wait is over
    require(code, "ordering two streams");
  }
  void synchronize(Handle stream, int device) const override {
    select(device);
    require(cudaStreamSynchronize(stream_of(stream)), "waiting for a stream");
  }
  void finish(int device) const noexcept override {  // (errors: as in release())
    cudaSetDevice(device);
    cudaDeviceSynchronize();
  }
  void copy(void* to, const void* from, size_t bytes, Handle stream, int device) const override {
    select(device);
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "copying");
  }

  Mark create_mark(int device, bool timed) const override {
    select(device);
    cudaEvent_t event = nullptr;
    require(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming),
            "creating an event");
    return event;
  }
  void destroy_mark(Mark mark) const noexcept override { cudaEventDestroy(event_of(mark)); }
  void record(Mark mark, Handle stream, int device) const override {
    select(device);
    require(cudaEventRecord(event_of(mark), stream_of(stream)), "recording an event");
  }
  bool has_passed(Mark mark, int device) const override {
    select(device);  // else a new thread would open the first device
    const cudaError_t code = cudaEventQuery(event_of(mark));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    require(code, "asking for an event");
    return true;
  }
  void wait_for(Mark mark, int device) const override {
    select(device);
    require(cudaEventSynchronize(event_of(mark)), "waiting for an event");
  }
  double milliseconds_between(Mark first, Mark second, int device) const override {
    wait_for(first, device);
    wait_for(second, device);
    float ms = 0;
    require(cudaEventElapsedTime(&ms, event_of(first), event_of(second)), "timing");
    return ms;
  }

  void begin_capture(Handle stream, int device) const override {
    select(device);
    require(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
            "beginning a capture");
  }
  Captured end_capture(Handle stream, int device) const override {
    select(device);
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(stream_of(stream), &graph), "ending a capture");
    cudaGraphExec_t made = nullptr;
    const cudaError_t code = cudaGraphInstantiate(&made, graph, 0);
    cudaGraphDestroy(graph);
    require(code, "making a graph of what was captured");
    return made;
  }
  void launch(Captured work, Handle stream, int device) const override {
    select(device);
    require(cudaGraphLaunch(static_cast<cudaGraphExec_t>(work), stream_of(stream)),
            "launching a graph");
  }
  void destroy(Captured work) const noexcept override {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(work));
  }

  void begin_range(const char* name) const override { nvtxRangePushA(name); }
  void end_range() const override { nvtxRangePop(); }
};

}  // namespace

const Runtime& cuda() {
  static const Cuda runtime;
  return runtime;
}

}  // namespace mixtape::runtime

mixtape::internal::KernelWatch* const mixtape::internal::kernel_watch = nullptr;
