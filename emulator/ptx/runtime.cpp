// The functions of the CUDA runtime that programs call, for devices that interpret PTX. Whatever a
// GPU would reject is printed, and makes the program fail.
#include <cuda_runtime_api.h>
#include <errno.h>  // program_invocation_short_name
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "emulator/ptx/block.h"
#include "emulator/ptx/memory.h"

namespace mixtape::ptx {
namespace {

using WallClock = std::chrono::steady_clock;

// Kernel tests pass host memory, and no stream.
const bool host_memory = std::getenv("MIXTAPE_PTX_HOST") != nullptr;
const bool late = std::getenv("MIXTAPE_LATE") != nullptr;
// The second device is a Hopper, and runs what was compiled for 90a.
int capability(int device) {
  static const int set = setting("MIXTAPE_PTX_ARCH", 0);
  return set ? set : device == 1 ? 90 : 80;
}
// 8.6 and 8.9 have the least shared memory of all devices that run sm_80 code.
size_t most_shared(int device) {
  static const int set = setting("MIXTAPE_PTX_SHARED", 0);
  return size_t(set ? set : capability(device) >= 90 ? 227 : 99) << 10;
}

// --- faults ---

std::atomic<int> faults{0};
std::atomic<bool> broken{false};  // the next call that waits fails

// --- streams ---

struct Stream;
struct Point {
  Stream* stream = nullptr;
  std::atomic<bool> passed{false};
  WallClock::time_point when = {};
};
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

thread_local int current_device = 0, captures = 0;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t give(cudaError_t code) {
  if (code != cudaSuccess) last_error = code;
  return code;
}
cudaError_t refuse(cudaError_t code, const std::string& what) {
  complain(what);
  return give(code);
}
// True, and an error, for a call that the stream, if any, or this thread must not make in a
// capture.
bool is_refused(const char* call, const Stream* stream = nullptr) {
  const bool bad = stream ? stream->captured != nullptr
                          : captures > 0 && capture_mode != cudaStreamCaptureModeRelaxed;
  if (bad) refuse(cudaErrorStreamCaptureUnsupported, std::string(call) + " during a capture");
  return bad;
}
// The result of calls that report earlier errors.
cudaError_t done() {
  if (!broken.exchange(false)) return cudaSuccess;
  return give(cudaErrorIllegalAddress);
}
Stream* known(cudaStream_t s) {
  auto* const stream = reinterpret_cast<Stream*>(s);
  return streams().contains(stream) ? stream : nullptr;
}
Event* known(cudaEvent_t e) {
  auto* const event = reinterpret_cast<Event*>(e);
  return events().contains(event) ? event : nullptr;
}

// --- kernels ---

struct Function {
  struct Binary* binary;
  std::string name;
  size_t shared_allowed = 48 << 10;
  uint64_t launches = 0, instructions = 0;
  unsigned most_threads = 0;
  size_t most_shared = 0;
};
std::map<const void*, Function>& functions() {
  static auto* const all = new std::map<const void*, Function>;
  return *all;
}

// The PTX in a fat binary for the newest device that is not newer than this: a header, then parts
// with a header each.
std::string text_of(const char* fat, int capability) {
  struct Header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
  } header;
  struct Part {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_bytes;
    uint64_t flags, zero, plain_bytes;
  } part;
  std::memcpy(&header, fat, sizeof header);
  if (header.magic != 0xba55ed50) return {};
  std::string best;
  uint32_t newest = 0;
  const char* at = fat + header.header_bytes;
  for (const char* const end = at + header.bytes; at < end; at += part.header_bytes + part.bytes) {
    std::memcpy(&part, at, sizeof part);
    if (part.kind != 1 || part.plain_bytes != 0 || part.arch > uint32_t(capability)) continue;
    if (part.arch < newest) continue;
    newest = part.arch;
    best.assign(at + part.header_bytes, part.bytes);
  }
  return best;
}

struct Binary {
  const char* fat;
  std::map<int, std::unique_ptr<Module>> modules = {};  // by compute capability

  Module& get(int capability) {
    auto& module = modules[capability];
    if (!module) {
      std::string text = text_of(fat, capability);
      if (text.empty())
        throw Fault("a binary without plain PTX for compute capability " +
                    std::to_string(capability));
      module = std::make_unique<Module>(std::move(text), [](size_t bytes, size_t alignment) {
        return allocate(bytes, devices, std::max<size_t>(alignment, 256));
      });
    }
    return *module;
  }
};

// A report of the kernels that ran, if MIXTAPE_PTX_REPORT=FOLDER is set.
struct Report {
  ~Report() {
    if (const char* const folder = std::getenv("MIXTAPE_PTX_REPORT")) {
      std::ofstream file(std::string(folder) + "/" + program_invocation_short_name + "-" +
                         std::to_string(getpid()));
      for (const auto& [pointer, f] : functions())
        file << f.name << ' ' << f.launches << ' ' << f.most_threads << ' ' << f.most_shared << ' '
             << f.instructions << '\n';
    }
    if (faults > 0) {
      std::fprintf(stderr, "[ptx] %d faults\n", int(faults));
      std::fflush(nullptr);
      _exit(97);
    }
  }
} report;

}  // namespace

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

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const char* data;
    void* rest;
  };
  return reinterpret_cast<void**>(new Binary{static_cast<Wrapper*>(wrapper)->data});
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  functions()[host] = {reinterpret_cast<Binary*>(binary), name};
}
void __cudaRegisterVar(void**, char*, char*, const char* name, int, size_t, int, int) {
  complain(std::string("__cudaRegisterVar is not there: ") + name);
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, CUstream_st*) { std::abort(); }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { std::abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  std::abort();
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

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  const std::lock_guard locked(lock);
  const auto f = functions().find(function);
  if (f == functions().end()) return refuse(cudaErrorInvalidDeviceFunction, "no such kernel");
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      size_t(value) > most_shared(current_device))
    return refuse(cudaErrorInvalidValue,
                  f->second.name + ": attribute cannot be " + std::to_string(value));
  f->second.shared_allowed = size_t(value);
  return cudaSuccess;
}

static cudaError_t launch(const void* function, dim3 blocks, dim3 threads, void** arguments,
                          size_t shared_bytes, cudaStream_t s, unsigned cluster) {
  const std::lock_guard locked(lock);
  const auto found = functions().find(function);
  if (found == functions().end()) return refuse(cudaErrorInvalidDeviceFunction, "no such kernel");
  Function& f = found->second;
  static Stream now{host};
  Stream* const stream = host_memory && !s ? &now : known(s);
  if (!stream || (stream != &now && stream->device != current_device))
    return refuse(cudaErrorInvalidResourceHandle, f.name + ": no stream of the current device");
  const Kernel* kernel = nullptr;
  try {
    kernel = &f.binary->get(capability(current_device)).kernel(f.name);
  } catch (const Fault& fault) {
    return refuse(cudaErrorInvalidDeviceFunction, fault.what());
  }
  const uint64_t count = uint64_t(threads.x) * threads.y * threads.z;
  const auto bad = [&](const std::string& what) {
    return refuse(cudaErrorInvalidConfiguration, f.name + ": " + what);
  };
  if (count == 0 || count > 1024 || count > uint64_t(kernel->most_threads) || threads.z > 64)
    return bad(std::to_string(count) + " threads of " + std::to_string(kernel->most_threads));
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.x > 0x7fffffff ||
      blocks.y > 65535 || blocks.z > 65535)
    return bad("a grid of " + std::to_string(blocks.x) + " x " + std::to_string(blocks.y) + " x " +
               std::to_string(blocks.z));
  if (cluster == 0 || cluster > 8 || blocks.x % cluster != 0 || (cluster > 1 && count % 128 != 0) ||
      (cluster > 1 && capability(current_device) < 90))
    return bad("clusters of " + std::to_string(cluster) + " of " + std::to_string(blocks.x) +
               " blocks of " + std::to_string(count) + " threads");
  if (watch_races && cluster > 1 && cluster * count > uint64_t{Clock::warps} * lanes)
    return bad("races are watched among at most 32 warps of a cluster");
  if (shared_bytes > f.shared_allowed) return bad("more shared memory than was asked for");
  if (size_t(kernel->shared_bytes) + shared_bytes > most_shared(current_device))
    return bad("too much shared memory");
  if (kernel->parameter_bytes > 4096) return bad("parameters of more than 4096 bytes");
  std::string parameters(size_t(kernel->parameter_bytes), '\0');
  for (size_t i = 0; i < kernel->parameters.size(); ++i) {
    const Parameter& p = kernel->parameters[i];
    std::memcpy(parameters.data() + p.offset, arguments[i], size_t(p.bytes));
  }
  ++f.launches;
  f.most_threads = std::max(f.most_threads, unsigned(count));
  f.most_shared = std::max(f.most_shared, shared_bytes);
  const Grid grid{{blocks.x, blocks.y, blocks.z},
                  {threads.x, threads.y, threads.z},
                  uint32_t(shared_bytes),
                  cluster};
  stream->add([=, &f, device = stream->device] {
    const uint64_t before = instructions;
    try {
      run(*kernel, grid, parameters.data(), device);
    } catch (const Fault& fault) {
      complain(fault.what());
      broken = true;
    }
    f.instructions += instructions - before;
  });
  return done();
}
cudaError_t cudaLaunchKernel(const void* function, dim3 blocks, dim3 threads, void** arguments,
                             size_t shared_bytes, cudaStream_t s) {
  return launch(function, blocks, threads, arguments, shared_bytes, s, 1);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    const auto [x, y, z] = a.val.clusterDim;
    if (a.id != cudaLaunchAttributeClusterDimension || y != 1 || z != 1)
      return refuse(cudaErrorInvalidValue, "a launch attribute not known here");
    cluster = x;
  }
  return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                config->stream, cluster);
}

}  // extern "C"
