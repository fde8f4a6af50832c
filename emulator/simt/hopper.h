#pragma once
// The part of the emulator that gpu_hopper.cuh needs: clusters of blocks, barriers that count
// bytes, boxes, products of groups of warps.

#include "emulator/simt/simt.h"

#define __grid_constant__

namespace mixtape::simt {

struct alignas(8) Barrier {
  uint64_t state;  // not used: the emulator keeps it elsewhere; kernels may not touch these bytes
};

// A tensor for the copy engine, in boxes of 128 bytes by `rows`, whose chunks of 16 bytes are
// swizzled.
struct TensorMap {
  const void* data;
  int element_bytes;
  bool tf32;                   // rounds on the way to shared memory
  int64_t size[4], stride[4];  // in elements
  int rows;
};
struct BoxPlace {
  int at[4];
};
// Throws Error if a device would refuse the map.
void check_map(const TensorMap& map);

void barrier_init(const void* b, int arrivals);
void fence_barrier_init();
void barrier_expect(const void* b, int bytes);
void barrier_arrive(const void* b);
void barrier_arrive(const void* b, int rank, SourceLocation where);
void barrier_wait(const void* b, uint32_t parity, SourceLocation where);

// blocks: a bit for each rank.
void load_box(const void* to, const TensorMap& from, const void* b, const BoxPlace& at,
              unsigned blocks, SourceLocation where);
// The bytes that load_box read so far, on all threads: a box for several blocks counts once.
int64_t bytes_of_boxes();
void store_box(const TensorMap& to, const void* from, const BoxPlace& at, SourceLocation where);
void store_commit();
void store_wait(int pending);
void fence_async();

int cluster_rank();
void cluster_arrive(SourceLocation where);
void cluster_wait(SourceLocation where);

// d = a b^T (+ d if add), as of multiply_group(). a and b are descriptors of wgmma.
struct Product {
  enum Type { Half, BFloat16, Tf32 } type;
  float* d;
  int n;
  uint64_t a, b;
  bool transposed_a, transposed_b, add;
};
// The descriptor of an operand that begins there, as of make_operand().
uint64_t operand(const void* first, bool transposed, int lead);
void multiply_group(const Product& product, SourceLocation where);
void group_fence();
void group_commit();
void group_wait(int pending, SourceLocation where);

void sync_threads(int id, int count, SourceLocation where);
void set_registers(int count, bool raise, SourceLocation where);

}  // namespace mixtape::simt
