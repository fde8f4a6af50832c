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
  add("resnet20", resnet20);
  const bool smoke = settings().smoke;
  if (!settings().full && !smoke) return;
  // Networks of the size that people train: up to seconds per step.
  add("lstm_2x512", smoke ? LstmSize{2, 3, 5, 4, 4, 2} : lstm_2x512);
  add("vit_s", smoke ? VitSize{2, 32, 16, 1, 2, 8, 5} : vit_s);
  add("resnet50", smoke ? ResNetSize{2, 64, 50, 4, 5} : resnet50);
  add("gpt2_256", smoke ? GptSize{2, 4, 5, 1, 2, 8} : gpt2_256);
  if (!smoke) add("gpt2_1024", gpt2_1024);
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
