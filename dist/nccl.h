#pragma once
// The functions and types of NCCL that the library uses, from libnccl.so.2, 2.19 or later, which is
// opened at run time. NCCL's header is not needed.

#include <cstddef>

namespace mixtape::dist::nccl {

enum Result : int { Success = 0, InProgress = 7 };  // others are errors
enum DataType : int { Uint8 = 1 };
struct Communicator;
using Comm = Communicator*;
using Stream = void*;  // cudaStream_t
struct UniqueId {
  char bytes[128];
};
// As in NCCL 2.19. Later versions recognise it by its size and version.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef, version = least_version;
  int blocking = 0, cluster_size = undefined, least_blocks = undefined, most_blocks = undefined;
  const char* network = nullptr;
  int split_share = undefined;

  static constexpr unsigned least_version = 21900;
  static constexpr int undefined = -0x7fffffff - 1;
};

// The functions, by name.
#define MIXTAPE_NCCL_FUNCTIONS(F)                                                       \
  F(GetVersion, (int* version))                                                         \
  F(GetUniqueId, (UniqueId * id))                                                       \
  F(CommInitRankConfig, (Comm * comm, int size, UniqueId id, int rank, Config* config)) \
  F(CommGetAsyncError, (Comm comm, Result * state))                                     \
  F(CommFinalize, (Comm comm))                                                          \
  F(CommDestroy, (Comm comm))                                                           \
  F(CommAbort, (Comm comm))                                                             \
  F(GroupStart, ())                                                                     \
  F(GroupEnd, ())                                                                       \
  F(Send, (const void* data, size_t count, DataType type, int rank, Comm comm, Stream)) \
  F(Recv, (void* data, size_t count, DataType type, int rank, Comm comm, Stream))

struct Functions {
#define MIXTAPE_NCCL_MEMBER(name, parameters) Result(*name) parameters = nullptr;
  MIXTAPE_NCCL_FUNCTIONS(MIXTAPE_NCCL_MEMBER)
#undef MIXTAPE_NCCL_MEMBER
  const char* (*GetErrorString)(Result code) = nullptr;
  const char* (*GetLastError)(Comm comm) = nullptr;
};

}  // namespace mixtape::dist::nccl
