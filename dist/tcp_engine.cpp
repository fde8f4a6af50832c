#include "dist/tcp_engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "core/check.h"
#include "core/parse.h"
#include "dist/peers.h"
#include "dist/socket.h"

namespace mixtape::dist {
namespace {

const char* variable(const char* name) {
  const char* const text = std::getenv(name);
  check(text && *text,
        "the engine tcp needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, "
        "which torchrun sets: there is no {}",
        name);
  return text;
}

int number(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  const auto value = internal::parse_number<int>(text);
  check(value && least <= *value && *value <= most, "{} must be a number from {} to {}, got \"{}\"",
        name, least, most, text);
  return *value;
}

// The message with which a process introduces itself when it connects.
struct Hello {
  static constexpr uint64_t right = 0x6d69787461706531;
  uint64_t magic = right;
  uint64_t machine = 0;
  int32_t size = 0, rank = 0, port = 0;  // it listens at `port`
};
// The address of a rank, which rank 0 tells all.
struct Entry {
  Address address;
  uint64_t machine = 0;
};

// Connects all ranks with each other.
class Meeting {
 public:
  Meeting(int rank, int size, double timeout)
      : rank_(rank), size_(size), timeout_(timeout), deadline_(timeout) {
    const std::string own = Peers::machine();
    own_.machine = std::hash<std::string>()(own.empty() ? std::to_string(getpid()) : own);
    own_.size = size;
    own_.rank = rank;
    sockets.resize(size_t(size));
    entries.resize(size_t(size));
    entries[size_t(rank)].machine = own_.machine;
  }

  // Rank 0 learns where the others listen, and tells them.
  void gather(const std::string& listens_at, int port) {
    const Listener listener(listens_at, port, size_);
    while (!accept_from(listener, 1)) {
    }
    for (int r = 1; r < size_; ++r)
      check(sockets[size_t(r)].send(entries.data(), entries.size() * sizeof(Entry), deadline_),
            "rank 0 of {} lost rank {} while they connected", size_, r);
  }

  // Other ranks ask rank 0, then connect; of two ranks, the higher one connects.
  void join(const std::string& host, const std::string& listens_at, int port) {
    const Listener listener(listens_at, 0, size_);
    own_.port = listener.port();
    Socket& first = sockets[0];
    std::string problem;
    while (!first.connect(host, port, problem)) {
      check(!deadline_.has_passed(),
            "rank {} of {} tried for {:.3g} s to reach rank 0 at {}:{}: {}", rank_, size_, timeout_,
            host, port, problem);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    // Rank 0 answers once all have come.
    check(first.send(&own_, sizeof own_, deadline_) &&
              first.receive(entries.data(), entries.size() * sizeof(Entry), deadline_),
          "rank {} of {} waited {:.3g} s at most for an answer of rank 0 at {}:{}: it has ended, "
          "waits for others, or something else listens there",
          rank_, size_, timeout_, host, port);
    for (int r = 1; r < rank_; ++r) {
      Address there = entries[size_t(r)].address;
      // It is on rank 0's machine, which this rank knows by another name.
      if (there.is_loopback()) there = first.peer().at(there.port());
      check(sockets[size_t(r)].connect(there, problem) &&
                sockets[size_t(r)].send(&own_, sizeof own_, deadline_),
            "rank {} of {} cannot reach rank {} at {}: {}", rank_, size_, r, there.to_string(),
            problem);
    }
    while (!accept_from(listener, rank_ + 1)) {
    }
  }

  std::vector<Socket> sockets;  // by rank; none for this one
  std::vector<Entry> entries;

 private:
  // Accepts a connection. Returns true once all ranks from `first` on have come.
  bool accept_from(const Listener& listener, int first) {
    std::vector<int> missing;
    for (int r = first; r < size_; ++r)
      if (!sockets[size_t(r)]) missing.push_back(r);
    if (missing.empty()) return true;
    Socket socket = listener.accept(deadline_);
    check(static_cast<bool>(socket),
          "rank {} of {} waited {:.3g} s at port {} for rank{} {} to connect", rank_, size_,
          timeout_, listener.port(), missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
    Hello hello;
    // Others may connect, too, and say something else or nothing.
    if (!socket.receive(&hello, sizeof hello, Deadline(std::min(timeout_, 5.0))) ||
        hello.magic != Hello::right)
      return false;
    check(hello.size == size_, "WORLD_SIZE is {} in rank {}, but {} in rank {}", size_, rank_,
          hello.size, hello.rank);
    check(first <= hello.rank && hello.rank < size_ && !sockets[size_t(hello.rank)],
          "two processes say that they are rank {}", hello.rank);
    entries[size_t(hello.rank)] = {socket.peer().at(hello.port), hello.machine};
    sockets[size_t(hello.rank)] = std::move(socket);
    return false;
  }

  const int rank_, size_;
  const double timeout_;
  const Deadline deadline_;
  Hello own_;
};

// A transfer, which begins with its number of bytes, since a receive may be longer than the send.
struct Way {
  Transfer transfer;
  uint64_t bytes;
  size_t at = 0;  // bytes moved, including those of the number
  bool is_done = false;
};
using Ways = std::deque<std::shared_ptr<Way>>;

class TcpEngine final : public Engine {
 public:
  TcpEngine(int rank, Meeting&& meeting) : rank_(rank) {
    for (Socket& socket : meeting.sockets) peers_.push_back({std::move(socket), {}, {}});
    for (int r = 0; r < rank; ++r)
      local_rank_ += meeting.entries[size_t(r)].machine == meeting.entries[size_t(rank)].machine;
    if (std::getenv("LOCAL_RANK")) local_rank_ = number("LOCAL_RANK", 0, size() - 1);
  }

  std::string name() const override { return "TCP"; }
  int rank() const override { return rank_; }
  int size() const override { return int(peers_.size()); }
  int local_rank() const override { return local_rank_; }
  std::unique_ptr<Request> start(std::span<const Transfer> sends,
                                 std::span<const Transfer> receives) override {
    auto request = std::make_unique<OnSockets>(*this);
    const auto queue = [&](const Transfer& t, uint64_t bytes, Ways& ways) {
      request->ways.push_back(ways.emplace_back(std::make_shared<Way>(Way{t, bytes})));
    };
    for (const Transfer& t : receives) queue(t, 0, peers_[size_t(t.rank)].in);
    for (const Transfer& t : sends) queue(t, t.bytes, peers_[size_t(t.rank)].out);
    return request;
  }
  void abort(int) noexcept override {
    for (Peer& peer : peers_)
      if (peer.socket) peer.socket.reset();
  }
  bool was_aborted() const override {
    return std::ranges::any_of(peers_,
                               [](const Peer& p) { return p.socket && p.socket.has_ended(); });
  }

 private:
  struct Peer {
    Socket socket;
    Ways out, in;
    bool is_lost = false;
  };

  struct OnSockets final : Request {
    explicit OnSockets(TcpEngine& engine) : engine(engine) {}
    bool done() override {
      for (Peer& peer : engine.peers_) {
        while (!peer.is_lost && !peer.out.empty() && engine.move_out(peer)) {
        }
        while (!peer.is_lost && !peer.in.empty() && engine.move_in(peer)) {
        }
      }
      return std::ranges::all_of(ways, &Way::is_done, [](const auto& w) -> Way& { return *w; });
    }
    std::vector<int> missing() const override {
      return ranks([](const Peer&) { return true; });
    }
    std::vector<int> lost() const override { return ranks(&Peer::is_lost); }

    // The ranks whose transfers are under way.
    template <class Which>
    std::vector<int> ranks(Which which) const {
      std::vector<int> found;
      for (const auto& way : ways)
        if (!way->is_done && std::invoke(which, engine.peers_[size_t(way->transfer.rank)]))
          found.push_back(way->transfer.rank);
      return found;
    }
    TcpEngine& engine;
    std::vector<std::shared_ptr<Way>> ways;
  };

  // Each moves some bytes of the first waiting transfer, and returns false if none can move now.
  static bool move_out(Peer& peer) {
    Way& way = *peer.out.front();
    iovec parts[] = {{&way.bytes, sizeof way.bytes}, {way.transfer.data, way.transfer.bytes}};
    if (!advance(peer, way, parts, true)) return false;
    if (way.at == sizeof way.bytes + way.bytes) finish(peer.out);
    return true;
  }
  bool move_in(Peer& peer) const {
    Way& way = *peer.in.front();
    iovec parts[] = {{&way.bytes, sizeof way.bytes}, {way.transfer.data, 0}};
    if (way.at >= sizeof way.bytes)
      parts[1].iov_len = size_t(way.bytes);  // not the next transfer's
    if (!advance(peer, way, parts, false)) return false;
    if (way.at < sizeof way.bytes) return true;
    check(way.bytes <= way.transfer.bytes, "TCP: rank {} sent {} bytes where rank {} expects {}",
          way.transfer.rank, way.bytes, rank_, way.transfer.bytes);
    if (way.at == sizeof way.bytes + way.bytes) finish(peer.in);
    return true;
  }
  static bool advance(Peer& peer, Way& way, iovec (&parts)[2], bool sends) {
    size_t skipped = way.at;
    for (iovec& part : parts) {
      const size_t n = std::min(skipped, part.iov_len);
      part = {static_cast<char*>(part.iov_base) + n, part.iov_len - n};
      skipped -= n;
    }
    const ssize_t moved = peer.socket.move(parts, sends);
    peer.is_lost = moved < 0;
    way.at += size_t(std::max<ssize_t>(0, moved));
    return moved > 0;
  }
  static void finish(Ways& ways) {
    ways.front()->is_done = true;
    ways.pop_front();
  }

  const int rank_;
  int local_rank_ = 0;
  std::vector<Peer> peers_;
};

}  // namespace

std::unique_ptr<Engine> open_tcp(double timeout) {
  constexpr int most_ranks = 1 << 16;
  const int size = number("WORLD_SIZE", 1, most_ranks), rank = number("RANK", 0, size - 1);
  Meeting meeting(rank, size, timeout);
  if (size > 1) {
    const std::string host = variable("MASTER_ADDR");
    const int port = number("MASTER_PORT", 1, 65534) + 1;
    // Rank 0 may know its own machine as localhost even if there are several.
    const char* const here = std::getenv("LOCAL_WORLD_SIZE");
    const std::string listens_at = here && here == std::to_string(size) ? host : "";
    if (rank == 0)
      meeting.gather(listens_at, port);
    else
      meeting.join(host, listens_at, port);
  }
  return std::make_unique<TcpEngine>(rank, std::move(meeting));
}

}  // namespace mixtape::dist
