// Shared by all fuzzers: inputs of megabytes, which must take neither seconds nor gigabytes.
// Linear readers take milliseconds; a quadratic one hangs, which libFuzzer reports as a timeout.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

// libFuzzer's defaults, for options that the command line does not set.
std::string limits[] = {"-max_len=8000000", "-len_control=0", "-timeout=10", "-rss_limit_mb=2048"};

}  // namespace

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static std::vector<char*> all(*argv, *argv + *argc);
  for (std::string& limit : limits) {
    const std::string name = limit.substr(0, limit.find('=') + 1);
    if (std::none_of(*argv, *argv + *argc,
                     [&](const char* a) { return std::string_view(a).starts_with(name); }))
      all.insert(all.begin() + 1, limit.data());  // the last one counts
  }
  all.push_back(nullptr);
  *argc = int(all.size()) - 1;
  *argv = all.data();
  return 0;
}

// One in 64 mutations repeats a part until the input is large: many tensors, columns, entries.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  std::minstd_rand random(seed);
  if (random() % 64 != 0 || size == 0 || size > 100'000)
    return LLVMFuzzerMutate(data, size, max_size);
  const size_t begin = random() % size, length = 1 + random() % std::min<size_t>(size - begin, 64);
  const size_t copies = std::min((max_size - size) / length, size_t(1) << random() % 22);
  std::memmove(data + begin + copies * length, data + begin, size - begin);
  for (size_t i = 0; i < copies; ++i)
    std::memmove(data + begin + i * length, data + begin + copies * length, length);
  return size + copies * length;
}
