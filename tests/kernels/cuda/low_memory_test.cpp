// Optimizer states of 8 and 16 bits and parameters without masters on CUDA, beside the CPU's bytes.

#include "core/format.h"
#include "kernels/common/layerwise.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_low_memory_test {

std::string bytes(const Tensor& t) {
  Tensor dense(t.shape(), t.dtype());
  for (int64_t i = 0; i < t.numel(); ++i) dense.set(i, t.at(i));
  return {static_cast<const char*>(dense.raw()), t.nbytes()};
}
// A tensor that starts behind the first element of its memory: no load of four is aligned.
Tensor shifted(const Tensor& x) {
  const int64_t n = x.numel();
  const Tensor whole({n + 1}, x.dtype());
  const Tensor part = whole.with_layout(Layout({n}).at_offset(1));
  for (int64_t i = 0; i < n; ++i) part.set(i, x.at(i));
  return part;
}
Tensor spread(int64_t n, bool nonnegative, uint64_t seed) {  // over twelve powers of ten
  Tensor t({n}, f32);
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = Philox::bits(seed, uint64_t(i));
    const double size = std::pow(10, -12 * double(Philox::uniform(bits[0])));
    t.set(i, !nonnegative && bits[1] % 2 ? -size : size);
  }
  return t;
}

TEST(CudaLowMemory, CodesAreThoseOfTheCpu) {
  for (const StateCode code : {StateCode::Dynamic, StateCode::E4M3})
    for (const bool nonnegative : {false, true})
      for (const int64_t n : {0, 1, 255, 256, 2100, 8500})
        for (const bool shift : {false, true}) {
          Tensor x = spread(n, nonnegative, uint64_t(n));
          if (n > 2000) x.set(777, nan);
          if (shift) x = shifted(x);
          const int64_t blocks = ceil_div(n, code_block);
          Tensor codes[2], scale[2], y[2];
          for (const int k : {0, 1}) {
            codes[k] = output({n}, u8);
            if (shift) codes[k] = shifted(codes[k]);
            scale[k] = output({blocks}, f32);
            y[k] = output({n}, f32);
          }
          launch([&](Launch& l) {
            cuda::encode_blocks(l, code, nonnegative, x, codes[0], scale[0]);
            cuda::decode_blocks(l, code, nonnegative, codes[0], scale[0], y[0]);
          });
          launch([&](Launch& l) {
            on_cpu(encode_blocks)(l, code, nonnegative, x, codes[1], scale[1]);
            on_cpu(decode_blocks)(l, code, nonnegative, codes[1], scale[1], y[1]);
          });
          EXPECT_EQ(bytes(codes[0]), bytes(codes[1])) << n;
          for (const Tensor* t : {scale, y})
            for (int64_t i = 0; i < t[0].numel(); ++i)
              EXPECT_TRUE(t[0].at(i) == t[1].at(i) || std::isnan(t[1].at(i))) << n << " " << i;
        }
}

// A parameter with all that LowMemory may ask for, the same in each instance. Of its states, those
// in `used` (a bit for each) exist, and those in `wide` are f32.
struct Parameter {
  Parameter(int64_t n, DType dtype, const LowMemory& how, DType state_dtype, bool shift,
            unsigned used, unsigned wide = 0) {
    low = how;
    const auto add = [&](Tensor t) {
      tensors.push_back(shift ? shifted(t) : t);
      return View(tensors.back());
    };
    update.param = add(random({n}, dtype, 1, -1, 1));
    update.grad = add(random({n}, bf16, 2, -1, 1));
    low.compensation = View{};
    if (low.rounding == Rounding::Kahan) low.compensation = add(filled({n}, dtype, 0));
    for (size_t k = 0; k < Update::max_states; ++k) {
      if (!(used >> k & 1)) continue;
      const Tensor x = random({n}, f32, 3 + k, 0.1, 1);
      const bool is_wide = wide >> k & 1;
      if (low.code == StateCode::None || is_wide) {
        const Tensor state({n}, is_wide ? f32 : state_dtype);
        for (int64_t i = 0; i < n; ++i) state.set(i, x.at(i));
        update.state[k] = add(state);
        continue;
      }
      const Tensor codes({n}, u8), scale({ceil_div(n, code_block)}, f32);
      launch([&](Launch& l) {
        on_cpu(encode_blocks)(l, low.code, low.nonnegative >> k & 1, x, codes, scale);
      });
      update.state[k] = add(codes);
      tensors.push_back(scale);
      low.scale[k] = tensors.back();
    }
    tensors.push_back(filled({}, f32, 4));
    update.steps = tensors.back();
    update.low = &low;
  }
  Parameter(const Parameter&) = delete;
  Update update;
  LowMemory low;
  std::vector<Tensor> tensors;
};

// x - lr g needs no rounding in f32, so that only the last rounding is left: the same bytes.
TEST(CudaLowMemory, RoundingsAreThoseOfTheCpu) {
  for (const Rounding rounding : {Rounding::Stochastic, Rounding::Kahan})
    for (const DType dtype : {f16, bf16})
      for (const int64_t n : {1, 300, 8200})
        for (const bool shift : {false, true}) {
          LowMemory low;
          low.rounding = rounding;
          low.seed = 0x123456789abc;
          low.index = 7;
          Parameter a(n, dtype, low, f32, shift, 0), b(n, dtype, low, f32, shift, 0);
          const SGD options{.lr = 0x1p-9};
          const AnyOptimizer sgd = options;
          for (int step = 0; step < 2; ++step) {
            launch([&](Launch& l) { cuda::optimizer_step(l, sgd, std::span(&a.update, 1), {}); });
            launch([&](Launch& l) { on_cpu(optimizer_step)(l, sgd, std::span(&b.update, 1), {}); });
          }
          for (size_t i = 0; i < a.tensors.size(); ++i)
            EXPECT_EQ(bytes(a.tensors[i]), bytes(b.tensors[i])) << dtype << n << " " << i;
        }
}

// The values of a state, whatever its format.
std::vector<double> values(const Parameter& p, size_t k) {
  const View& s = p.update.state[k];
  const Tensor x({s.size()}, f32);
  launch([&](Launch& l) {
    if (s.dtype == u8)
      on_cpu(decode_blocks)(l, p.low.code, p.low.nonnegative >> k & 1, s, p.low.scale[k], x);
    else
      on_cpu(convert)(l, s, x);
  });
  return to_vector(x);
}

template <class O>
void expect_same_step(const O& o, unsigned used, uint32_t nonnegative, bool matrix = false,
                      unsigned wide = 0) {
  struct Format {
    StateCode code;
    DType dtype;
    double tolerance;  // of a code that another last bit made another
  };
  const AnyOptimizer optimizer = o;
  for (const auto& [code, dtype, tolerance] :
       {Format{StateCode::None, bf16, 0.01}, Format{StateCode::Dynamic, u8, 0.02},
        Format{StateCode::E4M3, u8, 0.08}})
    for (const int64_t n : {300, 8200}) {
      LowMemory low;
      low.code = code;
      low.nonnegative = nonnegative;
      Parameter a(n, f32, low, dtype, n == 300, used, wide),
          b(n, f32, low, dtype, n == 300, used, wide);
      for (Parameter* p : {&a, &b})
        if (matrix)
          for (View* v : {&p->update.param, &p->update.grad, &p->update.state[0]})
            v->layout = Layout({4, n / 4});
      launch([&](Launch& l) { cuda::optimizer_step(l, optimizer, std::span(&a.update, 1), {}); });
      launch([&](Launch& l) { on_cpu(optimizer_step)(l, optimizer, std::span(&b.update, 1), {}); });
      expect_close(a.tensors[0], to_vector(b.tensors[0]), matrix ? 1e-3 : tolerance, "parameter");
      for (size_t k = 0; k < Update::max_states; ++k) {
        if (!(used >> k & 1)) continue;
        const std::vector<double> x = values(a, k), y = values(b, k);
        int64_t others = 0;
        for (size_t i = 0; i < x.size(); ++i) {
          EXPECT_NEAR(x[i], y[i], tolerance * 2);
          others += std::abs(x[i] - y[i]) > 1e-5;
        }
        EXPECT_LE(others, 3 + n / 100) << O::name << k;
      }
    }
}

TEST(CudaLowMemory, StepsAreThoseOfTheCpu) {
  expect_same_step(SGD{.lr = 0.1, .momentum = 0.9}, 1, 0);
  expect_same_step(Adam{.lr = 0.1, .amsgrad = true}, 7, 6);
  expect_same_step(AdamW{.lr = 0.1}, 3, 2);
  expect_same_step(NAdam{.lr = 0.1}, 3, 2);
  expect_same_step(RAdam{.lr = 0.1}, 3, 2);
  expect_same_step(Lion{.lr = 0.1}, 1, 0);
  expect_same_step(RMSprop{.lr = 0.1, .momentum = 0.5}, 3, 1);
  expect_same_step(Adagrad{.lr = 0.1}, 1, 1);
  expect_same_step(Adadelta{.lr = 0.1}, 3, 3);
  expect_same_step(Lamb{.lr = 0.1}, 3, 2);
  expect_same_step(Lars{.trust_coefficient = 0.1}, 1, 0);
  expect_same_step(ScheduleFreeAdamW{.lr = 0.1}, 3, 2, false, 1);
  expect_same_step(Adafactor{.lr = 0.1}, 1, 1);
  expect_same_step(Muon{.lr = 0.1}, 1, 0, true);
}

TEST(CudaLowMemory, ARoundedMatrixHasStatesOfRowsAndColumns) {
  LowMemory low;
  low.rounding = Rounding::Kahan;
  Parameter a(300, bf16, low, f32, false, 6), b(300, bf16, low, f32, false, 6);
  const Adafactor options{.lr = 0.1};
  const AnyOptimizer adafactor = options;
  for (Parameter* p : {&a, &b}) {
    for (View* v : {&p->update.param, &p->update.grad}) v->layout = Layout({4, 75});
    p->update.state[1].layout = Layout({4, 1});
    p->update.state[2].layout = Layout({1, 75});
  }
  launch([&](Launch& l) { cuda::optimizer_step(l, adafactor, std::span(&a.update, 1), {}); });
  launch([&](Launch& l) { on_cpu(optimizer_step)(l, adafactor, std::span(&b.update, 1), {}); });
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const bool is_half = a.tensors[i].dtype() == bf16;
    expect_close(a.tensors[i], to_vector(b.tensors[i]), is_half ? 0.01 : 1e-5, "tensor");
  }
}

// One call takes parameters that are stored in different ways.
TEST(CudaLowMemory, ACallTakesPlainOnesToo) {
  LowMemory codes, kahan, none;
  codes.code = StateCode::Dynamic;
  codes.nonnegative = 2;
  kahan.rounding = Rounding::Kahan;
  std::vector<double> sums[2];
  for (const bool on_cuda : {false, true}) {
    Parameter a(9000, f32, codes, u8, false, 3), b(40, bf16, kahan, f32, false, 3),
        c(500, f32, none, f32, false, 3);
    c.update.low = nullptr;
    const Update updates[] = {a.update, c.update, b.update};
    const AdamW adamw{.lr = 0.1};
    const Lamb lamb{.lr = 0.1};
    const AnyOptimizer optimizers[] = {adamw, lamb};
    for (const AnyOptimizer& o : optimizers)
      launch([&](Launch& l) {
        on_cuda ? cuda::optimizer_step(l, o, updates, {})
                : on_cpu(optimizer_step)(l, o, std::span(updates), {});
      });
    for (const Parameter* p : {&a, &b, &c})
      for (const double x : to_vector(p->tensors[0])) sums[on_cuda].push_back(x);
  }
  for (size_t i = 0; i < sums[0].size(); ++i) EXPECT_NEAR(sums[0][i], sums[1][i], 0.02) << i;
}

// Elements [first, last) of a parameter, on blocks of the norm.
Update piece_of(const Update& whole, const LowMemory* low, int64_t first, int64_t last) {
  const auto cut = [&](View& v, int64_t block = 1) {
    if (!v) return;
    const int64_t begin = first / block;
    v = {static_cast<char*>(v.data) + begin * int64_t(size_of(v.dtype)), v.dtype,
         Layout({ceil_div(last, block) - begin})};
  };
  Update piece = whole;
  for (View* const v : {&piece.param, &piece.grad, &piece.shadow}) cut(*v);
  for (View& v : piece.state) cut(v);
  piece.low = low;
  return piece;
}
LowMemory low_of_piece(const LowMemory& whole, int64_t first, int64_t last) {
  LowMemory low = whole;
  low.first = first;
  for (View& v : low.scale)
    if (v) {
      const int64_t begin = first / code_block;
      v = {v.as<float>() + begin, f32, Layout({ceil_div(last, code_block) - begin})};
    }
  return low;
}

// Where all squares are known to each piece, steps of pieces have the bytes of the whole.
template <class O>
void expect_pieces_step_alike(const O& o, const LowMemory& low, DType dtype, DType state_dtype) {
  constexpr int64_t n = 4 * norm_block + 300, cuts[] = {0, norm_block, 3 * norm_block, n};
  const AnyOptimizer optimizer = o;
  for (const bool on_cuda : {false, true}) {
    const auto step = [&](Updates updates, const StepControl& control) {
      launch([&](Launch& l) {
        on_cuda ? cuda::optimizer_step(l, optimizer, updates, control)
                : on_cpu(optimizer_step)(l, optimizer, updates, control);
      });
    };
    Parameter whole(n, dtype, low, state_dtype, false, 3),
        cut(n, dtype, low, state_dtype, false, 3);
    const bool is_plain = dtype == f32 && state_dtype == f32;
    if (is_plain) whole.update.low = nullptr;
    LowMemory lows[3];
    Update pieces[3];
    const Tensor counts = filled({3}, f32, 4), norms({ceil_div(n, norm_block), 2}, f64);
    for (size_t i = 0; i < 3; ++i) {
      lows[i] = low_of_piece(cut.low, cuts[i], cuts[i + 1]);
      pieces[i] = piece_of(cut.update, is_plain ? nullptr : &lows[i], cuts[i], cuts[i + 1]);
      pieces[i].steps = {counts.data<float>() + i, f32, Layout(Shape{})};
    }
    for (int t = 0; t < 2; ++t) {
      step(std::span(&whole.update, 1), {});
      if constexpr (Layerwise<O>) {
        for (const Pass pass : {Pass::Measure, Pass::Move}) {
          for (size_t i = 0; i < 3; ++i) {
            const int64_t first = pass == Pass::Move ? 0 : cuts[i] / norm_block,
                          last = pass == Pass::Move ? norms.size(0)
                                                    : ceil_div(cuts[i + 1], norm_block);
            pieces[i].norms = {norms.data<double>() + 2 * first, f64, Layout({last - first, 2})};
          }
          step(pieces, {.pass = pass});
        }
      } else {
        step(pieces, {});
      }
    }
    for (size_t i = 0; i + 1 < whole.tensors.size(); ++i)
      EXPECT_EQ(bytes(whole.tensors[i]), bytes(cut.tensors[i])) << O::name << i << on_cuda;
    EXPECT_EQ(to_vector(counts), std::vector<double>(3, 6)) << on_cuda;
  }
}
TEST(CudaLowMemory, PiecesStepAsTheWhole) {
  LowMemory none, by_chance, codes;
  by_chance.rounding = Rounding::Stochastic;
  by_chance.seed = 5;
  codes.code = StateCode::Dynamic;
  codes.nonnegative = 2;
  const auto expect_alike = [&](const auto& o) {
    expect_pieces_step_alike(o, none, f32, f32);
    expect_pieces_step_alike(o, by_chance, bf16, f32);
    expect_pieces_step_alike(o, by_chance, f16, bf16);
    expect_pieces_step_alike(o, codes, f32, u8);
  };
  expect_alike(AdamW{.lr = 0.1});
  expect_alike(Lamb{.lr = 0.1});
  expect_alike(Lars{.momentum = 0.9, .weight_decay = 0.1, .trust_coefficient = 0.1});
}

}  // namespace kernels_cuda_low_memory_test
}  // namespace mixtape::kernels
