// Reads dates as people write them: a transformer whose encoder sees "Nov 27, 2026" and whose
// decoder writes "2026-11-27", with a training loop of its own. It makes its own data.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "core/check.h"
#include "examples/command_line.h"
#include "mixtape.h"
#include "nn/more.h"
#include "train/interrupt.h"

using namespace mixtape;
using namespace std::string_view_literals;
using namespace mixtape::examples;

namespace {

constexpr std::string_view characters = "\0^ ,./-0123456789ADFJMNOSabceghilmnoprstuvy"sv;
constexpr int64_t pad = 0, begin = 1, classes = int64_t(characters.size());
constexpr int64_t read_length = 18, written_length = 10;  // "27 September, 2026", "2026-11-27"
constexpr std::array months = {"January",   "February", "March",    "April",
                               "May",       "June",     "July",     "August",
                               "September", "October",  "November", "December"};

struct Options {
  std::string date, dtype = "float32", device = "cpu";
  int64_t steps = 600, every = 100, batch_size = 64, width = 64, layers = 2, heads = 4;
  double lr = 2e-3;
  uint64_t seed = 1;
};

// Writes a text's numbers into a row of i64s, and pads it.
void encode(std::string_view text, std::span<int64_t> row) {
  check(text.size() <= row.size(), "\"{}\" is longer than {} characters", text, row.size());
  std::ranges::fill(row, pad);
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t at = text[i] ? characters.find(text[i]) : characters.npos;
    check(at > begin && at != characters.npos, "\"{}\" has a character that no date has", text);
    row[i] = int64_t(at);
  }
}
std::string decode(std::span<const int64_t> row) {
  std::string text;
  for (const int64_t c : row) text += characters[size_t(c)];
  return text;
}

// A date in one of six styles.
std::string as_people_write(std::chrono::year_month_day date, int64_t style) {
  const std::string_view month = months[unsigned(date.month()) - 1], name = month.substr(0, 3);
  const unsigned d = unsigned(date.day()), m = unsigned(date.month());
  const int y = int(date.year());
  switch (style) {
    case 0:
      return fmt::format("{} {} {}", d, month, y);
    case 1:
      return fmt::format("{} {}, {}", month, d, y);
    case 2:
      return fmt::format("{} {} {}", d, name, y);
    case 3:
      return fmt::format("{} {}, {}", name, d, y);
    case 4:
      return fmt::format("{}.{}.{}", d, m, y);
    default:
      return fmt::format("{}/{}/{}", m, d, y);
  }
}

struct Dates {
  Tensor read;     // [n, read_length]
  Tensor written;  // [n, written_length]
};
// Random dates of the years 1900 to 2099. Every tenth day is for validation alone.
Dates dates(int64_t n, bool valid, Device device) {
  using namespace std::chrono;
  constexpr sys_days first = 1900y / January / 1, last = 2099y / December / 31;
  const Tensor day = randint(0, (last - first).count() / 10, {n}), style = randint(0, 6, {n}),
               among = randint(1, 10, {n});
  const Tensor read({n, read_length}, i64, Device::cpu()),
      written({n, written_length}, i64, Device::cpu());
  for (int64_t i = 0; i < n; ++i) {
    const year_month_day date = first + days(10 * day.at<int>(i) + (valid ? 0 : among.at<int>(i)));
    encode(as_people_write(date, style.at<int64_t>(i)),
           {read.data<int64_t>() + i * read_length, size_t(read_length)});
    encode(fmt::format("{:04}-{:02}-{:02}", int(date.year()), unsigned(date.month()),
                       unsigned(date.day())),
           {written.data<int64_t>() + i * written_length, size_t(written_length)});
  }
  return {read.to(device), written.to(device)};
}

struct Translator : nn::Module<Translator> {
  nn::Embedding letters, positions;
  nn::Transformer body;
  nn::Linear out;

  explicit Translator(const Options& o)
      : letters(classes, o.width),
        positions(read_length, o.width),
        body(o.width, o.heads,
             {.encoder_layers = o.layers,
              .decoder_layers = o.layers,
              .layer = {.dim_feedforward = 4 * o.width, .dropout = 0, .batch_first = true}}),
        out(o.width, classes) {}

  // Dates [n, s] and the letters so far [n, t] -> logits of the next letters [n, t, classes].
  Tensor forward(const Tensor& read, const Tensor& written) const {
    const nn::AttentionMasks hidden{.key_padding_mask = eq(read, pad)};
    const nn::TransformerMasks masks{.src = hidden, .tgt = {.causal = true}, .memory = hidden};
    const Tensor first = full({written.size(0), 1}, begin, i64, written.device()),
                 before = narrow(cat({first, written}, 1), 1, 0, written.size(1));
    return out(body(embed(read), embed(before), masks));
  }
  // The likeliest letter after letter.
  Tensor write(const Tensor& read) const {
    const NoGrad off;
    Tensor written = full({read.size(0), written_length}, pad, i64, read.device());
    for (int64_t t = 0; t < written_length; ++t)
      written(Ellipsis, t) =
          argmax(forward(read, narrow(written, 1, 0, t + 1))(Ellipsis, t, Slice()), -1);
    return written;
  }
  MIXTAPE_FIELDS(letters, positions, body, out)

 private:
  Tensor embed(const Tensor& text) const {
    return letters(text) + positions(arange(0, text.size(1), 1, i64, text.device()));
  }
};

struct Job {
  explicit Job(const Options& given) : o(given), device(usable(o.device)), seed(o.seed) {
    if (!o.date.empty()) {
      question = Tensor({1, read_length}, i64, Device::cpu());
      encode(o.date, {question.data<int64_t>(), size_t(read_length)});
    }
    check(o.width % o.heads == 0, "--width {} is not a multiple of --heads {}", o.width, o.heads);
  }
  void run() const;

  const Options o;
  const Device device;
  const Seed seed;
  Tensor question;
};

void Job::run() const {
  Translator net(o);
  net.to(device);
  const Dates valid = dates(500, true, device);
  optim::AdamW opt(net.parameters(), {.lr = o.lr});
  optim::OneCycle schedule(opt, {.max_lr = o.lr, .total_steps = o.steps});
  amp::GradScaler scaler(low(o.dtype));
  const amp::AutocastOptions narrow_ops{.low = low(o.dtype)};
  const train::Interrupt interrupt;
  fmt::print("{} parameters; {}{}\n", net.num_parameters(), low(o.dtype), on_device(device));
  for (int64_t step = 1; step <= o.steps; ++step) {
    const auto [read, written] = dates(o.batch_size, false, device);
    opt.zero_grad();
    Tensor loss;
    {
      const amp::Autocast on(narrow_ops);
      loss = cross_entropy(flatten(net(read, written), 0, 1), flatten(written));
    }
    scaler.scale(loss).backward();
    schedule.step(scaler.step(opt));
    scaler.update();
    if (train::Interrupt::requested()) throw Interrupted("nothing was saved");
    if (step % o.every != 0 && step != o.steps) continue;
    const amp::Autocast on(narrow_ops);
    const Tensor right = all(eq(net.write(valid.read), valid.written), {1});
    fmt::print("step {:5}  loss {:.4f}  right {:5.1f} %\n", step, loss.item(),
               100 * mean(right.to(f32)).item());
    std::fflush(stdout);
  }
  const Tensor read = question ? question.to(device) : narrow(valid.read, 0, 0, 5);
  const amp::Autocast on(narrow_ops);
  const std::vector<int64_t> from = to_vector<int64_t>(read),
                             to = to_vector<int64_t>(net.write(read));
  for (size_t i = 0; i < size_t(read.size(0)); ++i) {
    std::string text = decode(std::span(from).subspan(i * read_length, read_length));
    text.resize(std::min(text.find('\0'), text.size()));
    fmt::print("{:18} -> {}\n", text,
               decode(std::span(to).subspan(i * written_length, written_length)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line("seq2seq", "Learns to read dates: an encoder and a decoder, letter by letter.");
  line.add("--date", o.date, "TEXT", "a date to read at the end (default: five of the validation)")
      .check(not_empty());
  line.add("--steps", o.steps, "N", "optimizer steps").check(count());
  line.add("--every", o.every, "N", "steps between validations").check(count());
  line.add("--batch-size", o.batch_size, "N", "dates per step").check(count());
  line.add("--width", o.width, "N", "size of the hidden vectors").check(count());
  line.add("--layers", o.layers, "N", "layers of the encoder and of the decoder").check(count());
  line.add("--heads", o.heads, "N", "attention heads").check(count());
  line.add("--lr", o.lr, "X", "highest learning rate of the one-cycle schedule").check(rate());
  line.add("--dtype", o.dtype, "NAME", "float32, float16 or bfloat16").check(precision());
  line.device(o.device);
  line.add("--seed", o.seed, "N", "of weights and dates").check(any_seed());
  return line.run(argc, argv,
                  [&] { return [job = std::make_shared<const Job>(o)] { job->run(); }; });
}
