// Reductions over any dimensions, in a fixed order. If a reduced dimension is dense, a warp or a
// block computes each result: its threads read neighbouring elements and join their sums by
// shuffles. If a kept dimension is dense, each thread computes one of neighbouring results. Few
// long results are cut into parts, which a second kernel joins in order. Sums in f64 (i64).

#include "kernels/cuda/elementwise/elementwise.cuh"
#include "kernels/cuda/thread_group.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// Type to join elements of type T in: terms and sums of f32 numbers may leave the range of f32.
// (Integers and bools of any size are read as i64.)
template <class Op, class T>
using sum_t =
    std::conditional_t<std::is_integral_v<T>, int64_t,
                       std::conditional_t<requires { typename Op::Wide; }, double, gpu::math_t<T>>>;

// A reduction is a map of elements, an associative join, and its identity.
struct Elements {
  MIXTAPE_HD static auto of(auto x) { return x; }
};
struct Magnitudes {
  MIXTAPE_HD static auto of(auto x) { return x < 0 ? -x : x; }
};
struct Squares {
  MIXTAPE_HD static auto of(auto x) { return x * x; }
};
struct Add {
  using Wide = double;
  template <class A>
  MIXTAPE_HD static A identity() {
    return A(0);
  }
  template <class A>
  MIXTAPE_HD static A join(A a, A b) {
    if constexpr (std::is_integral_v<A>)
      return A(uint64_t(a) + uint64_t(b));  // wraps around
    else
      return a + b;
  }
};
struct Multiply {
  using Wide = double;
  template <class A>
  MIXTAPE_HD static A identity() {
    return A(1);
  }
  template <class A>
  MIXTAPE_HD static A join(A a, A b) {
    if constexpr (std::is_integral_v<A>)
      return A(uint64_t(a) * uint64_t(b));
    else
      return a * b;
  }
};
struct Largest {  // NaN wins
  template <class A>
  MIXTAPE_HD static A identity() {
    using Limits = std::numeric_limits<A>;
    return Limits::has_infinity ? A(-Limits::infinity()) : Limits::lowest();
  }
  template <class A>
  MIXTAPE_HD static A join(A a, A b) {
    return a != a ? a : b != b ? b : a > b ? a : b;
  }
};
struct LargestOrZero : Largest {  // of magnitudes: the largest of none is 0
  template <class A>
  MIXTAPE_HD static A identity() {
    return A(0);
  }
};
struct Smallest {
  template <class A>
  MIXTAPE_HD static A identity() {
    using Limits = std::numeric_limits<A>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  template <class A>
  MIXTAPE_HD static A join(A a, A b) {
    return a != a ? a : b != b ? b : a < b ? a : b;
  }
};

// The last steps for a sum before it is rounded.
struct Finish {
  double divisor = 1;
  bool root = false;

  template <class A>
  MIXTAPE_HD A of(A sum) const {
    if constexpr (std::is_integral_v<A>)
      return sum;
    else
      return root ? A(sqrt(sum)) : divisor == 1 ? sum : A(sum / A(divisor));
  }
};

// The results, of any dtype that holds sums of type A.
struct Results {
  void* data;
  DType dtype;

  template <class A>
  MIXTAPE_HD void set(int64_t at, A sum) const {
    const auto put = [&]<class Out>() {
      if constexpr (std::is_integral_v<A>)
        static_cast<Out*>(data)[at] = convert_to<Out>(sum);
      else
        static_cast<Out*>(data)[at] = gpu::round_to<Out>(sum);
    };
    if constexpr (std::is_integral_v<A>) {
      if (dtype == boolean)
        put.template operator()<bool>();
      else
        visit_memory<Whole>(dtype, put);
    } else if (dtype == f64) {
      put.template operator()<double>();
    } else {
      visit_memory<float>(dtype, put);
    }
  }
};

template <class Map, class Join>
struct Reduction : Map, Join {};

// The arguments of all reduction kernels. Operand 0 of `kept` is y, 1 is x. T is as in element_of.
template <class T, class A>
struct Problem {
  const T* x;
  void* y;
  A* parts;  // [results, count of parts], or null if there is one part
  Walk<2> kept;
  Walk<1> reduced;
  int64_t results, length;
  int part_count;
  Finish finish;
  DType x_dtype, y_dtype;
};

template <class T, class A>
MIXTAPE_HD void store_result(const Problem<T, A>& p, int64_t result, int64_t at_y, int part,
                             A sum) {
  if (p.parts)
    p.parts[result * p.part_count + part] = sum;
  else
    Results{p.y, p.y_dtype}.set(at_y, p.finish.of(sum));
}

// A thread's share of a result whose x begins at `at`: every `step`-th element of a part, from
// `first` on. Several loads are in flight together.
template <class Op, class T, class A>
__device__ A join_some(const Problem<T, A>& p, int64_t at, int part, int first, int step) {
  constexpr int ahead = sizeof(T) == 8 ? 2 : 8;
  const int64_t begin = p.length * part / p.part_count, end = p.length * (part + 1) / p.part_count;
  A sum = Op::template identity<A>();
  for (int64_t i = begin + first; i < end; i += ahead * step) {
    T x[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k) {
      if (i + k * step >= end) break;
      int64_t from[1];
      p.reduced.find(i + k * step, from);
      x[k] = element_of(p.x, p.x_dtype, at + from[0]);
    }
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (i + k * step < end) sum = Op::join(sum, Op::of(A(gpu::widen(x[k]))));
  }
  return sum;
}

// One group of 32 or 256 threads per result. Grid: groups, parts.
template <class Op, class T, class A>
__global__ void reduce_dense(Problem<T, A> p, int threads) {
  ThreadGroup group(threads);
  const int part = int(gpu::block().y);
  const int64_t result = gpu::global_thread() / threads;
  A sum = Op::template identity<A>();
  int64_t at[2] = {};
  if (result < p.results) {
    p.kept.find(result, at);
    sum = join_some<Op>(p, at[1], part, group.index, group.size);
  }
  sum = group.join(sum, [](A a, A b) { return Op::join(a, b); }, Op::template identity<A>());
  if (group.index == 0 && result < p.results) store_result(p, result, at[0], part, sum);
}

// 32 results side by side, eight threads down for each. Grid: results / 32, parts.
template <class Op, class T, class A>
__global__ void reduce_columns(Problem<T, A> p) {
  constexpr int down = 8;
  const int t = int(gpu::thread().y), part = int(gpu::block().y);
  const int64_t result = int64_t(gpu::block().x) * 32 + gpu::thread().x;
  A sum = Op::template identity<A>();
  int64_t at[2] = {};
  if (result < p.results) {
    p.kept.find(result, at);
    sum = join_some<Op>(p, at[1], part, t, down);
  }
  const gpu::Shared<A> sums = gpu::shared_memory<A>();
  sums[t * 32 + int(gpu::thread().x)] = sum;
  gpu::sync_block();
  if (t != 0 || result >= p.results) return;
  for (int d = 1; d < down; ++d) sum = Op::join(sum, A(sums[d * 32 + int(gpu::thread().x)]));
  store_result(p, result, at[0], part, sum);
}

// A warp per result.
template <class Op, class A>
__global__ void reduce_parts(const A* parts, int part_count, int64_t results, Walk<2> kept,
                             Finish finish, Results y) {
  ThreadGroup group(gpu::warp_size);
  const int64_t result = gpu::global_thread() / gpu::warp_size;
  A sum = Op::template identity<A>();
  if (result < results)
    for (int i = group.index; i < part_count; i += group.size)
      sum = Op::join(sum, parts[result * part_count + i]);
  sum = group.join(sum, [](A a, A b) { return Op::join(a, b); }, Op::template identity<A>());
  if (group.index != 0 || result >= results) return;
  int64_t at[2];
  kept.find(result, at);
  y.set(at[0], finish.of(sum));
}

// The kept and the reduced dimensions of x, each collapsed.
struct Split {
  Layout kept_y, kept_x, reduced;
  int64_t results = 1, length = 1;

  Split(In x, In y) {
    for (int d = 0; d < x.layout.rank(); ++d) {
      const int64_t size = x.shape()[d];
      const auto append = [&](Layout& l, int64_t stride) {
        l.shape.push_back(size);
        l.strides.push_back(stride);
      };
      if (y.shape()[d] == 1 && size != 1) {
        append(reduced, x.strides()[d]);
        length *= size;
      } else if (size != 1) {
        append(kept_y, y.strides()[d]);
        append(kept_x, x.strides()[d]);
        results *= size;
      }
    }
    collapse(std::array{&kept_y, &kept_x});
    collapse(std::array{&reduced});
  }
};

template <class Op, class T>
void run(Launch& launch, In x, const View& y, Finish finish = {}) {
  using A = sum_t<Op, T>;
  const Split dims(x, y);
  Problem<T, A> p{static_cast<const T*>(x.data),
                  y.data,
                  nullptr,
                  walk_of<2>({&dims.kept_y, &dims.kept_x}),
                  walk_of<1>({&dims.reduced}),
                  dims.results,
                  dims.length,
                  1,
                  finish,
                  x.dtype,
                  y.dtype};
  if (p.results == 0) return;
  // By columns if neighbouring results are neighbours in memory and reduced elements are not.
  const bool columns =
      dims.reduced.strides[-1] != 1 && dims.kept_x.strides[-1] == 1 && p.results >= 32;
  const bool by_block = !columns && p.length > 1024;
  const int64_t groups = columns    ? ceil_div(p.results, 32)
                         : by_block ? p.results
                                    : ceil_div(p.results, 8);
  // Too few results to fill the device are cut into parts of at least 1024 elements.
  p.part_count = gpu::parts_for(launch, groups, p.length / 1024);
  if (p.part_count > 1) p.parts = launch.scratch<A>(p.results * p.part_count);
  const gpu::Index3 grid{unsigned(groups), unsigned(p.part_count), 1};
  if (columns)
    gpu::launch({"reduce_columns", grid, {32, 8, 1}, 256 * sizeof(A)}, launch.stream,
                reduce_columns<Op, T, A>, p);
  else
    gpu::launch({"reduce_dense", grid, {256, 1, 1}, by_block ? ThreadGroup::shared_bytes : 0},
                launch.stream, reduce_dense<Op, T, A>, p, by_block ? 256 : 32);
  if (p.parts)
    gpu::launch({"reduce_parts", {unsigned(ceil_div(p.results, 8)), 1, 1}, {256, 1, 1}},
                launch.stream, reduce_parts<Op, A>, static_cast<const A*>(p.parts), p.part_count,
                p.results, p.kept, finish, Results{y.data, y.dtype});
}

}  // namespace

void reduce(Launch& launch, Reduce op, In x, Out y) {
  if (y.size() == 0) return;
  const auto with = [&]<class T>() {
    switch (op) {
      case Reduce::Sum:
        return run<Reduction<Elements, Add>, T>(launch, x, y);
      case Reduce::Mean:
        return run<Reduction<Elements, Add>, T>(launch, x, y,
                                                {.divisor = double(x.size()) / double(y.size())});
      case Reduce::Max:
        if constexpr (std::is_integral_v<T>)  // the largest of no bools is false: any
          if (x.dtype == boolean) return run<Reduction<Elements, LargestOrZero>, T>(launch, x, y);
        return run<Reduction<Elements, Largest>, T>(launch, x, y);
      case Reduce::Min:
        return run<Reduction<Elements, Smallest>, T>(launch, x, y);
      case Reduce::Prod:
        return run<Reduction<Elements, Multiply>, T>(launch, x, y);
      case Reduce::SumAbs:
        return run<Reduction<Magnitudes, Add>, T>(launch, x, y);
      case Reduce::Norm:
        return run<Reduction<Squares, Add>, T>(launch, x, y, {.root = true});
      case Reduce::MaxAbs:
        return run<Reduction<Magnitudes, LargestOrZero>, T>(launch, x, y);
    }
  };
  visit_elements(x.dtype, with);
}

}  // namespace mixtape::kernels::cuda
