// Training steps in each precision, compared with libtorch's of the same networks in f32 and with
// CPU autocast to bf16, and with PyTorch's, eager and compiled (--torch=COMMAND). bench_memory
// measures memory, without peers.

#include "bench/peers/process.h"
#include "bench/steps.h"
#include "kernels/cpu/loops/parallel.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape::bench {
namespace {

// The network and its sizes, as script/bench_torch.py wants them.
template <class... Sizes>
std::string arguments(const char* net, const Sizes&... sizes) {
  std::string all = net;
  ((all += ' ' + std::to_string(sizes)), ...);
  return all;
}
std::string arguments(const MlpSize& s) {
  return arguments("mlp", s.batch, s.in, s.hidden, s.classes);
}
std::string arguments(const CnnSize& s) {
  return arguments("cnn", s.conv1, s.conv2, s.padding, s.flat, s.batch);
}
std::string arguments(const LstmSize& s) {
  return arguments("lstm", s.batch, s.context, s.vocabulary, s.embedding, s.hidden, s.layers);
}
std::string arguments(const GptSize& s) {
  return arguments("gpt", s.batch, s.context, s.vocabulary, s.layers, s.heads, s.width);
}
std::string arguments(const VitSize& s) {
  return arguments("vit", s.batch, s.side, s.patch, s.layers, s.heads, s.width, s.classes);
}
std::string arguments(const ResNetSize& s) {
  return arguments("resnet", s.batch, s.side, s.depth, s.width, s.classes);
}
std::string arguments(const UnetSize& s) {
  return arguments("unet", s.batch, s.side, s.width, s.classes);
}

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
  if (!settings().torch.empty())
    for (const DType low : {f32, bf16})
      for (const std::string peer : {"eager", "compiled"})
        variants.push_back({low, peer, size.operations(), {}, [=] {
                              return peers::process(settings().torch + ' ' + arguments(size) +
                                                    " --dtype " + std::string(mixtape::name(low)) +
                                                    " --threads " +
                                                    std::to_string(kernels::cpu::num_threads()) +
                                                    (peer == "compiled" ? " --compile" : ""));
                            }});
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
  add("unet_128", smoke ? UnetSize{2, 32, 2, 2} : unet_128);
  add("gpt2_256", smoke ? GptSize{2, 4, 5, 1, 2, 8} : gpt2_256);
  if (!smoke) add("gpt2_1024", gpt2_1024);
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) { return mixtape::bench::run(argc, argv, mixtape::bench::declare); }
