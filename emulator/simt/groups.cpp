// Products of groups of four warps, and their budgets of registers.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "emulator/simt/async.h"
#include "emulator/simt/machine.h"

namespace mixtape::simt {
namespace {

constexpr int lines_of_a = 64;
// The value of the registers of a product in flight: a NaN that no product has.
constexpr uint32_t in_flight = 0xffffdead;

// The row and column of register i of a thread in its group.
int row_of(int thread, int i) { return 16 * (thread / 32) + thread % 32 / 4 + 8 * (i / 2 % 2); }
int column_of(int thread, int i) { return 8 * (i / 4) + thread % 4 * 2 + i % 2; }

bool same_call(const Product& p, const Product& q) {
  return p.type == q.type && p.n == q.n && p.a == q.a && p.b == q.b && p.add == q.add &&
         p.transposed_a == q.transposed_a && p.transposed_b == q.transposed_b;
}

}  // namespace

// Bits 0 to 13: the address, 16 to 29: lead, 32 to 45: the stride of eight rows, all in units of 16
// bytes; 49 to 51: by how many rows the swizzle begins later; 62 and 63: 1 for swizzled rows of 128
// bytes.
uint64_t operand(const void* first, bool transposed, int lead) {
  Machine& m = Machine::here();
  const size_t at = m.offset(first, 16) - m.base(m.rank());
  if (at % 16 != 0) m.fault(fmt::format("misaligned: an operand at {}, no multiple of 16", at));
  return at >> 4 | uint64_t(transposed ? lead >> 4 : 1) << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

int Async::first_of_group() const { return m_.current() / group_threads * group_threads; }

// Waits for all threads of the group at this place; the last to come does `act` for all.
template <class F>
void Async::meet_group(const char* what, SourceLocation where, const F& act) {
  use();
  const int first = first_of_group();
  if (first + group_threads > m_.all_threads())
    m_.fault(fmt::format("{} in {} outside a group of four whole warps", what, text(where)));
  Group& group = groups_[size_t(first / group_threads)];
  if (++group.arrived < group_threads) return m_.wait(State::AtGroup, where, what);
  group.arrived = 0;
  for (int t = first; t < first + group_threads; ++t) {
    const Fiber& f = m_.fiber(t);
    if (t != m_.current() && (f.barrier != what || !same(f.where, where)))
      m_.fault(fmt::format("divergent group: {} in {}, but thread {} waits at {} in {}", what,
                           text(where), t, f.barrier, text(f.where)));
  }
  act(group);
  for (int t = first; t < first + group_threads; ++t) m_.release(t);
}

void Async::multiply(const Product& product, SourceLocation where) {
  mine().product = product;
  meet_group("multiply_group", where, [&](Group& group) { start_product(group, where); });
}

void Async::group_fence() { mine().fenced = true; }
void Async::group_commit() { ++mine().committed; }

void Async::group_wait(int pending, SourceLocation where) {
  meet_group("group_wait", where, [&](Group& group) { finish_products(group, pending); });
}

void Async::start_product(Group& group, SourceLocation where) {
  const std::string who = fmt::format("multiply_group in {}: ", text(where));
  std::vector<int> threads(group_threads);
  std::iota(threads.begin(), threads.end(), first_of_group());
  const Thread& one = threads_[size_t(threads[0])];
  for (const int t : threads) {
    const Thread& other = threads_[size_t(t)];
    if (!same_call(one.product, other.product) || one.committed != other.committed)
      m_.fault(fmt::format("{}threads {} and {} of a group call it for different products", who,
                           threads[0], t));
  }
  group.where = where;
  Flight flight{one.product, one.committed, nullptr, chunks(one.product, true, who),
                chunks(one.product, false, who)};
  Order::Accesses accesses(order, threads, group.agent, uint32_t(one.committed) + 1);
  for (const auto* const operand : {&flight.a, &flight.b})
    for (const size_t at : *operand) {
      keep_off_barriers(at, 16);
      check(accesses(at, 16, false), who);
    }
  flight.sums = &sums_of(group, who);
  ++flight.sums->products;
  group.flights.push_back(std::move(flight));
}

void Async::check_registers(const Sums& sums) const {
  for (const float* const registers : sums.registers)
    for (int i = 0; i < sums.n / 2; ++i)
      if (std::bit_cast<uint32_t>(registers[i]) != in_flight)
        m_.fault("sums of a multiply_group were written before its group_wait");
}

// The sums in flight to which the group's product adds, or new ones, which take the values of the
// registers. These become NaN.
Async::Sums& Async::sums_of(Group& group, const std::string& who) {
  const Thread* const threads = &threads_[size_t(first_of_group())];
  const bool add = threads[0].product.add;
  for (const auto& sums : group.sums)
    if (sums->registers[0] == threads[0].product.d) {
      check_registers(*sums);
      if (!add) m_.fault(who + "starts new sums in registers whose product was not waited for");
      return *sums;
    }
  auto sums = std::make_unique<Sums>();
  sums->n = threads[0].product.n;
  sums->values.assign(size_t(lines_of_a * sums->n), 0.0f);
  for (int t = 0; t < group_threads; ++t) {
    if (!threads[t].fenced)
      m_.fault(fmt::format("{}no group_fence by thread {} since its sums could be touched", who,
                           first_of_group() + t));
    float* const registers = sums->registers[t] = threads[t].product.d;
    for (int i = 0; i < sums->n / 2; ++i) {
      if (add) sums->values[size_t(row_of(t, i) * sums->n + column_of(t, i))] = registers[i];
      registers[i] = std::bit_cast<float>(in_flight);
    }
  }
  return *group.sums.emplace_back(std::move(sums));
}

// The addresses of an operand's chunks of 16 bytes: two for each line or, transposed, those of each
// step of k.
std::vector<size_t> Async::chunks(const Product& p, bool of_a, const std::string& who) const {
  const uint64_t operand = of_a ? p.a : p.b;
  const bool transposed = of_a ? p.transposed_a : p.transposed_b;
  const int lines = of_a ? lines_of_a : p.n;
  const auto field = [&](int from) { return size_t(operand >> from & 0x3fff) << 4; };
  const size_t first = field(0), lead = field(16), stride = field(32);
  const auto refuse = [&](const std::string& why) {
    m_.fault(fmt::format("{}operand {} {}", who, of_a ? 'a' : 'b', why));
  };
  if (operand >> 62 != 1) refuse("is not swizzled as boxes are");
  if ((operand >> 49 & 7) != 0 || first / 128 % 8 != 0)
    refuse("begins inside eight rows of the swizzle");
  if (stride == 0 || stride % 1024 != 0)
    refuse(fmt::format("has eight rows every {} bytes, no multiple of 1024", stride));
  if (transposed ? first % 128 != 0 : first % 128 > 96)
    refuse(fmt::format("begins at byte {} of a row", first % 128));
  if (transposed && lines > 64 && (lead == 0 || lead % 1024 != 0))
    refuse(fmt::format("has 64 lines every {} bytes, no multiple of 1024", lead));
  std::vector<size_t> all;
  const int rows = transposed ? 16 : lines, per_row = transposed ? lines / 8 : 2;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < per_row; ++c) {
      const size_t part = transposed ? size_t(c / 8) * lead : 0;
      const size_t at = swizzled(first + part + size_t(r / 8) * stride + size_t(r % 8) * 128 +
                                 size_t(transposed ? c % 8 : c) * 16);
      if (at + 16 > m_.config.shared_bytes)
        refuse(
            fmt::format("reaches byte {} of {} of shared memory", at + 16, m_.config.shared_bytes));
      all.push_back(m_.base(m_.rank()) + at);
    }
  return all;
}

void Async::finish_products(Group& group, int pending) {
  const int first = first_of_group();
  const int committed = threads_[size_t(first)].committed, done = committed - pending;
  for (const Flight& f : group.flights)
    if (f.group >= committed)
      m_.fault(fmt::format("group_wait with no group_commit for multiply_group in {}",
                           text(group.where)));
  std::erase_if(group.flights, [&](const Flight& f) {
    if (f.group >= done) return false;
    make(f);
    --f.sums->products;
    return true;
  });
  bool touchable = false;
  std::erase_if(group.sums, [&](const std::unique_ptr<Sums>& sums) {
    if (sums->products > 0) return false;
    check_registers(*sums);
    for (int t = 0; t < group_threads; ++t)
      for (int i = 0; i < sums->n / 2; ++i)
        sums->registers[t][i] = sums->values[size_t(row_of(t, i) * sums->n + column_of(t, i))];
    return touchable = true;
  });
  for (int t = first; t < first + group_threads; ++t) {
    if (touchable) threads_[size_t(t)].fenced = false;
    order.learn(t, group.agent, uint32_t(std::max(done, 0)));
  }
}

// Adds the product of the operands that are now in shared memory.
void Async::make(const Flight& flight) const {
  const Product& p = flight.product;
  const int depth = p.type == Product::Tf32 ? 8 : 16, in_chunk = depth / 2, n = p.n;
  static thread_local float a[16 * lines_of_a], b[16 * 256];  // by steps of k
  const auto number = [&](const unsigned char* at) {
    uint32_t word = 0;
    std::memcpy(&word, at, size_t(16 / in_chunk));
    return p.type == Product::Half       ? halves()[word]
           : p.type == Product::BFloat16 ? float(std::bit_cast<BFloat16>(uint16_t(word)))
                                         : std::bit_cast<float>(word & ~0x1fffu);
  };
  const auto unpack = [&](const std::vector<size_t>& from, bool transposed, int lines, float* to) {
    for (size_t i = 0; i < from.size(); ++i)
      for (int e = 0; e < in_chunk; ++e) {
        const int line = transposed ? int(i) % (lines / 8) * 8 + e : int(i) / 2;
        const int k = transposed ? int(i) / (lines / 8) : int(i) % 2 * in_chunk + e;
        to[k * lines + line] = number(m_.shared() + from[i] + e * (16 / in_chunk));
      }
  };
  unpack(flight.a, p.transposed_a, lines_of_a, a);
  unpack(flight.b, p.transposed_b, n, b);
  using Four [[gnu::vector_size(16)]] = float;
  const auto load = [](const float* from) {
    Four four;
    std::memcpy(&four, from, sizeof four);
    return four;
  };
  for (int r = 0; r < lines_of_a; ++r)
    for (int c = 0; c < n; c += 8) {
      float* const sums = &flight.sums->values[size_t(r * n + c)];
      Four low = load(sums), high = load(sums + 4);
      for (int k = 0; k < depth; ++k) {
        const float x = a[k * lines_of_a + r];
        low += x * load(b + k * n + c);
        high += x * load(b + k * n + c + 4);
      }
      std::memcpy(sums, &low, sizeof low);
      std::memcpy(sums + 4, &high, sizeof high);
    }
}

// --- registers ---

// Registers of a block are dealt out at its start; a group can take what others have given back.
void Async::set_registers(int count, bool raise, SourceLocation where) {
  const char* const what = raise ? "raise_registers" : "lower_registers";
  if (count < 24 || count > 256 || count % 8 != 0)
    m_.fault(fmt::format("{} to {}, no multiple of 8 from 24 to 256", what, count));
  meet_group(what, where, [&](Group& group) {
    if (raise ? count < group.registers : count > group.registers)
      m_.fault(fmt::format("{} from {} to {}", what, group.registers, count));
    group.wanted = count;
    take_registers(int(&group - groups_.data()));
    if (!raise)
      for (int g = 0; g < int(groups_.size()); ++g) take_registers(g);
  });
  const size_t group = size_t(m_.current() / group_threads);
  while (groups_[group].wanted != 0) m_.wait(State::AtRegisters, where, what);
}

void Async::take_registers(int g) {
  Group& group = groups_[size_t(g)];
  int& free = free_registers_[size_t(m_.rank_of(g * group_threads))];
  if (group.wanted == 0 || group.wanted - group.registers > free) return;
  free -= group.wanted - group.registers;
  group.registers = group.wanted;
  group.wanted = 0;
  for (int t = g * group_threads; t < (g + 1) * group_threads; ++t)
    if (m_.fiber(t).state == State::AtRegisters) m_.release(t);
}

}  // namespace mixtape::simt
