// Matrix products by Eigen in f32 or f64. 16-bit and oddly strided operands are copied to dense
// matrices first; a large product is cut into tiles of c whose sizes depend on the shape alone, so
// every number of threads gives the same bits.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12, in its own AVX-512 intrinsics
#endif
#define EIGEN_NO_DEBUG  // its assertions cost more than a small product
#include <Eigen/Core>
#include <algorithm>
#include <optional>

#include "kernels/common/activation.h"
#include "kernels/common/batch.h"
#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/loops/buffer.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// A matrix with dense rows (or columns, if not by_rows), `outer` elements apart.
template <class T>
struct DenseMatrix {
  const T* data;
  int64_t rows, columns, outer;
  bool by_rows;

  DenseMatrix block(int64_t row, int64_t column, int64_t height, int64_t width) const {
    return {data + (by_rows ? row * outer + column : column * outer + row), height, width, outer,
            by_rows};
  }
};

// The part of x with this layout that begins at element `at`.
View part(const View& x, int64_t at, const Layout& layout) {
  return {x.as<char>() + at * static_cast<int64_t>(size_of(x.dtype)), x.dtype, layout};
}

// x [m, n] as a dense matrix of T: x itself if possible, otherwise a copy in `buffer` that keeps
// the order of the dimensions.
template <class T>
DenseMatrix<T> dense_matrix(const View& x, std::optional<Buffer<T>>& buffer) {
  const int64_t m = x.shape()[0], n = x.shape()[1];
  const int64_t down = x.strides()[0], right = x.strides()[1];
  const bool by_rows = n == 1 || right == 1 || (m > 1 && down != 1);
  const int64_t count = by_rows ? m : n, length = by_rows ? n : m;
  const int64_t inner = by_rows ? right : down, outer = by_rows ? down : right;
  if (x.dtype == dtype_of<T>() && (length == 1 || inner == 1) && (count == 1 || outer >= length))
    return {x.as<T>(), m, n, std::max(outer, length), by_rows};
  T* const dense = buffer.emplace(m * n).data();
  Launch launch(Device::cpu());
  convert(launch, x, {dense, dtype_of<T>(), by_rows ? Layout({m, n}) : Layout({m, n}, {1, m})});
  return {dense, m, n, length, by_rows};
}

template <class T, int order>
using Map =
    Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, order>, 0, Eigen::OuterStride<>>;

// c = a @ b; c has dense rows, `stride` elements apart.
template <class T>
void multiply(const DenseMatrix<T>& a, const DenseMatrix<T>& b, T* c, int64_t stride) {
  Map<T, Eigen::RowMajor> out(c, a.rows, b.columns, Eigen::OuterStride<>(stride));
  const auto as_map = [](const DenseMatrix<T>& x, auto&& use) {
    T* const data = const_cast<T*>(x.data);
    if (x.by_rows)
      use(Map<T, Eigen::RowMajor>(data, x.rows, x.columns, Eigen::OuterStride<>(x.outer)));
    else
      use(Map<T, Eigen::ColMajor>(data, x.rows, x.columns, Eigen::OuterStride<>(x.outer)));
  };
  as_map(a, [&](const auto& left) {
    as_map(b, [&](const auto& right) { out.noalias() = left * right; });
  });
}

// Sizes of the tiles of c: eight or more for a product that is worth several threads.
struct Tiles {
  int64_t height, width, across, count;

  Tiles(int64_t m, int64_t n, int64_t k) : height(m), width(n) {
    if (m * n * k >= int64_t{1} << 21) {
      height = std::min<int64_t>(m, 256);
      width = std::min<int64_t>(n, 512);
      while (ceil_div(m, height) * ceil_div(n, width) < 8 && std::max(height, width) > 128)
        (width >= height ? width : height) = round_up(std::max(width, height) / 2, 16);
    }
    across = ceil_div(n, width);
    count = ceil_div(m, height) * across;
  }
};

// The epilogue of a product; the bias has rows `stride` elements apart, and 0 repeats one row.
template <class T>
struct Finish {
  T alpha;
  const T* bias;
  int64_t stride;
  const T* residual;  // with c's strides
  Activation activation;
  View before;  // [m, n], with c's strides

  // Multiplies a tile of sums at (row, column) of c by alpha and adds the bias.
  void begin(T* sums, int64_t sums_stride, int64_t row, int64_t column, int64_t height,
             int64_t width) const {
    if (!bias && alpha == T(1)) return;
    for (int64_t r = 0; r < height; ++r) {
      const T* const from = bias ? bias + (row + r) * stride + column : nullptr;
      T* const to = sums + r * sums_stride;
      for_each_vec<T>(width, [&](int64_t i, int64_t count) {
        const Vec<T> product = read<T>(to + i, count) * Vec<T>(alpha);
        write(to + i, from ? product + read<T>(from + i, count) : product, count);
      });
    }
  }
};

// One product of the batch: c = a @ b, all of two dimensions.
template <class T>
void product(const View& a, const View& b, const Finish<T>& finish, const View& c) {
  std::optional<Buffer<T>> a_buffer, b_buffer;
  const DenseMatrix<T> left = dense_matrix<T>(a, a_buffer), right = dense_matrix<T>(b, b_buffer);
  const int64_t m = left.rows, n = right.columns, k = left.columns;
  const int64_t down = c.strides()[0], step = c.strides()[1];
  // (A bias of c's shape may be c.)
  const bool direct = c.dtype == dtype_of<T>() && (n == 1 || step == 1) && (m == 1 || down >= n) &&
                      finish.stride == 0 && finish.activation == Activation::None &&
                      !finish.residual && !finish.before;

  const Tiles tiles(m, n, k);
  parallel_for(tiles.count, [&](int64_t tile) {
    const int64_t row = tile / tiles.across * tiles.height,
                  column = tile % tiles.across * tiles.width;
    const int64_t height = std::min(tiles.height, m - row),
                  width = std::min(tiles.width, n - column);
    const DenseMatrix<T> over = left.block(row, 0, height, k),
                         under = right.block(0, column, k, width);
    if (direct) {
      T* const out = c.as<T>() + row * down + column;
      const int64_t stride = std::max(down, width);
      multiply(over, under, out, stride);
      return finish.begin(out, stride, row, column, height, width);
    }
    Buffer<T> sums(height * width + Vec<T>::width);  // activate() writes whole vectors
    multiply(over, under, sums.data(), width);
    finish.begin(sums.data(), width, row, column, height, width);
    for (int64_t r = 0; finish.residual && r < height; ++r)
      for (int64_t j = 0; j < width; ++j)
        sums.data()[r * width + j] += finish.residual[(row + r) * down + (column + j) * step];
    const auto write_to = [&](const View& y) {
      Launch launch(Device::cpu());
      convert(launch, {sums.data(), dtype_of<T>(), Layout({height, width})},
              part(y, row * down + column * step, Layout({height, width}, {down, step})));
    };
    if (finish.before) write_to(finish.before);
    activate(finish.activation, sums.data(), 0, 1, height * width);
    write_to(c);
  });
}

}  // namespace

void eigen_gemm(Launch& launch, In a, In b, const Epilogue& epilogue, Out c) {
  if (c.size() == 0) return;
  const auto run = [&]<class T>(std::type_identity<T>) {
    Layout al = a.layout, bl = b.layout, cl = c.layout;
    merge_batch(al, bl, cl);
    const auto last_two = [](const Layout& l) {
      return Layout({l.shape[-2], l.shape[-1]}, {l.strides[-2], l.strides[-1]});
    };
    const Layout a_batch = leading(al), b_batch = leading(bl), c_batch = leading(cl);
    const View& bias = epilogue.bias;
    const T* const bias_data = to_dense<T>(launch, bias);
    const int64_t stride = bias.layout.rank() == 2 ? cl.shape[-1] : 0;
    const T* const residual = widened<T>(launch, epilogue.residual);
    const auto one = [&](int64_t i) {
      const int64_t at = c_batch.at(i);
      const View y = part(c, at, last_two(cl));
      const Finish<T> finish{T(epilogue.alpha),
                             bias_data,
                             stride,
                             residual ? residual + at : nullptr,
                             epilogue.activation,
                             epilogue.before ? part(epilogue.before, at, y.layout) : View()};
      product<T>(part(a, a_batch.at(i), last_two(al)), part(b, b_batch.at(i), last_two(bl)), finish,
                 y);
    };
    const int64_t work = std::max<int64_t>(1, cl.shape[-2] * cl.shape[-1] * al.shape[-1]);
    parallel_ranges(c_batch.shape.size(), std::max<int64_t>(1, 32768 / work),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) one(i);
                    });
  };
  a.dtype == f64 ? run(std::type_identity<double>()) : run(std::type_identity<float>());
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
