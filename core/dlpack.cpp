// An exported struct keeps its tensor alive, an imported tensor's storage keeps the struct alive.
#include "core/dlpack.h"

#include <cstring>
#include <span>

#include "core/check.h"
#include "core/dlpack_abi.h"
#include "core/effects.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/stream.h"

namespace mixtape {
using namespace internal;
namespace {

constexpr uint32_t major_version = 1;

DLDeviceType type_of(DeviceType t) {
  constexpr DLDeviceType types[device_types] = {kDLCPU, kDLCUDA, kDLCPU};
  return types[size_t(t)];
}

DLDataType type_of(DType t) {
  check(!is_f8(t), "{} cannot be exchanged (convert it)", t);
  const DLDataTypeCode code = t == boolean                      ? kDLBool
                              : t == bf16                       ? kDLBfloat
                              : t == u8 || t == u16 || t == u32 ? kDLUInt
                              : is_float(t)                     ? kDLFloat
                                                                : kDLInt;
  return {code, static_cast<uint8_t>(8 * size_of(t)), 1};
}

DType dtype_from(DLDataType type) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean, i8, i16, u16, u32}) {
    const DLDataType known = type_of(t);
    if (known.code == type.code && known.bits == type.bits && known.lanes == type.lanes) return t;
  }
  fail("unsupported element type: DLPack code {}, {} bits, {} lanes", type.code, type.bits,
       type.lanes);
}

// An export in one block: the tensor, the arrays that the struct points to, and the struct.
template <class Managed>
struct Exported {
  Tensor tensor;
  Layout layout;
  Managed managed = {};
};

template <class Managed>
Managed* leave(const Tensor& x) {
  const Scope scope("to_dlpack");
  check(!x.requires_grad(), "{} of {} requires a gradient: detach() it", x.shape(), x.dtype());
  check(!x.device().is_meta(), "a tensor on {} has no memory that could be shared", x.device());
  if (!x.device().is_host()) {  // the receiver does not know this thread's stream
    x.storage()->touch();
    synchronize(x.device());
  }
  ++effects.reads;
  // A separate handle, since set_data() may change the storage of the others.
  std::unique_ptr<Exported<Managed>> out(new Exported<Managed>{x.detach(), x.layout()});
  out->managed.dl_tensor = {
      .data = x.numel() > 0 ? x.raw() : nullptr,
      .device = {type_of(x.device().type), x.device().index},
      .ndim = x.rank(),
      .dtype = type_of(x.dtype()),
      .shape = out->layout.shape.dim,
      .strides = out->layout.strides.dim,
      .byte_offset = 0,
  };
  out->managed.manager_ctx = out.get();
  out->managed.deleter = [](Managed* m) {
    auto* const mine = static_cast<Exported<Managed>*>(m->manager_ctx);
    const Device device = mine->tensor.device();
    if (!device.is_host()) {  // the receiver's streams are unknown here
      count_synchronization();
      runtime::of(device.type).finish(device.index);
    }
    delete mine;
  };
  return &out.release()->managed;
}

template <class Managed>
std::shared_ptr<Managed> own(Managed* from) {
  check(from != nullptr, "the struct is a null pointer");
  return {from, [](Managed* m) {
            if (m->deleter) m->deleter(m);
          }};
}

Tensor enter(const DLTensor& from, const std::shared_ptr<void>& owner, bool read_only) {
  const auto [where, number] = from.device;
  check(where == kDLCPU, "memory must be on the CPU, got DLPack device type {}, number {}",
        static_cast<int>(where), number);
  const DType dtype = dtype_from(from.dtype);
  check(from.ndim >= 0, "ndim must be >= 0, got {}", from.ndim);
  const auto rank = static_cast<size_t>(from.ndim);
  Layout layout(Shape(std::span(from.shape, rank)));
  if (from.strides) layout.strides = Shape(std::span(from.strides, rank));
  char* const data = from.data ? static_cast<char*>(from.data) + from.byte_offset : nullptr;
  const Tensor x =
      detail::from_memory(std::shared_ptr<void>(owner, data), layout, dtype, Device::cpu());
  if (!read_only || x.numel() == 0) return x;
  // A copy, in the same layout.
  const auto [first, last] = extent(layout);
  const Tensor copy({last - first + 1}, dtype, Device::cpu());
  std::memcpy(copy.raw(), x.storage()->data(), x.storage()->bytes());
  return copy.with_layout(layout.at_offset(-first));
}

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& x) { return leave<DLManagedTensor>(x); }

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& x) {
  DLManagedTensorVersioned* const out = leave<DLManagedTensorVersioned>(x);
  out->version = {major_version, 0};
  return out;
}

Tensor from_dlpack(DLManagedTensor* from) {
  const Scope scope("from_dlpack");
  const auto owner = own(from);
  return enter(from->dl_tensor, owner, false);
}

Tensor from_dlpack(DLManagedTensorVersioned* from) {
  const Scope scope("from_dlpack");
  const auto owner = own(from);
  check(from->version.major == major_version, "DLPack version must be {2}.x, got {0}.{1}",
        from->version.major, from->version.minor, major_version);
  return enter(from->dl_tensor, owner, (from->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0);
}

}  // namespace mixtape
