// Training steps in each precision, compared with libtorch's of the same networks in f32 and with
// CPU autocast to bf16. bench_memory measures memory, without peers.

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
