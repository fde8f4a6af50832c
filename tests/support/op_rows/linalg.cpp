// Linear algebra and Fourier transforms, on the CPU alone.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {
namespace {

// Joins several results, of which each element has a gradient of its own.
Tensor joined(const std::vector<Tensor>& parts) {
  std::vector<Tensor> flat;
  for (const Tensor& t : parts) flat.push_back(flatten(t));
  return cat(flat);
}
const std::vector<double> positive = {4, 1, -0.5, 1, 3, 0.7, -0.5, 0.7, 2};

std::vector<OpCase> matrices() {
  return {
      {.op = "solve",
       .inputs = {{{2, 3, 3}}, {{2, 3, 2}}},
       .run = [](In x) { return solve(x[0], x[1]); },
       .tolerance = 8,
       .empty = {{0, 3, 3}, {0, 3, 2}}},
      {.op = "solve",
       .inputs = {{{2, 1, 3, 3}}, {{3, 3, 2}}},
       .run = [](In x) { return solve(x[0], x[1]); },
       .label = "broadcast",
       .tolerance = 8,
       .empty = {{2, 1, 0, 0}, {3, 0, 2}}},
      {.op = "solve",
       .inputs = {{{2, 3, 3}}, {{2, 3}}},
       .run = [](In x) { return solve(x[0], x[1]) + solve(x[0], x[1][0]); },
       .label = "vectors",
       .tolerance = 16,
       .composite = true},
      {.op = "solve",
       .inputs = {{{2, 3, 3}, 0.5, 2}, {{2, 3, 2}}},
       .run = [](In x) { return solve_triangular(x[0], x[1]); },
       .label = "triangular",
       .tolerance = 8,
       .empty = {{2, 3, 3}, {2, 3, 0}}},
      {.op = "solve",
       .inputs = {{{2, 3, 3}}, {{2, 2, 3}}},
       .run =
           [](In x) {
             return solve_triangular(x[0], x[1],
                                     {.upper = true, .left = false, .unitriangular = true});
           },
       .label = "triangular_from_the_right",
       .tolerance = 8},
      {.op = "solve",
       .inputs = {{{2, 3, 2}}, {{2, 3, 3}, 0.5, 2}},
       .run = [](In x) { return cholesky_solve(x[0], tril(x[1])); },
       .label = "cholesky",
       .tolerance = 16,
       .composite = true},
      {.op = "inv",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return inv(x[0]); },
       .tolerance = 16,
       .empty = {{0, 3, 3}}},
      {.op = "det",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return det(x[0]); },
       .tolerance = 4,
       .empty = {{2, 0, 0}}},
      {.op = "det_gradient",  // of singular matrices
       .inputs = {{{2, 3, 3}}},
       .run =
           [](In x) {
             const Tensor a = x[0] * cast(from({1, 1, 0}, {3, 1}, f64), x[0].dtype());
             if (!a.requires_grad()) a.set_requires_grad();
             return grad({sum(det(a))}, {a}, {.create_graph = true})[0];
           },
       .tolerance = 16,
       .composite = true},
      {.op = "slogdet",
       .inputs = {{{2, 3, 3}}},
       .run =
           [](In x) {
             const Slogdet y = slogdet(x[0]);
             return joined({y.sign, y.logabsdet});
           },
       .tolerance = 16,
       .empty = {{2, 0, 0}}},
      {.op = "cholesky",
       .inputs = {{{2, 3, 3}, 0, 0, Input::Real, 0, positive}},
       .run = [](In x) { return cholesky(x[0]); },
       .tolerance = 4,
       .empty = {{0, 3, 3}}},
      {.op = "cholesky",
       .inputs = {{{2, 3, 3}, 0, 0, Input::Real, 0, positive}},
       .run = [](In x) { return cholesky(x[0], true); },
       .label = "upper",
       .tolerance = 4},
      {.op = "qr",
       .inputs = {{{2, 4, 3}}},
       .run =
           [](In x) {
             const Qr y = qr(x[0]);
             return joined({y.q, y.r});
           },
       .tolerance = 8,
       .empty = {{0, 4, 3}}},
      {.op = "qr",
       .inputs = {{{2, 2, 4}}},
       .run =
           [](In x) {
             const Qr y = qr(x[0]);
             return joined({y.q, y.r});
           },
       .label = "of_wide",
       .tolerance = 8,
       .empty = {{2, 0, 4}}},
      {.op = "eigh",
       .inputs = {{{2, 3, 3}}},
       .run =
           [](In x) {  // (the sign of a vector is arbitrary)
             const Eigh y = eigh(x[0]);
             return joined({y.values, square(y.vectors)});
           },
       .tolerance = 8,
       .empty = {{0, 3, 3}}},
      {.op = "eigvalsh",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return eigvalsh(x[0]); },
       .tolerance = 4,
       .empty = {{2, 0, 0}}},
      {.op = "svd",
       .inputs = {{{2, 4, 3}}},
       .run =
           [](In x) {
             const Svd y = svd(x[0]);
             return joined({square(y.u), y.s, square(y.vh)});
           },
       .tolerance = 8,
       .empty = {{0, 4, 3}}},
      {.op = "svd",
       .inputs = {{{2, 2, 4}}},
       .run =
           [](In x) {
             const Svd y = svd(x[0]);
             return joined({square(y.u), y.s, square(y.vh)});
           },
       .label = "of_wide",
       .tolerance = 8,
       .empty = {{2, 0, 4}}},
      {.op = "svdvals",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return svdvals(x[0]); },
       .tolerance = 4,
       .empty = {{2, 0, 0}}},
      {.op = "pinv",
       .inputs = {{{2, 4, 3}}},
       .run = [](In x) { return pinv(x[0]); },
       .tolerance = 16,
       .empty = {{0, 4, 3}}},
      {.op = "pinv",
       .inputs = {{{2, 2, 4}}},
       .run = [](In x) { return pinv(x[0]); },
       .label = "of_wide",
       .tolerance = 16,
       .empty = {{2, 0, 4}}},
      {.op = "lstsq",
       .inputs = {{{2, 4, 3}}, {{2, 4, 2}}},
       .run = [](In x) { return lstsq(x[0], x[1]); },
       .tolerance = 16,
       .empty = {{0, 4, 3}, {0, 4, 2}}},
      {.op = "lstsq",
       .inputs = {{{2, 2, 4}}, {{2, 2}}},
       .run = [](In x) { return lstsq(x[0], x[1]); },
       .label = "of_wide",
       .tolerance = 16},
      {.op = "matrix_exp",
       .inputs = {{{2, 3, 3}}},
       .run = [](In x) { return matrix_exp(x[0]); },
       .tolerance = 8,
       .empty = {{0, 3, 3}}},
  };
}

std::vector<OpCase> transforms() {
  return {
      {.op = "fft",
       .inputs = {{{3, 5, 2}}},
       .run = [](In x) { return fft(x[0]); },
       .tolerance = 2,
       .empty = {{0, 5, 2}}},
      {.op = "fft",
       .inputs = {{{2, 6, 3, 2}}},
       .run = [](In x) { return fft(x[0], {.n = 8, .dim = 1, .norm = FftNorm::Forward}); },
       .label = "padded_columns",
       .tolerance = 2},
      {.op = "fft",
       .inputs = {{{2, 37, 2}}},
       .run = [](In x) { return ifft(x[0]); },
       .label = "inverse_of_prime_length",
       .tolerance = 2},
      {.op = "fft",
       .inputs = {{{2, 6, 2}}},
       .run = [](In x) { return ifft(x[0], {.n = 4, .norm = FftNorm::Ortho}); },
       .label = "inverse_cut",
       .tolerance = 2},
      {.op = "fft",
       .inputs = {{{2, 3, 4, 2}}},
       .run = [](In x) { return fft2(x[0]); },
       .label = "2",
       .tolerance = 4,
       .composite = true},
      {.op = "fft",
       .inputs = {{{2, 3, 4, 2}}},
       .run = [](In x) { return ifft2(x[0], {.s = Size2(2, 5), .norm = FftNorm::Ortho}); },
       .label = "2_inverse",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{3, 6}}},
       .run = [](In x) { return rfft(x[0]); },
       .tolerance = 2,
       .empty = {{0, 5}}},
      {.op = "rfft",
       .inputs = {{{5, 3}}},
       .run = [](In x) { return rfft(x[0], {.dim = 0, .norm = FftNorm::Ortho}); },
       .label = "of_odd_columns",
       .tolerance = 2,
       .repeat = {1}},
      {.op = "irfft",
       .inputs = {{{3, 4, 2}}},
       .run = [](In x) { return irfft(x[0]); },
       .tolerance = 2,
       .empty = {{0, 4, 2}}},
      {.op = "irfft",
       .inputs = {{{2, 4, 2}}},
       .run = [](In x) { return irfft(x[0], {.n = 7, .norm = FftNorm::Forward}); },
       .label = "to_odd",
       .tolerance = 2},
      {.op = "irfft",
       .inputs = {{{2, 4, 4, 2}}},
       .run = [](In x) { return irfft2(x[0], {.s = Size2(4, 5)}); },
       .label = "2",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{2, 4, 6}}},
       .run = [](In x) { return rfft2(x[0]); },
       .label = "2",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{4, 6, 2}}},
       .run = [](In x) { return rfft2(x[0], {.dim = {0, 1}, .norm = FftNorm::Ortho}); },
       .label = "2_of_first_dimensions",
       .tolerance = 4,
       .composite = true},
      {.op = "irfft",
       .inputs = {{{4, 4, 2, 2}}},
       .run = [](In x) { return irfft2(x[0], {.s = Size2(5, 6), .dim = {-2, 0}}); },
       .label = "2_turned",
       .tolerance = 4,
       .composite = true},
      {.op = "fft",
       .inputs = {{{3, 2, 4, 2}}},
       .run = [](In x) { return fftn(x[0]); },
       .label = "n",
       .tolerance = 4,
       .composite = true},
      {.op = "fft",
       .inputs = {{{3, 2, 4, 2}}},
       .run =
           [](In x) {
             return ifftn(x[0], {.s = {4, 3, 2}, .dim = {-1, 0, 1}, .norm = FftNorm::Ortho});
           },
       .label = "n_inverse_turned",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{3, 2, 5}}},
       .run = [](In x) { return rfftn(x[0], {.s = {3, 4}}); },
       .label = "n_of_last_dimensions",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{3, 6}}},
       .run = [](In x) { return rfftn(x[0], {.dim = 0}); },
       .label = "n_of_one",
       .tolerance = 2,
       .composite = true},
      {.op = "irfft",
       .inputs = {{{3, 4, 3, 2}}},
       .run = [](In x) { return irfftn(x[0]); },
       .label = "n",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{2, 17}}},
       .run = [](In x) { return stft(x[0], 6); },
       .label = "in_stft",
       .tolerance = 4,
       .composite = true},
      {.op = "rfft",
       .inputs = {{{17}}, {{5}, 0.5, 1}},
       .run =
           [](In x) {
             return stft(x[0], 8,
                         {.hop_length = 3,
                          .win_length = 5,
                          .window = x[1],
                          .pad_mode = PadMode::Constant,
                          .normalized = true});
           },
       .label = "in_stft_of_windows",
       .tolerance = 4,
       .composite = true},
      {.op = "fft",
       .inputs = {{{2, 17}}},
       .run = [](In x) { return stft(x[0], 6, {.center = false, .onesided = false}); },
       .label = "in_stft_of_both_sides",
       .tolerance = 4,
       .composite = true},
      {.op = "irfft",
       .inputs = {{{2, 3, 5, 2}}},
       .run = [](In x) { return istft(x[0], 4, {.window = hann_window(4)}); },
       .label = "in_istft",
       .tolerance = 4,
       .composite = true},
      {.op = "irfft",
       .inputs = {{{8, 4, 2}}, {{6}, 0.5, 1}},
       .run =
           [](In x) {
             return istft(x[0], 8,
                          {.hop_length = 3,
                           .win_length = 6,
                           .window = x[1],
                           .normalized = true,
                           .onesided = false,
                           .length = 12});
           },
       .label = "in_istft_of_both_sides",
       .tolerance = 4,
       .composite = true},
  };
}

}  // namespace

std::vector<OpCase> linalg() {
  std::vector<OpCase> cases = matrices();
  for (OpCase& c : transforms()) cases.push_back(std::move(c));
  for (OpCase& c : cases) c.cpu_only = true;
  return cases;
}

}  // namespace mixtape::tests
