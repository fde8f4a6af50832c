// Whole training steps in each precision, beside libtorch's of the same networks: f32, and its CPU
// autocast to bf16. What memory they take is measured by bench_memory, which holds no peer.

#include "bench/steps.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

template <class Size>
void add(const std::string& name, Size size) {
  if (settings().smoke) size.batch = 2;
  std::vector<Variant> variants;
  for (const DType low : {f32, f16, bf16})
    variants.push_back({low, "", size.operations(), {}, [=] { return training(size, low); }});
#ifdef MIXTAPE_TORCH
  for (const DType low : {f32, bf16})
    variants.push_back({low, "libtorch", size.operations(), {}, [=] {
                          return peers::training(size, low == bf16);
                        }});
#endif
  compare("train/" + name, variants);
}

void declare() {
#ifdef MIXTAPE_TORCH
  on_threads(peers::set_threads);
#endif
  add("mlp", mlp);
  add("cnn", wide_cnn);
  add("demo", demo_cnn);
  add("lstm", lstm);
  add("gpt", gpt);
  const int64_t batch = pick(32, 2);
  std::vector<Variant> variants;
  for (const DType low : {f32, f16, bf16})
    variants.push_back(
        {low, "", resnet20_operations(batch), {}, [=] { return training_resnet20(batch, low); }});
  compare("train/resnet20", variants);
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
