// The functions of the CUDA runtime that register and launch kernels, for devices that interpret
// PTX.
#include <cuda_runtime_api.h>
#include <errno.h>  // program_invocation_short_name
#include <unistd.h>

#include <fstream>
#include <mutex>

#include "emulator/ptx/block.h"
#include "emulator/ptx/memory.h"
#include "emulator/ptx/runtime.h"

namespace mixtape::ptx {
namespace {

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

}  // namespace

void report_kernels() {
  if (const char* const folder = std::getenv("MIXTAPE_PTX_REPORT")) {
    std::ofstream file(std::string(folder) + "/" + program_invocation_short_name + "-" +
                       std::to_string(getpid()));
    for (const auto& [pointer, f] : functions())
      file << f.name << ' ' << f.launches << ' ' << f.most_threads << ' ' << f.most_shared << ' '
           << f.instructions << '\n';
  }
}

}  // namespace mixtape::ptx

using namespace mixtape::ptx;

extern "C" {

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
