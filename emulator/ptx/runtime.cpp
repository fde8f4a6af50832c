// The functions of the CUDA runtime that programs call, for devices that interpret PTX. Whatever a
// GPU would reject is printed, and makes the program fail.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

#include "emulator/ptx/block.h"
#include "emulator/ptx/memory.h"
#include "emulator/ptx/runtime.h"

namespace mixtape::ptx {
namespace {

using WallClock = std::chrono::steady_clock;

struct Point {
  Stream* stream = nullptr;
  std::atomic<bool> passed{false};
  WallClock::time_point when = {};
};
struct Event {
  int device;
  bool timed;
  std::shared_ptr<Point> point = {};
};
std::set<Stream*>& streams() {
  static auto* const all = new std::set<Stream*>;
  return *all;
}
std::set<Event*>& events() {
  static auto* const all = new std::set<Event*>;
  return *all;
}
void pass(Point& point) {
  while (!point.passed) point.stream->do_next();
}

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int captures = 0;

Event* known(cudaEvent_t e) {
  auto* const event = reinterpret_cast<Event*>(e);
  return events().contains(event) ? event : nullptr;
}

std::atomic<int> faults{0};

// At the end of the program.
struct Report {
  ~Report() {
    report_kernels();
    if (faults > 0) {
      std::fprintf(stderr, "[ptx] %d faults\n", int(faults));
      std::fflush(nullptr);
      _exit(97);
    }
  }
} report;

}  // namespace

std::atomic<bool> broken{false};
thread_local int current_device = 0;

int capability(int device) {
  static const int set = setting("MIXTAPE_PTX_ARCH", 0);
  return set ? set : device == 1 ? 90 : 80;
}
size_t most_shared(int device) {
  static const int set = setting("MIXTAPE_PTX_SHARED", 0);
  return size_t(set ? set : capability(device) >= 90 ? 227 : 99) << 10;
}

cudaError_t give(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}
cudaError_t refuse(cudaError_t code, const std::string& what) {
  complain(what);
  return give(code);
}
bool is_refused(const char* call, const Stream* stream) {
  const bool bad = stream ? stream->captured != nullptr
                          : captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed;
  if (bad) refuse(cudaErrorStreamCaptureUnsupported, std::string(call) + " during a capture");
  return bad;
}
cudaError_t done() {
  if (!broken.exchange(false)) return cudaSuccess;
  return give(cudaErrorIllegalAddress);
}
Stream* known(cudaStream_t s) {
  auto* const stream = reinterpret_cast<Stream*>(s);
  return streams().contains(stream) ? stream : nullptr;
}

void complain(const std::string& what) {
  std::fprintf(stderr, "[ptx] %s\n", what.c_str());
  ++faults;
}

}  // namespace mixtape::ptx

using namespace mixtape::ptx;

extern "C" {

// The hooks by which the library's allocator tells AddressSanitizer which part of a segment is
// accessible. A block begins at the address; the rest of an earlier, larger block there ends.
void __asan_poison_memory_region(const volatile void* block, size_t bytes) {
  const std::lock_guard locked(lock);
  const auto begin = reinterpret_cast<uint64_t>(block);
  const int device = device_of(begin);
  if (device >= 0) forbid(memories()[size_t(device)], begin, begin + bytes);
}
void __asan_unpoison_memory_region(const volatile void* block, size_t bytes) {
  const std::lock_guard locked(lock);
  const auto begin = reinterpret_cast<uint64_t>(block);
  const int device = device_of(begin);
  if (device < 0 || bytes == 0) return;
  Memory& m = memories()[size_t(device)];
  if (late || captures > 0) {  // queued or captured work may use other blocks that were here
    uint64_t from = begin, end = begin + bytes;
    const auto after = m.allowed.upper_bound(begin);
    if (after != m.allowed.begin() && std::prev(after)->second >= begin)
      from = std::prev(after)->first;
    for (auto at = m.allowed.lower_bound(from); at != m.allowed.end() && at->first <= end;
         at = m.allowed.erase(at))
      end = std::max(end, at->second);
    m.allowed[from] = end;
    return;
  }
  m.allowed.erase(begin);
  forbid(m, begin, begin + bytes);
  m.allowed[begin] = begin + bytes;
  std::memset(contents(begin), 0xff, bytes);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return devices ? cudaSuccess : give(cudaErrorNoDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device < 0 || device >= devices) return give(cudaErrorInvalidDevice);
  *p = {};
  std::snprintf(p->name, sizeof p->name, "an interpreter of PTX");
  p->major = capability(device) / 10;
  p->minor = capability(device) % 10;
  p->multiProcessorCount = setting("MIXTAPE_PTX_PROCESSORS", 2);
  p->totalGlobalMem = device_bytes;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices)
    return refuse(cudaErrorInvalidDevice, "there is no device " + std::to_string(device));
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t code) {
  return code == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "an error";
}
const char* cudaGetErrorName(cudaError_t code) {
  return code == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaError";
}

cudaError_t cudaMalloc(void** to, size_t bytes) {
  const std::lock_guard locked(lock);
  if (is_refused("cudaMalloc")) return last_error;
  *to = bytes == 0 ? nullptr : allocate(bytes, current_device);
  return *to || bytes == 0 ? done() : give(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* block) {
  const std::lock_guard locked(lock);
  if (is_refused("cudaFree")) return last_error;
  if (!block) return cudaSuccess;
  for (Stream* s : streams()) s->catch_up();
  const auto begin = reinterpret_cast<uint64_t>(block);
  const int device = device_of(begin);
  if (device < 0 || !memories()[size_t(device)].blocks.contains(begin))
    return refuse(cudaErrorInvalidValue, "cudaFree of what cudaMalloc did not give");
  Memory& m = memories()[size_t(device)];
  const size_t bytes = m.blocks[begin];
  m.blocks.erase(begin);
  m.in_use -= bytes;
  forbid(m, begin, begin + bytes);
  madvise(contents(begin) + (4096 - begin % 4096) % 4096, bytes / 4096 * 4096, MADV_DONTNEED);
  return done();
}
cudaError_t cudaMallocHost(void** to, size_t bytes) {
  const std::lock_guard locked(lock);
  if (is_refused("cudaMallocHost")) return last_error;
  *to = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*to, 0xff, bytes);
  pinned()[reinterpret_cast<uint64_t>(*to)] = bytes;
  return done();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned) {
  const std::lock_guard locked(lock);
  auto* const stream = new Stream{current_device};
  streams().insert(stream);
  *to = reinterpret_cast<cudaStream_t>(stream);
  return done();
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (stream && is_refused("cudaStreamSynchronize", stream)) return last_error;
  if (!stream) return refuse(cudaErrorInvalidResourceHandle, "waiting for no stream");
  stream->catch_up();
  return done();
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard locked(lock);
  if (is_refused("cudaDeviceSynchronize")) return last_error;
  for (Stream* s : streams()) s->catch_up();
  return done();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (stream && is_refused("cudaStreamWaitEvent", stream)) return last_error;
  Event* const event = known(e);
  if (!stream || !event)
    return refuse(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent without stream or event");
  if (event->point) stream->add([point = event->point] { pass(*point); });
  return done();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned flags) {
  const std::lock_guard locked(lock);
  auto* const event = new Event{current_device, (flags & cudaEventDisableTiming) == 0};
  events().insert(event);
  *to = reinterpret_cast<cudaEvent_t>(event);
  return done();
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  const std::lock_guard locked(lock);
  Event* const event = known(e);
  if (!event) return refuse(cudaErrorInvalidResourceHandle, "destroying no event");
  events().erase(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (stream && is_refused("cudaEventRecord", stream)) return last_error;
  Event* const event = known(e);
  if (!stream || !event || event->device != stream->device)
    return refuse(cudaErrorInvalidResourceHandle,
                  "an event recorded on another device, or nowhere");
  event->point = std::make_shared<Point>();
  event->point->stream = stream;
  stream->add([point = event->point] {
    point->when = WallClock::now();
    point->passed = true;
  });
  return done();
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  const std::lock_guard locked(lock);
  if (is_refused("cudaEventQuery")) return last_error;
  Event* const event = known(e);
  if (!event) return refuse(cudaErrorInvalidResourceHandle, "asking for no event");
  if (event->device != current_device)  // opens a context on the current one
    return refuse(cudaErrorInvalidResourceHandle, "asking for an event of another device");
  return !event->point || event->point->passed ? done() : give(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  const std::lock_guard locked(lock);
  if (is_refused("cudaEventSynchronize")) return last_error;
  Event* const event = known(e);
  if (!event) return refuse(cudaErrorInvalidResourceHandle, "waiting for no event");
  if (event->device != current_device)  // opens a context on the current one
    return refuse(cudaErrorInvalidResourceHandle, "waiting for an event of another device");
  if (event->point) pass(*event->point);
  return done();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t last) {
  const std::lock_guard locked(lock);
  Event *const a = known(first), *const b = known(last);
  if (!a || !b || !a->timed || !b->timed || !a->point || !b->point || a->device != b->device)
    return refuse(cudaErrorInvalidResourceHandle, "events that keep no time, or were not recorded");
  *ms = std::chrono::duration<float, std::milli>(b->point->when - a->point->when).count();
  return done();
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (!stream) return refuse(cudaErrorInvalidResourceHandle, "a copy without stream");
  if (kind != cudaMemcpyDefault)
    return refuse(cudaErrorInvalidValue, "a kind of copy not known here");
  if (bytes == 0) return done();
  enum class MemoryKind { Device, Pinned, Pageable, Nowhere };
  const auto kind_of = [&](const void* p) {
    const auto address = reinterpret_cast<uint64_t>(p);
    const int owner = device_of(address);
    const Range r = find_memory(address, owner);
    if (owner >= 0)
      return address >= r.begin && address + bytes <= r.end ? MemoryKind::Device
                                                            : MemoryKind::Nowhere;
    if (r.host && address + bytes > r.end) return MemoryKind::Nowhere;
    return r.host ? MemoryKind::Pinned : MemoryKind::Pageable;
  };
  const MemoryKind there = kind_of(to), here = kind_of(from);
  if (there == MemoryKind::Nowhere || here == MemoryKind::Nowhere) {
    const void* const bad = there == MemoryKind::Nowhere ? to : from;
    return refuse(cudaErrorInvalidValue, "a copy of " + std::to_string(bytes) + " bytes: " +
                                             describe_memory(reinterpret_cast<uint64_t>(bad)));
  }
  char* const target = contents(reinterpret_cast<uint64_t>(to));
  const char* const source = contents(reinterpret_cast<uint64_t>(from));
  if ((here == MemoryKind::Pageable || there == MemoryKind::Pageable) &&
      is_refused("a copy of pageable memory", stream))
    return last_error;
  if (here == MemoryKind::Pageable) {  // read before the call returns
    stream->add([target, copy = std::string(source, bytes)] {
      std::memcpy(target, copy.data(), copy.size());
    });
  } else {
    stream->add([=] { std::memcpy(target, source, bytes); });
  }
  if (there == MemoryKind::Pageable) stream->catch_up();
  return done();
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (!stream || stream->captured)
    return refuse(cudaErrorInvalidResourceHandle, "a capture of no stream, or inside another");
  stream->captured = std::make_shared<Work>();
  ++captures;
  return done();
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* to) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (!stream || !stream->captured)
    return refuse(cudaErrorInvalidResourceHandle, "the end of no capture");
  --captures;
  *to = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Work>(std::move(stream->captured)));
  return done();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  *to = reinterpret_cast<cudaGraphExec_t>(
      new std::shared_ptr<Work>(*reinterpret_cast<std::shared_ptr<Work>*>(graph)));
  return done();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Work>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<std::shared_ptr<Work>*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
  const std::lock_guard locked(lock);
  Stream* const stream = known(s);
  if (!stream || is_refused("cudaGraphLaunch", stream)) return give(cudaErrorInvalidResourceHandle);
  stream->add([work = *reinterpret_cast<std::shared_ptr<Work>*>(graph)] {
    for (const auto& each : *work) each();
  });
  return done();
}

}  // extern "C"
