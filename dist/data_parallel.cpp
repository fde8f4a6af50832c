#include "dist/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "amp/recipe.h"
#include "amp/scaler.h"
#include "autograd/autograd_meta.h"
#include "autograd/ops.h"
#include "core/check.h"
#include "core/dispatch.h"
#include "core/format.h"
#include "core/philox.h"
#include "core/scope.h"
#include "dist/bucket.h"
#include "dist/division.h"
#include "dist/exchange.h"

namespace mixtape::dist {
using namespace internal;

Tensor detail::rows(const Tensor& x, int64_t start, int64_t stop) {
  return x ? narrow(x, 0, start, stop - start) : Tensor();
}

// A step: gradients arrive during backward() and go into buckets. In the last chunk, each full
// bucket travels, and when that backward() returns, all have their sums.
struct DataParallel::Impl final : Observer {
  struct Parameter {
    Tensor tensor;
    std::string name;
    bool trains = false;  // as it was when buckets were laid out, like `dtype`, the gradient's
    DType dtype = f32;
    std::shared_ptr<Division> division = {};  // if it is divided
    size_t bucket = 0, place = 0;
    bool arrived = false;   // in this chunk
    bool had_grad = false;  // in this step
    LossScaleTag tag = {};
  };
  struct Buffer {
    Tensor tensor, start;
    size_t place = 0;  // if it is a float
  };
  struct Loss {  // a scaled one
    int id;
    Tensor nonfinite;
  };

  Impl(Exchange* exchange, const Part& part, const DataParallelOptions& options,
       nn::ModuleBase& module)
      : exchange(exchange), part(part), options(options), module(module) {
    for (auto& [name, t] : module.named_parameters()) {
      if (!by_id.emplace(t.id(), parameters.size()).second) continue;  // tied
      parameters.push_back({t, name});
      order.insert(order.begin(), order.size());  // backward goes from the last to the first
    }
    for (auto& [name, t] : module.named_buffers()) buffers.push_back({t, {}});
    lay_buckets();
  }

  // --- buckets ---

  bool is_laid() const {
    return std::ranges::all_of(parameters, [](const Parameter& p) {
      return p.division == division_of(p.tensor) &&
             (p.division || p.trains == p.tensor.is_leaf()) &&
             (!p.trains || p.dtype == p.tensor.grad_dtype());
    });
  }

  Bucket::Options bucket_of(DType dtype, Device device) const {
    // Sums of several 16-bit chunks are f32, and travel as f32.
    const DType travels = options.wire && dtype != f64              ? *options.wire
                          : part.own_chunks() > 1 && is_half(dtype) ? f32
                                                                    : dtype;
    return {part, dtype, travels, device,
            options.scale == Scale::Mean ? 1.0 / double(part.chunks) : 1.0};
  }

  void lay_buckets() {
    buckets.clear();
    std::map<std::pair<DType, size_t>, std::shared_ptr<Bucket>> open;  // by dtype and device
    std::map<std::pair<const Division*, size_t>, std::shared_ptr<Bucket>> of_divisions;
    std::string layout;
    for (const size_t i : order) {
      Parameter& p = parameters[i];
      p.division = division_of(p.tensor);
      p.trains = p.tensor.is_leaf() || p.division;  // a divided parameter keeps its place
      p.dtype = p.tensor.grad_dtype();
      layout += fmt::format("{} {} of {}{}; ", p.name, p.tensor.shape(),
                            p.trains ? p.dtype : p.tensor.dtype(),
                            p.division ? ", in pieces"
                            : p.trains ? ""
                                       : ", frozen");
      if (p.division) lay_divided(p, of_divisions);
      if (!p.trains || p.division) continue;
      std::shared_ptr<Bucket>& bucket = open[{p.dtype, p.tensor.device().slot()}];
      if (bucket &&
          are_enough(bucket->tensors(), bucket->bytes(), bucket == buckets[0], options.bucket_mb))
        bucket = {};
      if (!bucket)
        bucket = buckets.emplace_back(
            std::make_shared<Bucket>(exchange, bucket_of(p.dtype, p.tensor.device())));
      p.bucket = size_t(std::ranges::find(buckets, bucket) - buckets.begin());
      p.place = bucket->add(p.tensor.shape(), p.name);
    }
    for (const Buffer& b : buffers)
      layout += fmt::format("a buffer {} of {}; ", b.tensor.shape(), b.tensor.dtype());
    if (exchange) World::current()->check_alike(layout, "has other parameters or buffers");
    check(!buckets.empty(), "no parameter trains");
    sort_buckets();
    for (const auto& bucket : buckets) bucket->allocate();
    lay_averages();
    next = 0;
  }

  // All parameters of a division's buffer are in one bucket, which is cut like the buffer.
  void lay_divided(
      Parameter& p,
      std::map<std::pair<const Division*, size_t>, std::shared_ptr<Bucket>>& of_divisions) {
    const Division::Item& own = p.division->item(p.tensor);
    std::shared_ptr<Bucket>& bucket = of_divisions[{p.division.get(), own.buffer}];
    if (!bucket) {
      const Division::Buffer& buffer = p.division->buffer(own.buffer);
      Bucket::Options of_bucket = bucket_of(p.dtype, p.tensor.device());
      of_bucket.cut = buffer.joints;
      bucket = buckets.emplace_back(std::make_shared<Bucket>(exchange, of_bucket));
      for (const size_t i : buffer.items) {
        const Tensor& t = p.division->item(i).whole;
        const auto known = by_id.find(t.id());
        check(known != by_id.end(),
              "Shards divide a parameter of shape {} together with this model's, but the model "
              "does not have it",
              t.shape());
        bucket->add(t.shape(), parameters[known->second].name);
      }
    }
    p.bucket = size_t(std::ranges::find(buckets, bucket) - buckets.begin());
    p.place = own.place;
  }

  // Puts buckets in the order in which they become full.
  void sort_buckets() {
    std::vector<size_t> last(buckets.size()), sorted, place(buckets.size());
    for (size_t i = 0; i < order.size(); ++i)
      if (parameters[order[i]].trains) last[parameters[order[i]].bucket] = i;
    for (size_t i = 0; i < buckets.size(); ++i) sorted.push_back(i);
    std::ranges::sort(sorted, {}, [&](size_t i) { return last[i]; });
    std::vector<std::shared_ptr<Bucket>> all;
    for (size_t i = 0; i < sorted.size(); ++i) {
      all.push_back(buckets[sorted[i]]);
      place[sorted[i]] = i;
    }
    buckets = std::move(all);
    for (Parameter& p : parameters) p.bucket = place[p.trains ? p.bucket : 0];
  }

  // Integer buffers are counters, which every chunk leaves the same.
  void lay_averages() {
    averages = {};
    if (std::ranges::any_of(buffers, [](const Buffer& b) { return is_float(b.tensor.dtype()); })) {
      averages = std::make_shared<Bucket>(
          exchange,
          Bucket::Options{part, f64, f64, buffers[0].tensor.device(), 1.0 / double(part.chunks)});
      for (Buffer& b : buffers)
        if (is_float(b.tensor.dtype()))
          b.place = averages->add(b.tensor.shape(), "a running statistic");
      averages->allocate();
    }
  }

  // After the first step, lays out the buckets in the order in which gradients arrived on rank 0.
  void follow_arrivals() {
    if (step != 1 || !exchange || buckets.size() == 1) return;
    for (size_t i = 0; i < parameters.size(); ++i)  // those without a gradient come last
      if (std::ranges::find(arrivals, i) == arrivals.end()) arrivals.push_back(i);
    const Tensor numbers({int64_t(arrivals.size())}, i64, Device::cpu());
    std::ranges::copy(arrivals, numbers.data<int64_t>());
    World::current()->broadcast({numbers});
    for (size_t i = 0; i < order.size(); ++i) order[i] = size_t(numbers.data<int64_t>()[i]);
    wants_laying = true;
  }

  // --- a step ---

  void begin_step() {
    check(!broken,
          "an exception interrupted an earlier step, which ranks cannot finish: make a new "
          "DataParallel");
    if (begun) return;
    begun = true;
    if (!is_laid() || std::exchange(wants_laying, false)) lay_buckets();
  }

  void scaled_loss(int id, const Tensor& nonfinite) override {
    pass_losses.push_back({id, nonfinite});
  }

  void after_accumulate(const Node& leaf, const Tensor&) override {
    const auto found = by_id.find(leaf.leaf().id());
    if (found == by_id.end()) return;
    reached = true;
    if (held) return;
    begin_step();
    Parameter& p = parameters[found->second];
    if (!p.trains) return;
    check(!in_chunks || !chunk_done,
          "a second backward() in one chunk: the gradients of the first, such as {}'s, have been "
          "added up: one backward() a chunk, or Hold",
          p.name);
    if (step == 0 && std::ranges::find(arrivals, found->second) == arrivals.end())
      arrivals.push_back(found->second);
    p.arrived = true;
    take(p);
    send_full();
  }

  // Moves the gradient of a parameter into its bucket.
  void take(Parameter& p) {
    const Tensor grad = p.tensor.grad();
    if (grad) {
      p.had_grad = true;
      p.tag.add(p.tensor.autograd_meta().loss_scale());
    }
    buckets[p.bucket]->put(p.place, grad);
    p.tensor.set_grad({});
  }

  // Sends full buckets in order of number, which is the same on all ranks. The last bucket takes
  // along which losses were not finite, if a recipe keeps a history of this step, and the program's
  // numbers, since by then all of these are known.
  void send_full() {
    for (; next < buckets.size() && buckets[next]->is_full(); ++next) {
      std::vector<double> words(buckets[next]->tensors());
      for (const Parameter& p : parameters)
        if (p.trains && p.bucket == next) words[p.place] = p.had_grad;
      if (next + 1 < buckets.size()) {
        buckets[next]->send(step, int64_t(next), std::move(words));
        continue;
      }
      join_losses();
      const size_t first_flag = words.size();
      words.resize(first_flag + losses.size());
      words.push_back(recipes.begun());
      add_numbers(words);
      buckets[next]->send(step, int64_t(next), std::move(words), first_flag, losses);
    }
  }

  // The sums of the program's numbers over this rank's chunks.
  void add_numbers(std::vector<double>& words) {
    numbers.resize(size_t(part.own_chunks()));  // the last chunks may have none
    const std::vector<double> totals = Exchange::total(numbers);
    words.insert(words.end(), totals.begin(), totals.end());
    numbers.clear();
  }

  void join_losses() {
    for (const Loss& l : pass_losses) {
      check(0 <= l.id && size_t(l.id) < losses.size(),
            "losses of ranks must have ids from 0 to {}, got {}", losses.size() - 1, l.id);
      losses[size_t(l.id)].push_back(l.nonfinite);
    }
    pass_losses.clear();
  }

  // Throws Error if a parameter joined the module later: it is in no bucket, and its values may
  // differ between ranks.
  void check_parameters() const {
    for (const auto& [name, t] : module.named_parameters())
      check(
          by_id.contains(t.id()),
          "{} joined the model after its DataParallel, which does not exchange it: make a new one",
          name);
  }

  bool exchanges(const Tensor& leaf) const override { return by_id.contains(leaf.id()); }
  double joined_scale(double found) override {  // the smallest; all ranks calibrate together
    if (exchange)
      for (const Tensor& scale : World::current()->gather(from({found}, {}, f64)))
        found = std::min(found, scale.item());
    return found;
  }
  void after_backward(bool whole) override {
    if (whole && chunk == 0) check_parameters();  // once a step
    if (whole && reached && held) join_losses();
    if (whole && reached && !held) end_chunk();
    broken = broken || (!whole && reached && !held);
    pass_losses.clear();
    reached = false;
  }

  // Ends a chunk, all of whose gradients have arrived; missing ones count as zeros.
  void end_chunk() {
    begin_step();
    join_losses();
    for (Parameter& p : parameters)
      if (p.trains && !std::exchange(p.arrived, false)) take(p);
    chunk_done = true;
    for (const Buffer& b : buffers)
      if (is_float(b.tensor.dtype())) averages->put(b.place, b.tensor);
    if (++chunk < part.own_chunks()) return;
    chunk = 0;
    send_full();
    if (averages) averages->send(step, int64_t(buckets.size()), {});
    end_step();
  }

  void end_step() {
    std::vector<std::vector<double>> totals;
    std::vector<Tensor> summed;
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& bucket : buckets) totals.push_back(bucket->receive());
    if (part.ranks > 1) waited = {begin, std::chrono::steady_clock::now()};
    for (Parameter& p : parameters) {
      if (!p.trains) continue;
      const Tensor& own = p.division ? p.division->item(p.tensor).piece : p.tensor;
      if (totals[p.bucket][p.place] > 0) {  // otherwise no rank had a gradient
        own.set_grad(buckets[p.bucket]->sum(p.place).with_layout(Layout(own.shape())));
        own.autograd_meta().set_loss_scale(p.tag);
        summed.push_back(p.tensor);
      } else if (p.division) {
        own.set_grad({});
      }
      p.had_grad = false;
      p.tag = {};
    }
    const std::vector<double>& last = totals.back();
    const size_t first_flag = buckets.back()->tensors();
    for (size_t id = 0; id < losses.size(); ++id) {
      if (last[first_flag + id] > 0)
        for (const Tensor& flag : losses[id]) flag.set(0, 1);
      losses[id].clear();
    }
    const size_t of_recipes = first_flag + losses.size();
    sums.assign(last.begin() + ptrdiff_t(of_recipes + 1), last.end());
    if (averages) {
      averages->receive();
      for (const Buffer& b : buffers)
        if (is_float(b.tensor.dtype())) detail::write(averages->sum(b.place), b.tensor);
    }
    if (last[of_recipes] > 0)
      recipes.end([&](const std::string& own) {
        return exchange ? World::current()->gather(own) : std::vector{own};
      });
    ++step;
    next = 0;
    begun = false;
    follow_arrivals();
    for (const Tensor& leaf : summed) mixtape::detail::run_accumulated_hooks(leaf);
  }

  Exchange* const exchange;
  const Part part;
  const DataParallelOptions options;
  nn::ModuleBase& module;
  std::vector<Parameter> parameters;
  std::unordered_map<const void*, size_t> by_id;
  std::vector<size_t> order, arrivals;
  std::vector<Buffer> buffers;
  std::vector<std::shared_ptr<Bucket>> buckets;
  std::shared_ptr<Bucket> averages;  // of buffers
  std::vector<Loss> pass_losses;
  Bucket::Flags losses = Bucket::Flags(8);   // of a step, by id
  std::vector<std::vector<double>> numbers;  // of send_along(), by chunk
  std::vector<double> sums;                  // their sums in the last step
  Wait waited;
  size_t next = 0;  // the bucket to send
  int64_t step = 0, chunk = 0;
  int held = 0;
  bool begun = false, reached = false, wants_laying = false;
  bool in_chunks = false, chunk_done = false;
  bool broken = false;  // a step began and did not end
  amp::Recipe::Steps recipes;
  const Observe observe{*this};
};

DataParallel::DataParallel(nn::ModuleBase& module, const DataParallelOptions& options)
    : part_([&] {
        const World* const world = World::current();
        return world ? world->part(options.chunks)
                     : Part{0, 1, std::max<int64_t>(1, options.chunks)};
      }()),
      options_(options) {
  const Scope scope("DataParallel");
  check(options.chunks >= 0, "chunks must be >= 0, got {}", options.chunks);
  check(options.bucket_mb > 0, "bucket_mb must be > 0, got {}", options.bucket_mb);
  check(!options.wire || is_half(*options.wire), "wire must be f16 or bf16, got {}",
        options.wire.value_or(f32));
  if (part_.chunks == 1) return;
  const World* const world = World::current();
  impl_ = std::make_unique<Impl>(world ? world->exchange().get() : nullptr, part_, options, module);
  if (part_.ranks == 1) return;
  std::vector<Tensor> all = module.parameters();
  for (const auto& [name, t] : module.named_buffers()) all.push_back(t);
  const Tensor stream({2}, i64, Device::cpu());
  int64_t* const random = stream.data<int64_t>();
  random[0] = int64_t(generator().seed());
  random[1] = int64_t(generator().offset());
  all.push_back(stream);
  world->broadcast(all);
  generator() = RandomGenerator(uint64_t(random[0]));
  generator().set_offset(uint64_t(random[1]));
}

DataParallel::~DataParallel() = default;

void DataParallel::send_along(const std::vector<double>& numbers) {
  if (!impl_) {
    sums_ = numbers;
    return;
  }
  check(numbers.size() <= 256, "at most 256 numbers may travel along, got {}", numbers.size());
  impl_->numbers.resize(size_t(impl_->chunk) + 1);
  impl_->numbers.back() = numbers;
}

const std::vector<double>& DataParallel::sums() const { return impl_ ? impl_->sums : sums_; }

DataParallel::Wait DataParallel::waited() const { return impl_ ? impl_->waited : Wait{}; }
uint64_t DataParallel::bytes_sent() const {
  return impl_ && impl_->exchange ? impl_->exchange->bytes_sent() : 0;
}

void DataParallel::begin_chunks(int64_t examples, int64_t of_step) {
  const Scope scope("chunks");
  check(!seed_, "chunks() within chunks()");
  check(of_step > 0 || part_.ranks == 1,
        "the batch does not say how many examples all ranks have in this step: a DataLoader with "
        "{{.part = parallel.part()}} does");
  examples_ = of_step > 0 ? of_step : examples;
  const int64_t own = part_.end(examples_) - part_.begin(examples_);
  check(examples == own, "rank {} of {} has {} of {} examples of the step, not {}", part_.rank,
        part_.ranks, own, examples_, examples);
  count_ = examples_ < part_.chunks ? 0 : part_.own_chunks();
  if (!impl_) return;
  check(impl_->chunk == 0 && !impl_->held, "chunks() in the middle of a step");
  for (const Impl::Parameter& p : impl_->parameters)
    check(part_.own_chunks() == 1 || !p.tensor.has_grad(),
          "{} has a gradient already: call zero_grad() before the chunks of a step", p.name);
  for (Impl::Buffer& b : impl_->buffers)
    if (part_.own_chunks() > 1) b.start = b.tensor.clone();
  impl_->in_chunks = true;
  const RandomGenerator at = generator();
  step_seed_ = Philox::seed_for(Philox::Purpose::chunks, at.seed(), at.offset());
  generator().reserve(1);
}

double DataParallel::begin_chunk(int64_t chunk) {
  if (!impl_) return 1;
  impl_->chunk_done = false;
  const int64_t examples = part_.begin(chunk + 1, examples_) - part_.begin(chunk, examples_);
  if (chunk > part_.first_chunk())
    for (const Impl::Buffer& b : impl_->buffers) detail::write(b.start, b.tensor);
  RandomGenerator stream(step_seed_);
  stream.set_offset(uint64_t(chunk) << 40);
  seed_.emplace(stream);
  if (options_.scale == Scale::Sum) return 1;
  return double(examples * part_.chunks) / double(examples_);
}

void DataParallel::skip_chunk(amp::GradScaler* scaler) {
  if (!impl_) return;
  if (!scaler || !scaler->enabled()) return impl_->end_chunk();
  impl_->reached = true;  // so that the end of this pass ends the chunk
  const Tensor zero = zeros({}, f32, impl_->parameters[0].tensor.device());
  scaler->scale(zero.set_requires_grad()).backward();
}

void DataParallel::end_chunk() {
  seed_.reset();
  check(!impl_ || impl_->chunk_done, "a chunk ended without a backward() that reaches a parameter");
}

void DataParallel::end_chunks() noexcept {
  seed_.reset();
  if (!impl_) return;
  impl_->in_chunks = impl_->chunk_done = false;
  impl_->broken = impl_->broken || impl_->begun || impl_->chunk > 0;
}

Hold::Hold(DataParallel& parallel) : parallel_(parallel) {
  if (parallel.impl_) ++parallel.impl_->held;
}
Hold::~Hold() {
  if (parallel_.impl_) --parallel_.impl_->held;
}

}  // namespace mixtape::dist
