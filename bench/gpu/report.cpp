#include "bench/gpu/report.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/runtime.h"
#include "core/stream.h"

namespace mixtape::bench {
namespace {

double rate(const Figure& f) { return f.work / (f.ours.median * 1e-3); }

nlohmann::json to_json(const Timing& t) {
  return {{"median_ms", t.median}, {"low_ms", t.low}, {"high_ms", t.high}};
}

}  // namespace

double distance(const Tensor& x, const Tensor& y) {
  const NoGrad off;
  const Tensor a = x.to(Device::cpu()).to(f64), b = y.to(Device::cpu()).to(f64);
  check(a.shape() == b.shape(), "a result of shape {} instead of {}", a.shape(), b.shape());
  const double difference = sum(square(sub(a, b))).item(), size = sum(square(b)).item();
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

Report::Report(const Settings& settings) : settings(settings) {
  if (settings.smoke) return;
  const runtime::Properties& p = runtime::cuda().properties(gpu.index);
  fmt::print("{}, compute capability {}.{}, {} multiprocessors, {:.0f} GiB\n", p.name, p.major,
             p.minor, p.multiprocessors, double(p.memory) / double(1 << 30));
  fmt::print("{:<44}{:>10}{:>8}{:>14}{:>8}{:>8}{:>9}\n", "", "ms", "spread", "rate", "of copy",
             "of peer", "error");
}

bool Report::wants(const std::string& name) const {
  return settings.filter.empty() ||
         std::ranges::any_of(settings.filter, [&](const std::string& part) {
           return name.find(part) != std::string::npos;
         });
}

void Report::take(const std::string& name, const std::function<void(Figure&)>& make) {
  if (!wants(name)) return;
  if (std::chrono::steady_clock::now() - start_ > std::chrono::duration<double>(settings.limit)) {
    left_out_.push_back(name);
    return;
  }
  Figure f{.name = name};
  try {
    make(f);
    if (!(f.error <= f.tolerance))
      f.wrong.push_back(fmt::format("an error of {:.2g}, above {:.2g}", f.error, f.tolerance));
  } catch (const std::exception& e) {
    const std::string said = e.what();
    f.wrong.push_back(said.substr(0, said.find('\n')));
  }
  print(f);
  figures_.push_back(std::move(f));
  empty_cache(gpu);  // frees all memory for the next case
}

std::vector<Timing> Report::time(const std::vector<Call>& calls) const {
  std::vector<int64_t> done(calls.size()), count(calls.size(), 1);
  const auto stretch = [&](size_t which) {
    auto first = std::make_unique<runtime::Event>(gpu);
    for (int64_t i = 0; i < count[which]; ++i) calls[which](done[which]++);
    return std::pair(std::move(first), std::make_unique<runtime::Event>(gpu));
  };
  for (size_t c = 0; c < calls.size(); ++c) {
    stretch(c);
    if (settings.smoke) continue;
    count[c] = 3;
    stretch(c);
    const auto [first, last] = stretch(c);
    const double each = first->milliseconds_until(*last) / 3;
    count[c] = std::clamp<int64_t>(int64_t(std::ceil(settings.min_time / each)), 1, 1000);
  }
  std::vector<Timing> result(calls.size());
  if (settings.smoke) {
    synchronize(gpu);
    return result;
  }
  // Nothing waits in between, which keeps the device busy.
  std::vector<std::vector<decltype(stretch(0))>> stretches(calls.size());
  for (int r = 0; r < settings.repeats; ++r)
    for (size_t c = 0; c < calls.size(); ++c) stretches[c].push_back(stretch(c));
  for (size_t c = 0; c < calls.size(); ++c) {
    std::vector<double> ms;
    for (const auto& [first, last] : stretches[c])
      ms.push_back(first->milliseconds_until(*last) / double(count[c]));
    std::ranges::sort(ms);
    const size_t n = ms.size();
    result[c] = {(ms[(n - 1) / 2] + ms[n / 2]) / 2, ms[n / 4], ms[n - 1 - n / 4]};
  }
  return result;
}

int64_t Report::sets(double bytes) const {
  constexpr double cache = 256e6;  // several times the largest cache so far
  return settings.smoke ? 1 : std::clamp<int64_t>(int64_t(std::ceil(cache / bytes)), 2, 32);
}

void Report::print(const Figure& f) const {
  std::string line = fmt::format("{:<44}", f.name);
  if (!f.wrong.empty()) {
    line += fmt::format("  WRONG: {}", fmt::join(f.wrong, "; "));
  } else if (settings.smoke) {
    line += "  ok";
  } else {
    const double spread = (f.ours.high - f.ours.low) / f.ours.median;
    line += fmt::format("{:>10.4f}{:>6.1f} %", f.ours.median, 100 * spread);
    if (f.kind == Figure::Kind::Bytes)
      line += fmt::format("{:>9.0f} GB/s", rate(f) * 1e-9);
    else if (f.kind == Figure::Kind::Operations)
      line += fmt::format("{:>7.1f} TFLOP/s", rate(f) * 1e-12);
    else
      line += fmt::format("{:>14}", "");
    const bool compared = f.kind == Figure::Kind::Bytes && copy_rate_ > 0;
    line +=
        compared ? fmt::format("{:>6.0f} %", 100 * rate(f) / copy_rate_) : fmt::format("{:>8}", "");
    line += f.peer ? fmt::format("{:>7.2f}x", f.peer->median / f.ours.median)
                   : fmt::format("{:>8}", "");
    line += fmt::format("{:>9.1e}", f.error);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);  // prints lines immediately
}

int Report::finish(const std::string& command) const {
  const auto wrong =
      std::ranges::count_if(figures_, [](const Figure& f) { return !f.wrong.empty(); });
  fmt::print("{} measured, {} wrong", figures_.size(), wrong);
  if (!left_out_.empty()) fmt::print(", {} left out for lack of time", left_out_.size());
  fmt::print("\n");
  if (settings.json.empty()) return int(wrong);

  const runtime::Properties& p = runtime::cuda().properties(gpu.index);
  nlohmann::json all = {
      {"device",
       {{"name", p.name},
        {"capability", fmt::format("{}.{}", p.major, p.minor)},
        {"multiprocessors", p.multiprocessors},
        {"memory_bytes", p.memory}}},
      {"date", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
      {"command", command},
      {"repeats", settings.repeats},
      {"min_time_ms", settings.min_time},
      {"smoke", settings.smoke},
      {"peer", peer_},
      {"copy_bytes_per_second", copy_rate_},
      {"left_out", left_out_},
      {"figures", nlohmann::json::array()},
  };
  constexpr const char* kinds[] = {"bytes", "operations", "step"};
  for (const Figure& f : figures_) {
    nlohmann::json one = {{"name", f.name},   {"kind", kinds[int(f.kind)]}, {"work", f.work},
                          {"error", f.error}, {"tolerance", f.tolerance},   {"wrong", f.wrong}};
    if (f.ours.median > 0) one["ours"] = to_json(f.ours);
    if (f.ours.median > 0 && f.kind != Figure::Kind::Step) one["per_second"] = rate(f);
    if (f.peer) one["peer"] = to_json(*f.peer), one["of_peer"] = f.peer->median / f.ours.median;
    all["figures"].push_back(one);
  }
  std::ofstream file(settings.json);
  file << all.dump(1) << "\n";
  check(bool(file.flush()), "cannot write {}", settings.json);
  return int(wrong);
}

}  // namespace mixtape::bench
