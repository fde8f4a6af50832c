#include "dist/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/check.h"
#include "core/format.h"
#include "core/stream.h"
#include "core/thread_state.h"
#include "core/warn.h"
#include "kernels/common/sum_tree.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"

namespace mixtape::dist {
using namespace internal;
namespace {

using Clock = std::chrono::steady_clock;

// The first message between ranks; its words follow.
struct Greeting {
  int64_t kind, step, number, bytes;
  uint64_t words;
};
constexpr size_t greeting_size = sizeof(Greeting) + Exchange::most_words * sizeof(double);

// The transfers of a rank with all others.
template <class Make>
std::vector<Transfer> with_others(const Exchange& exchange, Make make) {
  std::vector<Transfer> transfers;
  for (const int r : Group{0, 1, exchange.size()}.others(exchange.rank()))
    transfers.push_back(make(r));
  return transfers;
}

// The bytes of t, to be read (or, after begin_write(), written) in the order of this thread's
// stream.
char* bytes_of(const Tensor& t) {
  t.storage()->touch();
  return static_cast<char*>(t.raw());
}

Transfer transfer_of(const Tensor& x, const Range& range, int rank) {
  const size_t size = size_of(x.dtype());
  return {rank, bytes_of(x) + size_t(range.begin) * size, size_t(range.size()) * size};
}

}  // namespace

std::string Place::to_string() const {
  const auto of_numbers = [&](std::string what) {
    if (number > 0 && 0 <= step && step <= int64_t(f8_e8m0))
      what += fmt::format(" of {} number{} of {}", number, number == 1 ? "" : "s", DType(step));
    return what;
  };
  switch (kind) {
    case Kind::Bucket:
      return fmt::format("bucket {} of step {}", number, step);
    case Kind::Step:
      return fmt::format("the optimizer's step {}", step);
    case Kind::Sum:
      return of_numbers("a sum");
    case Kind::Gather:
      return of_numbers("a gather");
    case Kind::Broadcast:
      return of_numbers("a broadcast");
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
      ranks_of_node_(size_),
      timeout_(timeout),
      process_(getpid()),
      thread_([this] { work(); }) {}

Exchange::~Exchange() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  given_.notify_one();
  thread_.join();
  for (const UnderWay& t : under_way_) late_.insert(late_.end(), t.memory.begin(), t.memory.end());
}

void Exchange::add(const std::function<std::unique_ptr<Engine>(Engine& host)>& make) {
  run([&] { on_device_ = make(*engine_); });
}

void Exchange::add_levels(const std::vector<std::string>& machines) {
  size_t n = 1;  // the number of ranks on the first machine
  while (n < machines.size() && machines[n] == machines[0]) ++n;
  if (machines[0].empty() || (n & (n - 1)) != 0 || machines.size() % n != 0) return;
  for (size_t r = 0; r < machines.size(); ++r)
    for (size_t s = 0; s < machines.size(); s += n)
      if ((machines[r] == machines[s]) != (r / n == s / n)) return;
  run([&] { ranks_of_node_ = int(n); });
}

Device Exchange::exchanges(Device device) const {
  if (!on_device_ || device.is_host()) return Device::cpu();
  check(device == on_device_->device(),
        "rank {} of {} exchanges what is on {}, but a tensor is on {}", rank_, size_,
        on_device_->device(), device);
  return device;
}

bool Exchange::is_in_job() const {
  return std::this_thread::get_id() == thread_.get_id() && !has_let_go_;
}

bool Exchange::is_of_this_process() const { return getpid() == process_; }

void Exchange::at_loss(std::function<void(const std::string& text)> then) {
  const std::lock_guard lock(mutex_);
  at_loss_ = std::move(then);
}

// The reason why this rank cannot go on, or "".
std::string Exchange::loss() const {
  const auto ended = peers_ ? peers_->ended() : std::vector<int>();
  if (!ended.empty())
    return fmt::format("rank {} of {} lost rank {}: its process has ended", rank_, size_,
                       fmt::join(ended, ", "));
  return engine_->was_aborted() ? "another rank has ended all" : "";
}

void Exchange::abandon(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    then_ = std::move(then);
    abandoned_ = true;
  }
  given_.notify_one();
}

void Exchange::end_all() noexcept {
  constexpr auto patience = std::chrono::seconds(1);
  {
    std::unique_lock lock(mutex_);
    abandoned_ = true;
    given_.notify_one();
    if (!let_go_.wait_for(lock, patience, [&] { return has_let_go_; })) return;
  }
  if (ends_all_.exchange(true)) {
    std::this_thread::sleep_for(patience);  // another thread ends the process
    return;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // lets printed text come first
  if (on_device_) on_device_->abort(1);
  engine_->abort(1);
}

std::string Exchange::error() {
  const std::lock_guard lock(mutex_);
  try {
    if (error_) std::rethrow_exception(error_);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception";
  }
  return "";
}

void Exchange::Job::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return is_ended_; });
  if (error_) std::rethrow_exception(error_);
}

std::shared_ptr<Exchange::Job> Exchange::submit(std::function<void()> work) {
  internal::check_no_capture("ranks exchange in each step, and a replay would not");
  check(is_of_this_process(),
        "a World belongs to the process that made it, not to one forked later");
  auto job = std::make_shared<Job>();
  job->work_ = std::move(work);
  {
    const std::lock_guard lock(mutex_);
    check(!abandoned_, "rank {} of {} has left its World", rank_, size_);
    jobs_.push_back(job);
  }
  given_.notify_one();
  return job;
}

void Exchange::work() {
  const kernels::cpu::ThreadLimit one_thread(1);  // leaves the pool to the training
  std::unique_lock lock(mutex_);
  for (;;) {
    idle(lock, 1e9, [&] { return ending_ || abandoned_ || !jobs_.empty(); });
    if (jobs_.empty()) break;
    run_next(lock);
  }
  has_let_go_ = true;
  let_go_.notify_all();
  if (!abandoned_ || !then_) return;
  if (idle(lock, 3, [&] { return ending_; })) return;
  lock.unlock();
  then_();
}

bool Exchange::idle(std::unique_lock<std::mutex>& lock, double seconds,
                    const std::function<bool()>& ready) {
  constexpr double now_and_then = 0.2;
  for (double waited = 0; waited < seconds; waited += now_and_then) {
    if (given_.wait_for(lock, std::chrono::duration<double>(now_and_then), ready)) return true;
    const std::string text = at_loss_ ? loss() : "";
    if (text.empty()) continue;
    has_let_go_ = true;
    lock.unlock();
    at_loss_(text);
    lock.lock();
  }
  return false;
}

void Exchange::run_next(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  std::exception_ptr error = error_;
  if (!error) {
    lock.unlock();
    try {
      check(!abandoned_, "rank {} of {} leaves", rank_, size_);
      job->work_();
      settle();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
  }
  {
    const std::lock_guard ended(job->mutex_);
    job->is_ended_ = true;
    job->error_ = error;
    job->work_ = {};
  }
  job->ended_.notify_all();
}

void Exchange::transfer(const Place& place, Device device, std::span<const Transfer> sends,
                        std::span<const Transfer> receives, std::vector<Tensor> memory) {
  for (const Transfer& t : sends) bytes_sent_ += t.bytes;
  messages_sent_ += sends.size();
  UnderWay& one = under_way_.emplace_back(UnderWay{place, std::move(memory), nullptr});
  one.request = (device.is_host() ? engine_ : on_device_)->start(sends, receives);
  wait(*one.request, &Request::is_queued, place);
  if (device.is_host()) under_way_.pop_back();
}

void Exchange::settle() {
  for (const UnderWay& one : under_way_) wait(*one.request, &Request::done, one.place);
  under_way_.clear();
}

// Yields first, since other ranks are seldom far behind, then sleeps, to leave the core to the
// training.
void Exchange::wait(Request& request, bool (Request::*until)(), const Place& place) const {
  const Clock::time_point begin = Clock::now();
  const std::string where =
      place.to_string() + (place.contents.empty() ? "" : fmt::format(" ({})", place.contents));
  bool has_warned = false;
  for (int64_t polls = 0; !(request.*until)(); ++polls) {
    check(!abandoned_, "rank {} of {} leaves", rank_, size_);
    if (polls < 200) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(polls / 20, 200)));
    const auto lost = [&](std::vector<int> ranks, const char* what) {
      // At the end, ranks that have sent everything may leave.
      if (const auto missing = request.missing(); place.kind == Place::Kind::End)
        std::erase_if(ranks, [&](int r) { return !std::ranges::count(missing, r); });
      // Its last bytes may have arrived meanwhile.
      if (!ranks.empty() && !(request.*until)())
        fail("rank {} of {} lost rank {} in {}: its {} has ended", rank_, size_,
             fmt::join(ranks, ", "), where, what);
    };
    if (peers_) lost(peers_->ended(), "process");
    lost(request.lost(), "connection");
    const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
    if (waited < timeout_ / 10) continue;
    std::vector<int> ranks = request.missing();
    std::ranges::sort(ranks);
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    const std::string text =
        fmt::format("rank {} of {} {} {:.3g} s in {} for rank{} {}", rank_, size_,
                    waited < timeout_ ? "has waited" : "waited", std::min(waited, timeout_), where,
                    ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
    check(waited < timeout_, "{}", text);
    if (!std::exchange(has_warned, true)) warn(text);
  }
}

void Exchange::check_places(const Place& place, const char* greetings) const {
  Greeting own, other;
  std::memcpy(&own, greetings + size_t(rank_) * greeting_size, sizeof own);
  for (int r = 0; r < size_; ++r) {
    std::memcpy(&other, greetings + size_t(r) * greeting_size, sizeof other);
    check(other.words <= most_words, "rank {} has sent something other than a greeting", r);
    const Place there{Place::Kind(other.kind), other.step, other.number};
    check(own.kind == other.kind && own.step == other.step && own.number == other.number,
          "ranks are out of step: rank {} is in {}, rank {} in {}", r, there.to_string(), rank_,
          place.to_string());
    check(own.bytes == other.bytes, "in {} rank {} has {} bytes, but rank {} {}", place.to_string(),
          r, other.bytes, rank_, own.bytes);
  }
}

std::vector<std::vector<double>> Exchange::meet(const Place& place, std::span<const double> words,
                                                size_t bytes) {
  check(words.size() <= most_words, "at most {} numbers may ride along, got {}", most_words,
        words.size());
  const Tensor greetings({size_, int64_t(greeting_size)}, u8, Device::cpu());
  const auto greeting = [&](int r) { return bytes_of(greetings) + size_t(r) * greeting_size; };
  const Greeting own{int64_t(place.kind), place.step, place.number, int64_t(bytes), words.size()};
  std::memcpy(greeting(rank_), &own, sizeof own);
  if (!words.empty()) std::memcpy(greeting(rank_) + sizeof own, words.data(), words.size_bytes());
  const size_t greeted = sizeof own + words.size_bytes();
  transfer(place, Device::cpu(),
           with_others(*this, [&](int r) { return Transfer{r, greeting(rank_), greeted}; }),
           with_others(*this, [&](int r) { return Transfer{r, greeting(r), greeting_size}; }),
           {greetings});
  check_places(place, greeting(0));
  std::vector<std::vector<double>> all(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    Greeting of_rank;
    std::memcpy(&of_rank, greeting(r), sizeof of_rank);
    if (of_rank.words == 0) continue;
    all[size_t(r)].resize(of_rank.words);
    std::memcpy(all[size_t(r)].data(), greeting(r) + sizeof of_rank,
                of_rank.words * sizeof(double));
  }
  return all;
}

std::vector<double> Exchange::total(const std::vector<std::vector<double>>& words) {
  size_t most = 0;
  for (const std::vector<double>& of_rank : words) most = std::max(most, of_rank.size());
  std::vector<double> totals(most);
  for (size_t i = 0; i < most; ++i)
    totals[i] = kernels::sum_tree<double>(int64_t(words.size()), [&](int64_t r) {
      return i < words[size_t(r)].size() ? words[size_t(r)][i] : 0;
    });
  return totals;
}

Cut Exchange::equal_pieces(int64_t elements) const {
  Cut cut;
  for (int r = 0; r <= size_; ++r) cut.push_back(elements / size_ * r);
  return cut;
}

std::vector<std::vector<double>> Exchange::sum(const Place& place, const Tensor& part, double by,
                                               const Tensor& result,
                                               std::span<const double> words) {
  const Cut cut = equal_pieces(part.numel());
  const int64_t own = cut[1];
  auto all = sum_piece(place, part, cut, by,
                       result.with_layout(Layout({own}).at_offset(rank_ * own)), words);
  share_pieces(place, {{result, cut}});
  return all;
}

std::vector<std::vector<double>> Exchange::sum_piece(const Place& place, const Tensor& part,
                                                     const Cut& cut, double by, const Tensor& piece,
                                                     std::span<const double> words) {
  auto all = meet(place, words, part.nbytes());
  const Levels levels{rank_, size_, ranks_of_node_, cut};
  const auto like = [&](int r) { return levels.pieces_like(r); };
  if (levels.nodes() == 1) {
    add_up(place, part, levels.node(), like, by, piece);
    return all;
  }
  // Sums of nodes are wide, so that the result is rounded once.
  const DType wide = part.dtype() == f64 ? f64 : f32;
  const Cut column = levels.column();
  const Levels of_column{levels.across().index(rank_), levels.nodes(), 1, column};
  const Tensor of_node({column.back()}, wide, part.device());
  const Tensor sum = piece.dtype() == wide ? piece : Tensor(piece.shape(), wide, part.device());
  add_up(place, part, levels.node(), like, 1, of_node);
  add_up(
      place, of_node, levels.across(),
      [&](int r) { return std::vector{of_column.piece(levels.across().index(r))}; }, by, sum);
  if (piece.dtype() != wide) kernels::convert(piece.device(), sum, piece);
  return all;
}

void Exchange::add_up(const Place& place, const Tensor& x, const Group& group, const Ranges& of,
                      double by, const Tensor& y) {
  const Device device = x.device();
  const Tensor parts({group.count, y.numel()}, x.dtype(), device);
  std::vector<Transfer> sends, own, receives;
  for (const Range& range : of(rank_)) own.push_back(transfer_of(x, range, rank_));
  // Rank r's values of this rank's ranges form a row.
  const auto into_row = [&](int r, auto&& give) {
    int64_t at = group.index(r) * y.numel();
    for (const Range& range : of(rank_)) {
      give(transfer_of(parts, {at, at + range.size()}, r));
      at += range.size();
    }
  };
  into_row(rank_, [&, i = 0u](const Transfer& to) mutable {
    copy_bytes(to.data, device, own[i++].data, device, to.bytes);
  });
  for (const int r : group.others(rank_)) {
    for (const Range& range : of(r)) sends.push_back(transfer_of(x, range, r));
    into_row(r, [&](const Transfer& to) { receives.push_back(to); });
  }
  transfer(place, device, sends, receives, {x, parts});
  kernels::sum_parts(device, parts, by, y);
}

void Exchange::share_pieces(const Place& place, const Divided& all) {
  const Levels levels{rank_, size_, ranks_of_node_, all[0].second};
  if (levels.nodes() > 1) pass_on(place, all, levels.across(), &Levels::own_piece);
  pass_on(place, all, levels.node(), &Levels::pieces_like);
  for (const auto& [x, cut] : all) x.storage()->bump_version();
}

void Exchange::pass_on(const Place& place, const Divided& all, const Group& group,
                       std::vector<Range> (Levels::*of)(int rank) const) {
  std::vector<Transfer> sends, receives;
  std::vector<Tensor> memory;
  for (const auto& [x, cut] : all) {
    x.storage()->begin_write();
    const Levels levels{rank_, size_, ranks_of_node_, cut};
    for (const int r : group.others(rank_)) {
      for (const Range& range : (levels.*of)(rank_)) sends.push_back(transfer_of(x, range, r));
      for (const Range& range : (levels.*of)(r)) receives.push_back(transfer_of(x, range, r));
    }
    memory.push_back(x);
  }
  transfer(place, memory[0].device(), sends, receives, memory);
}

Tensor Exchange::gather(const Place& place, const Tensor& x) {
  meet(place, {}, x.nbytes());
  const Tensor all(joined({size_}, x.shape()), x.dtype(), x.device());
  copy_bytes(bytes_of(all) + size_t(rank_) * x.nbytes(), x.device(), bytes_of(x), x.device(),
             x.nbytes());
  share_pieces(place, {{all, equal_pieces(all.numel())}});
  return all;
}

void Exchange::broadcast(const Place& place, const Tensor& x, int from) {
  const Cut cut = equal_pieces(x.numel());
  const Levels levels{rank_, size_, ranks_of_node_, cut};
  meet(place, {}, x.nbytes());
  if (rank_ == from) {
    transfer(place, x.device(),
             with_others(*this, [&](int r) { return transfer_of(x, levels.piece(r), r); }), {},
             {x});
  } else {
    x.storage()->begin_write();
    const Transfer own = transfer_of(x, levels.piece(rank_), from);
    transfer(place, x.device(), {}, {&own, 1}, {x});
  }
  share_pieces(place, {{x, cut}});
}

}  // namespace mixtape::dist
