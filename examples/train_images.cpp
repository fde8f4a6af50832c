// Trains a network of choice on an image data set, in any precision, from scratch or saved weights.

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "amp/plan.h"
#include "core/check.h"
#include "dist/world.h"
#include "examples/command_line.h"
#include "mixtape.h"
#include "nn/models/by_name.h"
#include "optim/by_name.h"
#include "train/callbacks.h"
#include "train/data/data.h"
#include "train/learner.h"
#include "train/mixing.h"
#include "train/ranks.h"
#include "train/timeline.h"

using namespace mixtape;
using namespace mixtape::examples;

namespace {

using train::transforms::compose;

struct Options {
  std::string model = "simple", dataset = "digits", dtype = "float32", device = "cpu", fine_tune,
              out = "runs/train_images", profile, optimizer = "adamw", schedule = "one_cycle";
  int64_t epochs = 10, batch_size = 64, workers = 0, steps = 20, chunks = 0, size = 0;
  int64_t rand_augment = 0;
  double lr = 1e-2, mixup = 0, cutmix = 0, plan = 0;
  bool masters = false, benchmark = false, resume = false, shards = false;
  uint64_t seed = 1;
};

// The optimizer of "name:option=number,...". Without parameters, only checks the text.
std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& text, double lr,
                                                 std::vector<Tensor> params) {
  const size_t colon = std::min(text.find(':'), text.size());
  optim::NamedOptions options = {{"lr", lr}};
  for (size_t at = colon + 1; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const size_t equals = std::min(part.find('='), part.size());
    check(0 < equals && equals < part.size(), "\"{}\" is not an option=number", part);
    const std::string name = part.substr(0, equals), value = part.substr(equals + 1);
    const std::string wrong = number(-1e12, 1e12)(value);
    check(wrong.empty(), "{}: {}", name, wrong);
    check(name != "lr", "the rate is --lr");
    options.emplace_back(name, std::stod(value));
    at = end + 1;
  }
  if (params.empty()) params = {zeros({2, 2})};
  return optim::get(text.substr(0, colon), std::move(params), options);
}

// Accepts text with which f throws no Error.
Check valid(std::function<void(const std::string&)> f) {
  return [f = std::move(f)](const std::string& text) -> std::string {
    try {
      f(text);
    } catch (const Error& e) {
      return e.what();
    }
    return {};
  };
}
Check share() { return number(1e-6, 1e6); }

bool is_large(const std::string& model) {  // for images of 224 x 224
  const auto small = {"simple", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110"};
  return std::ranges::count(small, model) == 0;
}

constexpr const char* known_models =
    "simple; resnet20, 32, 44, 56 or 110 of CIFAR;\nresnet18, 34, 50, 101 or 152, or so with "
    "_v2; vgg11,\n13, 16 or 19, or so with _bn";

void define(CommandLine& line, Options& o) {
  line.add("--model", o.model, "NAME", known_models).check(one_of(models::model_names()));
  line.add("--dataset", o.dataset, "KIND:DIR",
           "mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR\n(PNG or JPEG images, a "
           "folder for each class),\ndigits or digits:N (drawn on the spot)");
  line.add("--size", o.size, "N",
           "height and width of images from a folder, of\nrandom parts in training; default: "
           "as they are,\nbut 224 for models of ImageNet")
      .check(number<int64_t>(1, 4096));
  line.add("--dtype", o.dtype, "NAME", "float32, float16 or bfloat16").check(precision());
  line.flag("--masters", o.masters, "with float16: the whole model, and float32 master weights");
  line.add("--epochs", o.epochs, "N", "passes over the training images").check(count());
  line.add("--batch-size", o.batch_size, "N", "images per step").check(count());
  line.add("--lr", o.lr, "X", "highest learning rate").check(rate());
  line.add("--lr-schedule", o.schedule, "TEXT",
           "one_cycle, constant, linear, cosine, wsd:0.2 or\nstep:30,60,80 (times 0.1 at these "
           "epochs)")
      .check(valid([](const std::string& text) { optim::check_schedule(text); }));
  line.add("--optimizer", o.optimizer, "TEXT",
           "adamw, lamb, ..., or with options\nsgd:momentum=0.9,weight_decay=1e-4")
      .check(valid([](const std::string& text) { make_optimizer(text, 0, {}); }));
  line.add("--mixup", o.mixup, "ALPHA", "mixes images, with this parameter of Beta").check(share());
  line.add("--cutmix", o.cutmix, "ALPHA", "puts a part of an image into another").check(share());
  line.add("--rand-augment", o.rand_augment, "M", "two random changes of this strength, to 30")
      .check(number<int64_t>(1, 30));
  line.device(o.device);
  line.add("--workers", o.workers, "N", "threads that prepare batches").check(number(0L, 256L));
  line.add("--seed", o.seed, "N", "of weights, order and drawn digits").check(any_seed());
  line.add("--fine-tune", o.fine_tune, "FILE",
           "initial weights (.safetensors, .pt); the last layer\nstarts anew if the classes differ")
      .check(not_empty());
  line.add("--out", o.out, "DIR", "folder for weights, metrics.jsonl and last.ckpt")
      .check(not_empty());
  line.flag("--resume", o.resume, "continue from last.ckpt, with the same other options");
  line.share(o.chunks);
  line.flag("--shards", o.shards, "divide the optimizer's state among the processes");
  line.add("--profile", o.profile, "FILE",
           "where the time of three steps goes, for ui.perfetto.dev")
      .check(not_empty());
  line.flag("--benchmark", o.benchmark, "only measure steps, on random images");
  line.add("--plan", o.plan, "GIB",
           "only say what a step takes on such a --device,\nand the largest batch in this much "
           "memory")
      .check(number(1e-3, 1e6));
  line.add("--steps", o.steps, "N", "of the benchmark").check(count());
}

struct Images {
  train::AnyDataset train, valid;
  int64_t classes;
  train::Transform augment;
  std::optional<train::AnyDataset> plain = {};  // training images without random changes
};

// Images of a folder, of any sizes, as they are or in this size.
Images open_folder(const Options& o, const std::string& where) {
  namespace images = train::images;
  const int64_t size = o.size == 0 && is_large(o.model) ? 224 : o.size;
  const auto split = train::from_folder(
      where, {.valid_fraction = 0.2, .seed = o.seed, .min_side = 2 * size});  // crops are parts
  Images all{split.train, split.valid, int64_t(split.train.classes().size()), compose({})};
  if (size > 0) {
    std::vector<train::InputTransform> changes = {images::random_resized_crop(size),
                                                  images::random_flip()};
    if (o.rand_augment > 0)
      changes.push_back(images::rand_augment({.magnitude = int(o.rand_augment)}));
    const auto center = images::compose({images::resize(size * 8 / 7), images::center_crop(size)});
    all.train = train::Mapped(split.train, images::compose(changes));
    all.valid = train::Mapped(split.valid, center);
    all.plain = train::Mapped(split.train, center);
  }
  return all;
}

Images open(const Options& o) {
  using train::transforms::random_crop, train::transforms::random_flip;
  const std::string& dataset = o.dataset;
  const size_t colon = std::min(dataset.find(':'), dataset.size());
  const std::string kind = dataset.substr(0, colon);
  std::string where = dataset.substr(std::min(colon + 1, dataset.size()));
  const auto images = [](const auto& split, size_t classes, train::Transform augment) {
    return Images{split.train, split.valid, int64_t(classes), std::move(augment)};
  };
  if (kind == "digits") {
    if (where.empty()) where = "8000";
    const std::string wrong = count(4)(where);
    check(wrong.empty(), "--dataset digits: {}", wrong);
    const int64_t n = std::stoll(where);
    return images(train::make_digits(o.seed, n, n / 4), 10, random_crop(2));
  }
  const auto known = one_of({"mnist", "cifar10", "cifar100", "folder", "digits"});
  const std::string wrong = known(kind);
  check(wrong.empty(), "--dataset: {}", wrong);
  check(!where.empty(), "--dataset {}: no folder; {}:DIR names one", kind, kind);
  if (kind == "mnist") return images(train::load_mnist(where, 0.2), 10, random_crop(2));
  if (kind == "folder") return open_folder(o, where);
  const bool fine = kind == "cifar100";
  return images(fine ? train::load_cifar100(where) : train::load_cifar10(where), fine ? 100 : 10,
                compose({random_crop(4), random_flip()}));
}

// Loads weights and returns a message. A last layer for other classes keeps its initial weights.
std::string load_weights(nn::ModuleBase& model, const std::string& path) {
  auto weights = io::load(path).tensors;
  const std::string last = model.named_parameters().back().first;  // "fc.bias"
  const std::string head = last.substr(0, last.rfind('.') + 1);
  bool new_head = false;
  for (const auto& [name, tensor] : model.named_parameters())
    if (name.starts_with(head) && weights.contains(name))
      new_head |= weights.at(name).shape() != tensor.shape();
  if (new_head) std::erase_if(weights, [&](const auto& w) { return w.first.starts_with(head); });
  const auto report =
      of_file(path, [&] { return model.load_state_dict(weights, {.strict = !new_head}); });
  for (const std::string& name : report.missing)
    check(name.starts_with(head), "{}: \"{}\" is missing", path, name);
  check(report.unexpected.empty(), "{}: \"{}\" is not in this model", path,
        fmt::join(report.unexpected, "\", \""));
  return fmt::format(
      "loaded {} tensors from {}{}", weights.size(), path,
      new_head ? fmt::format("; {} keep their initial values", fmt::join(report.missing, " and "))
               : "");
}

void choose_precision(train::Learner& learner, const Options& o) {
  if (o.masters)
    learner.to_fp16(train::MasterOptions{});
  else
    learner.to(low(o.dtype));
}

std::string description(const Options& o, const nn::ModuleBase& model, Device device) {
  return fmt::format("{}: {} parameters, {}{}{}", o.model, model.num_parameters(), low(o.dtype),
                     o.masters ? " with f32 masters" : "", on_device(device));
}

// The input and output of a training. The constructor finds all mistakes of the user.
class Training {
 public:
  Training(const Options& given, io::Metadata options)
      : o(given),
        settings(std::move(options)),
        device(usable(o.device)),
        from(checkpoint(o.out, o.resume, settings)),
        seed(o.seed),
        images(open(o)) {
    const train::PixelStats stats = train::pixel_stats(images.plain.value_or(images.train));
    const auto normalize = train::transforms::normalize(stats.mean, stats.std);
    data.train.emplace(images.train,
                       train::DataLoaderOptions{.batch_size = o.batch_size,
                                                .shuffle = true,
                                                .drop_last = images.train->size() >= o.batch_size,
                                                .workers = int(o.workers),
                                                .seed = o.seed,
                                                .device = device,
                                                .transform = compose({images.augment, normalize})});
    data.valid.emplace(images.valid, train::DataLoaderOptions{.batch_size = 256,
                                                              .workers = int(o.workers),
                                                              .device = device,
                                                              .transform = normalize});
    const Shape shape = images.train->get(0).x.shape();
    model = models::get(o.model, {.classes = images.classes, .in_channels = shape[0]});
    try_out(shape);
    if (!o.fine_tune.empty()) loaded = load_weights(*model.module(), o.fine_tune) + "\n";
    check_chunks(std::min(o.batch_size, images.train->size()), o.chunks);
    settings["--dataset"] = described(images.train->size(), images.valid->size(), stats);
    checkpoint(o.out, o.resume, settings);
    folder.emplace(o.out);
    if (train::is_first_rank()) io::AtomicFile probe(weights());
    std::shared_ptr<train::Profile> profile;  // before anything is written
    if (!o.profile.empty())
      profile = std::make_shared<train::Profile>(o.profile,
                                                 train::ProfileOptions{.wait = !device.is_host()});
    callbacks = {std::make_shared<train::JsonlLogger>(folder->path("metrics.jsonl")),
                 std::make_shared<train::ModelCheckpoint>(
                     train::ModelCheckpointOptions{.folder = folder->path(), .monitor = ""})};
    if (o.mixup > 0)
      callbacks.push_back(std::make_shared<train::MixUp>(
          train::MixOptions{.classes = images.classes, .alpha = o.mixup}));
    if (o.cutmix > 0)
      callbacks.push_back(std::make_shared<train::CutMix>(
          train::MixOptions{.classes = images.classes, .alpha = o.cutmix}));
    if (profile) callbacks.push_back(profile);
  }

  void run() {
    nn::ModuleBase& net = *model.module();
    fmt::print("{} training and {} validation images, {} classes\n{}\n{}", images.train->size(),
               images.valid->size(), images.classes, description(o, net, device), loaded);
    train::Learner learner(
        std::move(data), std::move(model),
        {.optimizer =
             [this](auto params) { return make_optimizer(o.optimizer, o.lr, std::move(params)); },
         .metrics = {train::accuracy},
         .callbacks = callbacks,
         .device = device,
         .chunks = o.chunks,
         .shards = o.shards,
         .settings = settings});
    choose_precision(learner, o);
    const auto schedule = [this](optim::Optimizer& optimizer, int64_t steps) {
      return optim::get_schedule(o.schedule, optimizer,
                                 {.total_steps = steps, .epoch_steps = steps / o.epochs});
    };
    learner.fit(o.epochs, {.lr = o.lr, .schedule = schedule, .resume = from});
    train::on_first_rank([&] { io::save(weights(), net.state_dict(), {{"model", o.model}}); });
    if (learner.is_stopping())
      throw Interrupted(o.out + " holds what was learned: --resume continues");
    fmt::print("wrote {}/: weights.safetensors, metrics.jsonl and last.ckpt\n", o.out);
  }

 private:
  std::string weights() const { return folder->path("weights.safetensors"); }
  // Reports images that are too small for the network as a mistake of the user.
  void try_out(const Shape& shape) {
    const NoGrad off;
    model.module()->eval();
    try {
      model(unsqueeze(zeros(shape), 0));
    } catch (const Error& e) {
      fail("{}: images of shape {} do not fit {}: {}", images.train->name(), shape, o.model,
           e.what());
    }
    model.module()->train();
  }

  const Options o;
  io::Metadata settings;  // for checkpoints
  const Device device;
  const std::string from;  // the checkpoint to continue from, or ""
  Seed seed;
  const Images images;
  train::Loaders data;
  nn::Any model;
  std::string loaded;
  std::optional<train::RunFolder> folder;
  std::vector<std::shared_ptr<train::Callback>> callbacks;
};

// Random images of the size that the network expects, and classes.
int64_t side_of(const Options& o) { return is_large(o.model) ? 224 : 32; }
train::Batch random_batch(const Options& o, int64_t n) {
  return {randn({n, 3, side_of(o), side_of(o)}), randint(0, is_large(o.model) ? 1000 : 10, {n})};
}

// Measures steps on random images.
void benchmark(const Options& o, Device device) {
  const Seed seed(o.seed);
  nn::Any model = models::get(o.model);
  fmt::print("{}; batches of {} random images, {} x {}\n", description(o, *model.module(), device),
             o.batch_size, side_of(o), side_of(o));
  const DefaultDevice here(device);
  const train::Batch batch = random_batch(o, o.batch_size);
  train::Learner learner({}, std::move(model), {.device = device});
  choose_precision(learner, o);
  std::vector<double> ms;
  constexpr int64_t warm_up = 3;
  for (int64_t step = -warm_up; step < o.steps; ++step) {
    if (step == 0) reset_peak(device);
    const auto start = std::chrono::steady_clock::now();
    learner.train_batch(batch);
    synchronize(device);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    if (step >= 0) ms.push_back(taken.count());
  }
  const auto middle = ms.begin() + std::ssize(ms) / 2;
  std::ranges::nth_element(ms, middle);
  fmt::print("{:.2f} ms per step (median of {}), {:.1f} images/s, peak {:.1f} MiB\n", *middle,
             o.steps, 1e3 * double(o.batch_size) / *middle,
             double(memory_stats(device).peak_total) / (1 << 20));
}

// The same steps on shapes alone.
amp::PlannedTraining planned(const Options& o, int64_t batch_size) {
  const auto learner = std::make_shared<train::Learner>(
      train::Loaders{}, models::get(o.model), train::LearnerOptions{.optimizer = [o](auto params) {
        return make_optimizer(o.optimizer, o.lr, std::move(params));
      }});
  choose_precision(*learner, o);
  return {{{learner, learner->optimizer.get()}},
          [=] { learner->train_batch(random_batch(o, batch_size)); }};
}

std::string plan(const Options& given) {
  std::vector<amp::PlannedMode> modes;
  for (const auto& [name, dtype, masters] : {std::tuple("float32", "float32", false),
                                             {"float16", "float16", false},
                                             {"float16 with masters", "float16", true},
                                             {"bfloat16", "bfloat16", false}}) {
    Options o = given;
    o.dtype = dtype;
    o.masters = masters;
    modes.push_back({name, [o](int64_t batch_size) { return planned(o, batch_size); }});
  }
  const Device device = planned_device(given.device);
  return fmt::format(
      "{}, batches of {} images, {} x {}, on {}\n{}", given.model, given.batch_size, side_of(given),
      side_of(given), device,
      amp::plan_text(modes, given.batch_size, int64_t(given.plan * (1 << 30)), {.device = device}));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CommandLine line("train_images", "Trains a network on images, in fp32, fp16 or bf16.");
  define(line, o);
  return line.run(argc, argv, [&]() -> CommandLine::Work {
    check(!o.masters || low(o.dtype) == f16, "--masters needs --dtype float16, not {}", o.dtype);
    check(o.benchmark || !line.given("--steps"), "--steps needs --benchmark");
    const auto exclude = [&](const char* option, std::initializer_list<const char*> others) {
      for (const char* name : others)
        check(!line.given(option) || !line.given(name), "{} and {} exclude each other", option,
              name);
    };
    for (const char* option : {"--benchmark", "--plan"})
      exclude(option, {"--dataset", "--size", "--epochs", "--lr", "--lr-schedule", "--mixup",
                       "--cutmix", "--rand-augment", "--workers", "--fine-tune", "--out",
                       "--resume", "--chunks", "--shards", "--profile"});
    exclude("--benchmark", {"--optimizer", "--plan"});
    exclude("--plan", {"--dtype", "--masters", "--seed"});
    const bool resizes = o.size > 0 || is_large(o.model);
    for (const char* name : {"--size", "--rand-augment"})
      check(!line.given(name) || o.dataset.starts_with("folder:"), "{} needs --dataset folder:DIR",
            name);
    check(!line.given("--rand-augment") || resizes, "--rand-augment needs --size");
    check(!o.resume || o.fine_tune.empty(), "--resume and --fine-tune exclude each other");
    for (const char* option : {"--benchmark", "--plan"})
      check(!line.given(option) || dist::World::current()->size() == 1, "{} is for one process",
            option);
    if (o.plan > 0) return [text = plan(o)] { fmt::print("{}", text); };
    if (o.benchmark) return [o, device = usable(o.device)] { benchmark(o, device); };
    return [training = std::make_shared<Training>(o, line.settings())] { training->run(); };
  });
}
