#include "dist/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/check.h"
#include "core/format.h"
#include "core/warn.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"

namespace mixtape::dist {
using namespace internal;
namespace {

using Clock = std::chrono::steady_clock;

// The first message between ranks; words follow it.
struct Greeting {
  int64_t kind, step, number, bytes;
  uint64_t words;
};
constexpr size_t greeting_size = sizeof(Greeting) + Exchange::most_words * sizeof(double);

Greeting greeting_of(const Place& place, int64_t bytes, size_t words) {
  return {int64_t(place.kind), place.step, place.number, bytes, words};
}

// Transfers of a rank with all others.
template <class Make>
std::vector<Transfer> with_others(const Exchange& exchange, Make make) {
  std::vector<Transfer> transfers;
  // Begins behind this rank, so that not all send to the same one first.
  for (int i = 1; i < exchange.size(); ++i)
    transfers.push_back(make((exchange.rank() + i) % exchange.size()));
  return transfers;
}

char* bytes_of(const Tensor& t) { return static_cast<char*>(t.host()); }
size_t byte_count(const Tensor& t) { return size_t(t.numel()) * size_of(t.dtype()); }

}  // namespace

std::string Place::to_string() const {
  switch (kind) {
    case Kind::Bucket:
      return fmt::format("bucket {} of step {}", number, step);
    case Kind::Sum:
      return "a sum";
    case Kind::Gather:
      return "a gather";
    case Kind::Broadcast:
      return "a broadcast";
    case Kind::Barrier:
      return "a barrier";
    case Kind::End:
      break;
  }
  return "the end of its World";
}

Exchange::Exchange(std::unique_ptr<Engine> engine, double timeout)
    : engine_(std::move(engine)),
      rank_(engine_->rank()),
      size_(engine_->size()),
      timeout_(timeout),
      thread_([this] { work(); }) {}

Exchange::~Exchange() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  given_.notify_one();
  thread_.join();
}

void Exchange::abandon(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    then_ = std::move(then);
    abandoned_ = true;
  }
  given_.notify_one();
}

void Exchange::Job::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return is_ended_; });
  if (error_) std::rethrow_exception(error_);
}

std::shared_ptr<Exchange::Job> Exchange::submit(std::function<void()> work) {
  auto job = std::make_shared<Job>();
  job->work_ = std::move(work);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
  }
  given_.notify_one();
  return job;
}

void Exchange::work() {
  const kernels::cpu::ThreadLimit one_thread(1);  // the pool is for the network
  std::unique_lock lock(mutex_);
  for (;;) {
    given_.wait(lock, [&] { return ending_ || abandoned_ || !jobs_.empty(); });
    if (jobs_.empty() || abandoned_) break;
    const std::shared_ptr<Job> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    try {
      if (error_) std::rethrow_exception(error_);
      job->work_();
    } catch (...) {
      error_ = std::current_exception();
    }
    {
      const std::lock_guard ended(job->mutex_);
      job->is_ended_ = true;
      job->error_ = error_;
      if (!error_) job->work_ = {};  // else transfers may be under way to memory that it holds
    }
    job->ended_.notify_all();
    lock.lock();
  }
  if (abandoned_ && then_) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::seconds(5));
    then_();
  }
}

std::unique_ptr<Request> Exchange::start(std::span<const Transfer> sends,
                                         std::span<const Transfer> receives) {
  for (const Transfer& t : sends) bytes_sent_ += t.bytes;
  return engine_->start(sends, receives);
}

// Yields first, since the others are seldom far, then sleeps, to leave the core to the network.
void Exchange::wait(Request& request, const Place& place) {
  const Clock::time_point begin = Clock::now();
  bool has_warned = false;
  for (int64_t polls = 0; !request.done(); ++polls) {
    check(!abandoned_, "rank {} of {} leaves", rank_, size_);
    if (polls < 200) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(polls / 20, 200)));
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited < timeout_ / 10) continue;
    std::vector<int> ranks = request.missing();
    std::ranges::sort(ranks);
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    const std::string of = place.contents.empty() ? "" : fmt::format(" ({})", place.contents);
    const std::string text =
        fmt::format("rank {} of {} {} {:.3g} s in {}{} for rank{} {}", rank_, size_,
                    waited < timeout_ ? "has waited" : "waited", waited, place.to_string(), of,
                    ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
    check(waited < timeout_, "{}", text);
    if (!std::exchange(has_warned, true)) warn(text);
  }
}

void Exchange::check_places(const Place& place, const std::vector<char>& greetings) const {
  Greeting own, other;
  std::memcpy(&own, &greetings[size_t(rank_) * greeting_size], sizeof own);
  for (int r = 0; r < size_; ++r) {
    std::memcpy(&other, &greetings[size_t(r) * greeting_size], sizeof other);
    const Place there{Place::Kind(other.kind), other.step, other.number};
    check(own.kind == other.kind && own.step == other.step && own.number == other.number,
          "ranks have run apart: rank {} is in {}, rank {} in {}", r, there.to_string(), rank_,
          place.to_string());
    check(own.bytes == other.bytes, "in {} rank {} has {} bytes, but rank {} {}", place.to_string(),
          r, other.bytes, rank_, own.bytes);
    check(own.words == other.words, "in {} rank {} has {} numbers beside, but rank {} {}",
          place.to_string(), r, other.words, rank_, own.words);
  }
}

std::vector<std::vector<double>> Exchange::meet(const Place& place, std::span<const double> words) {
  return sum(place, Tensor(), 1, Tensor(), words);
}

std::vector<std::vector<double>> Exchange::sum(const Place& place, const Tensor& part, double by,
                                               const Tensor& result,
                                               std::span<const double> words) {
  check(words.size() <= most_words, "at most {} numbers may ride along, got {}", most_words,
        words.size());
  const size_t piece = part ? byte_count(part) / size_t(size_) : 0;
  const int64_t elements = part ? part.numel() / size_ : 0;
  std::vector<char> greetings(size_t(size_) * greeting_size);
  const auto greeting = [&](int r) { return &greetings[size_t(r) * greeting_size]; };
  const Greeting own = greeting_of(place, int64_t(piece), words.size());
  std::memcpy(greeting(rank_), &own, sizeof own);
  std::memcpy(greeting(rank_) + sizeof own, words.data(), words.size_bytes());
  const size_t greeted = sizeof own + words.size_bytes();
  const auto met =
      start(with_others(*this, [&](int r) { return Transfer{r, greeting(rank_), greeted}; }),
            with_others(*this, [&](int r) { return Transfer{r, greeting(r), greeting_size}; }));
  wait(*met, place);
  check_places(place, greetings);
  if (part) {
    const Tensor parts({size_, elements}, part.dtype(), Device::cpu());
    const auto row = [&](int r) { return bytes_of(parts) + size_t(r) * piece; };
    const auto of_part = [&](int r) { return bytes_of(part) + size_t(r) * piece; };
    std::memcpy(row(rank_), of_part(rank_), piece);
    const auto sent =
        start(with_others(*this, [&](int r) { return Transfer{r, of_part(r), piece}; }),
              with_others(*this, [&](int r) { return Transfer{r, row(r), piece}; }));
    wait(*sent, place);
    kernels::sum_parts(Device::cpu(), parts, by,
                       result.with_layout(Layout({elements}, {1}, rank_ * elements)));
    share_pieces(place, result);
  }
  std::vector<std::vector<double>> all(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    all[size_t(r)].resize(words.size());
    std::memcpy(all[size_t(r)].data(), greeting(r) + sizeof own, words.size_bytes());
  }
  return all;
}

void Exchange::share_pieces(const Place& place, const Tensor& x) {
  const size_t piece = byte_count(x) / size_t(size_);
  const auto of = [&](int r) { return bytes_of(x) + size_t(r) * piece; };
  const auto shared =
      start(with_others(*this, [&](int r) { return Transfer{r, of(rank_), piece}; }),
            with_others(*this, [&](int r) { return Transfer{r, of(r), piece}; }));
  wait(*shared, place);
  x.storage()->bump_version();
}

Tensor Exchange::gather(const Place& place, const Tensor& x) {
  meet(place, std::vector<double>{double(byte_count(x))});
  Shape shape{size_};
  for (const int64_t n : x.shape()) shape.push_back(n);
  const Tensor all(shape, x.dtype(), Device::cpu());
  std::memcpy(bytes_of(all) + size_t(rank_) * byte_count(x), bytes_of(x), byte_count(x));
  share_pieces(place, all);
  return all;
}

void Exchange::broadcast(const Place& place, const Tensor& x, int from) {
  const size_t piece = byte_count(x) / size_t(size_);
  meet(place);
  std::unique_ptr<Request> sent;
  if (rank_ == from) {
    sent = start(
        with_others(*this,
                    [&](int r) { return Transfer{r, bytes_of(x) + size_t(r) * piece, piece}; }),
        {});
  } else {
    const Transfer own{from, bytes_of(x) + size_t(rank_) * piece, piece};
    sent = start({}, {&own, 1});
  }
  wait(*sent, place);
  share_pieces(place, x);
}

}  // namespace mixtape::dist
