// Indexing, sorting, scans and rearranging of a million f32 values, unless the name gives a size.

#include <benchmark/benchmark.h>

#include "mixtape.h"

namespace mixtape {
namespace {

const Tensor& square_of_numbers() {
  static const Tensor x = randn({1000, 1000});
  return x;
}
Tensor line() { return reshape(square_of_numbers(), {1'000'000}); }
const Tensor& positions() {
  static const Tensor i = randint(0, 1000, {1000, 1000});
  return i;
}
const Tensor& logits() {
  static const Tensor x = randn({64, 50'000});
  return x;
}

struct Case {
  const char* name;
  Tensor (*run)();
};
const Case cases[] = {
    {"argmax_of_rows", [] { return argmax(square_of_numbers(), 1); }},
    {"argmax_of_columns", [] { return argmax(square_of_numbers(), 0); }},
    {"gather_in_rows", [] { return gather(square_of_numbers(), 1, positions()); }},
    {"gather_in_columns", [] { return gather(square_of_numbers(), 0, positions()); }},
    {"scatter_add_to_a_line",
     [] { return scatter_add(line(), 0, reshape(positions(), {1'000'000}), line()); }},
    {"index_select_columns",
     [] { return index_select(square_of_numbers(), 1, select(positions(), 0, 0)); }},
    {"masked_select_of_half", [] { return masked_select(line(), gt(line(), 0)); }},
    {"sort_rows", [] { return sort(square_of_numbers()).values; }},
    {"sort_short_rows", [] { return sort(reshape(line(), {10'000, 100})).values; }},
    {"sort_a_line", [] { return sort(line()).values; }},
    {"topk_10_of_64x50000", [] { return topk(logits(), 10).values; }},
    {"cumsum_of_rows", [] { return cumsum(square_of_numbers(), 1); }},
    {"cumsum_of_columns", [] { return cumsum(square_of_numbers(), 0); }},
    {"tile_2x2", [] { return repeat(square_of_numbers(), {2, 2}); }},
};

// Embedding of `count` indices in a table [rows, width], forward and backward.
void embedding_step(benchmark::State& state, int64_t rows, int64_t width, int64_t count) {
  const Tensor table = randn({rows, width}).set_requires_grad();
  const Tensor index = randint(0, rows, {count}), dy = randn({count, width});
  for (auto _ : state) {
    table.set_grad({});
    embedding(table, index).backward({.gradient = dy});
  }
}
BENCHMARK_CAPTURE(embedding_step, words, 50'000, 512, 8192)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(embedding_step, characters, 65, 32, 8192)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mixtape

int main(int argc, char** argv) {
  for (const mixtape::Case& c : mixtape::cases)
    benchmark::RegisterBenchmark(c.name, [&c](benchmark::State& state) {
      for (auto _ : state) benchmark::DoNotOptimize(c.run());
    })->Unit(benchmark::kMicrosecond);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
