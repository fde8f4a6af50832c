#pragma once
// Damaged copies of valid files, for readers of hostile files.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "core/random.h"
#include "tests/support/errors.h"

namespace mixtape::test {

// Calls parse(bytes) with copies of a valid file in which up to three places were changed, deleted
// or inserted (from `insert`, or any byte if that is empty). It must return or throw Error. Damage
// to the data alone goes unnoticed, but more than half of the copies must be rejected.
// MIXTAPE_DAMAGED=N makes N copies in place of 4000, and prints what became of them.
template <class Parse>
void survive_damage(const std::string& valid, std::string_view insert, const Parse& parse) {
  const char* const wanted = std::getenv("MIXTAPE_DAMAGED");
  const int files = wanted ? std::atoi(wanted) : 4000;
  RandomGenerator random(7);
  int refused = 0;
  double slowest = 0;  // in ms
  for (int i = 0; i < files; ++i) {
    std::string file = valid;
    for (int64_t n = 1 + random.below(3); n > 0 && !file.empty(); --n) {
      const size_t at = size_t(random.below(int64_t(file.size())));
      const char any = char(random.next());
      switch (random.below(4)) {
        case 0:
          file[at] = any;
          break;
        case 1:
          file.erase(at, size_t(1 + random.below(8)));
          break;
        case 2:
          file.insert(at, 1, insert.empty() ? any : insert[size_t(uint8_t(any)) % insert.size()]);
          break;
        default:
          file[at] = char(file[at] ^ (1 << random.below(8)));
          break;
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      parse(std::as_bytes(std::span(file)));
    } catch (const Error&) {
      ++refused;
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    slowest = std::max(slowest, took.count());
  }
  if (wanted) {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    fmt::print("{} damaged files: {} refused, {} read, slowest {:.1f} ms, peak memory {} KiB\n",
               files, refused, files - refused, slowest, used.ru_maxrss);
  }
  EXPECT_GT(refused, files / 2);
  EXPECT_LT(refused, files);
}

// Calls parse(bytes) with every truncation of a valid file; each must throw Error.
template <class Parse>
void refuse_truncation(const std::string& valid, const Parse& parse) {
  for (size_t n = 0; n < valid.size(); ++n)
    EXPECT_NE(error([&] { parse(std::as_bytes(std::span(valid.data(), n))); }), "no error") << n;
}

}  // namespace mixtape::test
