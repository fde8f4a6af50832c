// Attention at the sizes of language models, forward and backward, compared with libtorch's
// products and softmax. Operations count all keys, including those that causal attention masks.

#include "bench/case.h"
#include "mixtape.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

struct Attention {
  const char* name;
  int64_t batch, heads, queries, width;
  bool causal, full;
};
constexpr Attention sizes[] = {
    {"gpt_char", 12, 4, 64, 32, true, false},
    {"gpt2_256", 1, 12, 256, 64, true, false},
    {"gpt2_1024", 1, 12, 1024, 64, true, true},
    {"bert_128", 8, 12, 128, 64, false, false},
};

void declare() {
#ifdef MIXTAPE_TORCH
  on_threads(peers::set_threads);
#endif
  for (Attention a : sizes) {
    if (a.full && !settings().full && !settings().smoke) continue;
    if (settings().smoke) a.batch = 1, a.heads = 2, a.queries = 5, a.width = 4;
    const CaseInput x{{a.batch, a.heads, a.queries, a.width}};
    add({.name = std::string("attention/") + a.name,
         .op = "attention",
         .inputs = {x, x, x},
         .run =
             [causal = a.causal](const std::vector<Tensor>& x) {
               return scaled_dot_product_attention(x[0], x[1], x[2], {.causal = causal});
             },
         .options = {a.causal},
         .operations = 4.0 * double(a.batch * a.heads * a.queries * a.queries * a.width)});
  }
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
