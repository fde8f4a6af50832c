// Memory-bound ops: copies, which are the ceiling, then ops by the bytes that they must move.

#include <fmt/format.h>

#include <cmath>

#include "bench/gpu/op_case.h"
#include "core/stream.h"
#include "kernels/kernels.h"

namespace mixtape::bench {
namespace {

using Op = std::function<Tensor(const Tensors&)>;

// Cases of one op whose first input is x [rows, n]. `passes` count tensors of the size of x that
// are read or written, forward and for the gradients of `wrt`.
struct Rows {
  const char* name;
  int64_t rows, n;
  Op op;
  double forward, backward;
  std::vector<size_t> wrt = {0};
  std::function<void(Tensors&, DType)> others = {};  // adds the other inputs
  DType reference = f64;
};

void measure(Report& report, const Rows& r, DType dtype) {
  const int64_t n = report.settings.smoke ? std::min<int64_t>(r.n, 70) : r.n;
  OpCase c{.name = fmt::format("memory/{}/{}", r.name, name(dtype)),
           .dtype = dtype,
           .rows = r.rows,
           .inputs =
               [&r, n](int64_t rows, DType t) {
                 Tensors in{randn({rows, n}, t)};
                 if (r.others) r.others(in, t);
                 return in;
               },
           .op = r.op,
           .input_bytes = double(n * int64_t(size_of(dtype))),
           .reference = r.reference};
  c.work = r.forward * c.input_bytes;
  measure(report, c);
  if (r.backward == 0) return;
  c.name += "/backward";
  c.work = r.backward * c.input_bytes;
  c.wrt = r.wrt;
  measure(report, c);
}

void another(Tensors& in, DType t) { in.push_back(randn(in[0].shape(), t)); }
void scale_and_shift(Tensors& in, DType) {
  in.push_back(rand({in[0].size(1)}));
  in.push_back(randn({in[0].size(1)}));
}
void classes(Tensors& in, DType) { in.push_back(randint(0, in[0].size(1), {in[0].size(0)})); }

const Rows row_cases[] = {
    {"copy", 32768, 4096, [](const Tensors& in) { return clone(in[0]); }, 2, 0},
    {"transpose", 8192, 8192, [](const Tensors& in) { return clone(in[0].t()); }, 2, 0},
    {"add", 32768, 4096, [](const Tensors& in) { return add(in[0], in[1]); }, 3, 0, {}, another},
    {"bias",
     32768,
     4096,
     [](const Tensors& in) { return add(in[0], in[1]); },
     2,
     0,
     {},
     [](Tensors& in, DType t) { in.push_back(randn({in[0].size(1)}, t)); }},
    {"relu", 32768, 4096, [](const Tensors& in) { return relu(in[0]); }, 2, 3},
    {"gelu", 32768, 4096, [](const Tensors& in) { return gelu(in[0]); }, 2, 3},
    {"dropout",
     32768,
     4096,
     [](const Tensors& in) { return dropout(in[0], 0.1); },
     2,
     2,
     {0},
     {},
     f32},
    {"sum", 32768, 4096, [](const Tensors& in) { return sum(in[0]); }, 1, 0},
    {"sum_rows", 32768, 4096, [](const Tensors& in) { return sum(in[0], {1}); }, 1, 0},
    {"sum_columns", 32768, 4096, [](const Tensors& in) { return sum(in[0], {0}); }, 1, 0},
    {"softmax_1024", 131072, 1024, [](const Tensors& in) { return softmax(in[0]); }, 2, 3},
    {"softmax_50257", 4096, 50257, [](const Tensors& in) { return softmax(in[0]); }, 2, 3},
    {"layer_norm_768",
     131072,
     768,
     [](const Tensors& in) { return layer_norm(in[0], {in[0].size(1)}, in[1], in[2]); },
     2,
     3,
     {0, 1, 2},
     scale_and_shift},
    {"layer_norm_4096",
     32768,
     4096,
     [](const Tensors& in) { return layer_norm(in[0], {in[0].size(1)}, in[1], in[2]); },
     2,
     3,
     {0, 1, 2},
     scale_and_shift},
    {"cross_entropy_50257",
     4096,
     50257,
     [](const Tensors& in) { return cross_entropy(in[0], in[1]); },
     1,
     2,
     {0},
     classes},
};

// Images [n, 64, 56, 56].
void measure_planes(Report& report, DType dtype) {
  const int64_t channels = report.settings.smoke ? 3 : 64, side = report.settings.smoke ? 10 : 56;
  const double size = double(size_of(dtype)), plane = double(channels * side * side);
  const auto measure_both = [&](const char* what, bool weights, Op op, double forward,
                                double backward) {
    OpCase c{.name = fmt::format("memory/{}/{}", what, name(dtype)),
             .dtype = dtype,
             .rows = 256,
             .inputs =
                 [=](int64_t n, DType t) {
                   Tensors in{randn({n, channels, side, side}, t)};
                   if (weights) in.push_back(rand({channels})), in.push_back(randn({channels}));
                   return in;
                 },
             .op = std::move(op),
             .work = forward,
             .input_bytes = plane * size};
    measure(report, c);
    c.name += "/backward";
    c.work = backward;
    c.wrt = weights ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0};
    measure(report, c);
  };
  // A quarter of the elements have values and positions (4 bytes).
  measure_both(
      "max_pool2d", false, [](const Tensors& in) { return max_pool2d(in[0], {2, 2}); },
      plane * (size + (size + 4) / 4), plane * (size + (size + 4) / 4));
  // Statistics come first, so x, and dy backward, are read twice.
  measure_both(
      "batch_norm", true,
      [](const Tensors& in) { return batch_norm(in[0], {}, {}, in[1], in[2], {.training = true}); },
      plane * size * 3, plane * size * 5);
}

// GPT-2's token table, with 8 x 1,024 look-ups per row of the case.
void measure_embedding(Report& report, DType dtype) {
  const bool smoke = report.settings.smoke;
  const int64_t tokens = smoke ? 9 : 8192, n = smoke ? 33 : 768, vocabulary = smoke ? 50 : 50257;
  const double bytes = double(size_of(dtype)), y = double(tokens * n) * bytes;
  OpCase c{.name = fmt::format("memory/embedding/{}", name(dtype)),
           .dtype = dtype,
           .rows = 8,
           .inputs =
               [=](int64_t rows, DType t) {
                 return Tensors{randn({vocabulary, n}, t), randint(0, vocabulary, {rows * tokens})};
               },
           .op = [](const Tensors& in) { return embedding(in[0], in[1]); },
           .work = 2 * y,
           .input_bytes = y,
           .few = 1};
  measure(report, c);
  c.name += "/backward";
  c.wrt = {0};
  c.work = y + double(vocabulary * n) * bytes / double(c.rows);
  measure(report, c);
}

}  // namespace

void measure_copies(Report& report) {
  const int64_t n = report.settings.smoke ? 1000 : int64_t{1} << 28;
  const auto measure = [&](const char* name, auto copy) {
    report.take(name, [&](Figure& f) {
      const DefaultDevice here(gpu);
      const Tensor x = randn({n}), y = full({n}, NAN);
      f.work = 8 * double(n);
      copy(x, y);
      f.error = distance(y, x);
      f.ours = report.time({[&](int64_t) { copy(x, y); }})[0];
      if (f.ours.median > 0) report.offer_copy_rate(f.work / (f.ours.median * 1e-3));
    });
  };
  measure("ceiling/copy_bytes", [&](const Tensor& x, const Tensor& y) {
    copy_bytes(y.raw(), gpu, x.raw(), gpu, size_t(n) * 4);
  });
  measure("ceiling/convert", [](const Tensor& x, const Tensor& y) {
    kernels::Launch launch(gpu);
    kernels::convert(launch, x, y);
  });
}

void measure_memory(Report& report) {
  for (const DType dtype : {f32, f16}) {
    for (const Rows& r : row_cases) measure(report, r, dtype);
    measure_planes(report, dtype);
    measure_embedding(report, dtype);
  }
  const int64_t n = report.settings.smoke ? 70 : 4096;
  measure(report, {.name = "memory/cast/f32_to_f16",
                   .dtype = f32,
                   .rows = 32768,
                   .inputs = [n](int64_t rows, DType t) { return Tensors{randn({rows, n}, t)}; },
                   .op = [](const Tensors& in) { return in[0].to(f16); },
                   .work = 6 * double(n),
                   .tolerance = 1e-3});
}

}  // namespace mixtape::bench
