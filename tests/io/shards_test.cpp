// Shards: an index and the files that it names, whenever a save is killed.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/format.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "tests/support/damage.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"

namespace mixtape::io {
namespace shards_test {

int renames_before_kill = -1;
bool kill_after = false;  // that rename

}  // namespace shards_test
}  // namespace mixtape::io

// In the place of the C library's: ends the process at one of its calls.
extern "C" int rename(const char* from, const char* to) noexcept {
  using namespace mixtape::io::shards_test;
  const bool last = renames_before_kill >= 0 && renames_before_kill-- == 0;
  if (last && !kill_after) ::_exit(9);
  const int result = ::renameat(AT_FDCWD, from, AT_FDCWD, to);
  if (last) ::_exit(9);
  return result;
}

namespace mixtape::io {
namespace shards_test {

using test::slurp;
using test::spit;
using test::TempFolder;

TEST(Shards, RoundTrip) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors", index = path + ".index.json";
  StateDict tensors;
  for (int i = 0; i < 7; ++i)
    tensors.emplace_back(fmt::format("layer.{}", i), from({double(i), 1, 2}, {3}));
  tensors.emplace_back("large", Tensor({100}, u8));
  tensors.emplace_back("flags", from({1, 0}, {2}, boolean));
  for (int64_t i = 0; i < 100; ++i) tensors[7].second.set(i, double(i));
  save_sharded(path, tensors, {.max_bytes = 36, .metadata = {{"format", "pt"}}});
  EXPECT_EQ(folder.count(), 6u) << "3 + 3 + 1 layers, the large one, the flags, and the index";
  EXPECT_EQ(load(folder / "model-00002-of-00005.safetensors").tensors.size(), 3u);
  EXPECT_EQ(load(folder / "model-00004-of-00005.safetensors").tensors.size(), 1u);
  const std::string text = slurp(index);
  EXPECT_NE(text.find("\"total_size\": 186"), std::string::npos) << text;
  EXPECT_NE(text.find("\"layer.3\": \"model-00002-of-00005.safetensors\""), std::string::npos);

  const SafeTensors back = load(index);
  EXPECT_EQ(back.metadata, (Metadata{{"format", "pt"}}));
  ASSERT_EQ(back.tensors.size(), tensors.size());
  EXPECT_TRUE(std::ranges::is_sorted(back.tensors, {}, &StateDict::value_type::first));
  for (const auto& [name, t] : tensors) EXPECT_EQ(to_vector(back.tensors.at(name)), to_vector(t));

  save_sharded(folder / "one.safetensors", tensors);
  EXPECT_EQ(load(folder / "one-00001-of-00001.safetensors").tensors.size(), tensors.size());
  save_sharded(folder / "none.safetensors", {});
  EXPECT_TRUE(load(folder / "none.safetensors.index.json").tensors.empty());
}

TEST(Shards, RefuseToBeWrittenAsNonsense) {
  const TempFolder folder;
  const Tensor x = from({1}, {1});
  EXPECT_ERROR(save_sharded(folder / "x.bin", {{"a", x}}), "the name must end in .safetensors");
  const std::string path = folder / "x.safetensors";
  EXPECT_ERROR(save_sharded(path, {{"a", x}}, {.max_bytes = 0}), "max_bytes must be > 0");
  EXPECT_ERROR(save_sharded(path, {{"a", x}, {"a", x}}, {.max_bytes = 4}),
               "duplicate or reserved name \"a\"");
  EXPECT_ERROR(save_sharded(path, {{"a", x}, {"\xff", x}}, {.max_bytes = 4}), "is not UTF-8");
  EXPECT_ERROR(save_sharded(path, {{"__metadata__", x}}), "reserved name \"__metadata__\"");
  for (const char* name : {"x\xff.safetensors", "a\\b.safetensors"}) {
    const std::string message = "the index cannot hold the name: it must be UTF-8 without \\";
    EXPECT_ERROR(save_sharded(folder / name, {{"a", x}}), message);
  }
  EXPECT_ERROR(save(folder / "x.safetensors.index.json", StateDict{{"a", x}}),
               "x.safetensors.index.json: load() reads a file of this name as an index of shards");
  const Tensor unreadable({1}, f32, Device::meta());
  EXPECT_ERROR(save_sharded(path, {{"a", x}, {"b", unreadable}}, {.max_bytes = 4}), "meta");
  EXPECT_EQ(folder.count(), 0u) << "the first shard was written, and removed";
}

TEST(Shards, RefuseAHostileIndex) {
  const auto index = [](const std::string& text) {
    return test::full_error([&] { parse_safetensors_index(text, "f"); });
  };
  const auto file = [](const std::string& name) {
    return fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", name);
  };
  EXPECT_EQ(index(file("a.safetensors")), "no error");
  EXPECT_EQ(index(R"({"metadata":{"total_size":1,"deep":{"er":2}},"weight_map":{}})"), "no error");
  struct Case {
    std::string text, message;
  };
  const Case cases[] = {
      {"", "f: invalid JSON near byte 1"},
      {"{\"weight_map\":{}", "f: invalid JSON near byte 17"},
      {"[]", "f: has no object weight_map"},
      {"7", "f: has no object weight_map"},
      {R"({"weight_map":7})", "f: has no object weight_map"},
      {R"({"weight_map":{"w":[]}})", "f: the file of \"w\" is not a string"},
      {R"({"weight_map":{},"weight_map":{}})", "f: duplicate key \"weight_map\""},
      {"{}", "f: has no object weight_map"},
      {R"({"weight_map":["a.safetensors"]})", "f: has no object weight_map"},
      {R"({"weight_map":{"w":7}})", "f: the file of \"w\" is not a string"},
      {R"({"weight_map":{"w":"a.safetensors","w":"b.safetensors"}})", "f: duplicate key \"w\""},
      {R"({"weight_map":{"w":{"x":{"y":1}}}})", "f: the file of \"w\" is not a string"},
      {file("../a.safetensors"), "f: \"../a.safetensors\" is not the name of a .safetensors file"},
      {file("/etc/a.safetensors"), "is not the name of a .safetensors file beside the index"},
      {file("sub/a.safetensors"), "is not the name of a .safetensors file beside the index"},
      {file(R"(..\\a.safetensors)"), "is not the name of a .safetensors file beside the index"},
      {file(R"(a\u0000.safetensors)"), "is not the name of a .safetensors file beside the index"},
      {file("a.npz"), "f: \"a.npz\" is not the name of a .safetensors file beside the index"},
      {file(""), "f: \"\" is not the name of a .safetensors file beside the index"},
  };
  for (const Case& c : cases)
    EXPECT_NE(index(c.text).find(c.message), std::string::npos)
        << "message: " << index(c.text) << "\nwanted: " << c.message;
}

TEST(Shards, MustHoldWhatTheIndexSays) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors.index.json";
  const auto write_index = [&](const char* places) {
    spit(path, fmt::format(R"({{"weight_map":{{{}}}}})", places));
  };
  save(folder / "a.safetensors", {{"x", from({1}, {1})}, {"y", from({2}, {1})}});
  save(folder / "b.safetensors", {{"z", from({3}, {1})}});
  write_index(R"("x":"a.safetensors","y":"a.safetensors","z":"b.safetensors")");
  EXPECT_EQ(load(path).tensors.at("z").item(), 3);
  write_index(R"("x":"a.safetensors","z":"b.safetensors")");
  EXPECT_ERROR(load(path),
               "a.safetensors: holds tensor \"y\", which the index does not place there");
  write_index(R"("x":"a.safetensors","y":"b.safetensors","z":"b.safetensors")");
  EXPECT_ERROR(load(path), "a.safetensors: holds tensor \"y\"");
  write_index(R"("v":"b.safetensors","z":"b.safetensors")");
  EXPECT_ERROR(load(path), "b.safetensors: lacks tensor \"v\" of the index");
  write_index(R"("z":"c.safetensors")");
  EXPECT_ERROR(load(path), "c.safetensors: cannot open: No such file");
  EXPECT_ERROR(load(folder / "gone.index.json"), "gone.index.json: cannot open: No such file");
}

TEST(Shards, IndexSurvivesDamage) {
  const auto parse = [](std::span<const std::byte> text) {
    parse_safetensors_index(as_text(text), "f");
  };
  const std::string valid = R"({"metadata":{"total_size":8},"weight_map":{"a":"m-1.safetensors",)"
                            R"("b":"m-2.safetensors"}})";
  test::survive_damage(valid, "\"{}:,/", parse);
  test::refuse_truncation(valid, parse);
}

StateDict model(double value) {
  StateDict tensors;
  for (int i = 0; i < 6; ++i) tensors.emplace_back(fmt::format("w{}", i), from({value}, {1}));
  return tensors;
}

// The values of all tensors, each once.
std::string values_in(const std::string& index) {
  std::set<double> values;
  for (const auto& [name, t] : load(index).tensors) values.insert(t.item());
  std::string all;
  for (const double v : values) all += fmt::format("{}{}", all.empty() ? "" : " ", v);
  return all;
}

TEST(Shards, AreThoseOfOneSaveWheneverItIsKilled) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors", index = path + ".index.json";
  const ShardOptions two_each{.max_bytes = 8};
  save_sharded(path, model(1), two_each);
  int kills = 0, old = 0;
  for (bool killed = true; killed;) {
    for (const bool after : {false, true}) {
      const pid_t child = ::fork();
      if (child == 0) {
        renames_before_kill = kills;
        kill_after = after;
        save_sharded(path, model(2), two_each);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      killed = WIFEXITED(status) && WEXITSTATUS(status) == 9;
      const std::string values = values_in(index);
      EXPECT_TRUE(values == "1" || values == "2") << values << " after " << kills << " renames";
      old += values == "1";
      save_sharded(path, model(1), two_each);
      EXPECT_EQ(values_in(index), "1");
      EXPECT_EQ(folder.count(), 4u) << "no file of another save is left";
    }
    ++kills;
  }
  EXPECT_EQ(kills, 5) << "three shards, the index, and one that was not killed";
  EXPECT_EQ(old, 7) << "until the index is renamed";
}

TEST(Shards, GiveWayToThoseOfTheNextSave) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors", index = path + ".index.json";
  save(folder / "m2-00001-of-00001.safetensors", model(7));
  save(folder / "m.save2.safetensors", model(7));
  save_sharded(path, model(1), {.max_bytes = 12});
  EXPECT_TRUE(std::filesystem::exists(folder / "m-00002-of-00002.safetensors"));
  save_sharded(path, model(2));
  EXPECT_EQ(values_in(index), "2");
  EXPECT_TRUE(std::filesystem::exists(folder / "m.save2-00001-of-00001.safetensors"));
  EXPECT_EQ(folder.count(), 4u);
  save_sharded(path, model(3));
  EXPECT_TRUE(std::filesystem::exists(folder / "m.save3-00001-of-00001.safetensors"));
  EXPECT_EQ(folder.count(), 4u);
  EXPECT_ERROR(save_sharded(path, {{"a", Tensor()}}), "\"a\" is undefined");
  EXPECT_EQ(values_in(index), "3");
  EXPECT_EQ(folder.count(), 4u);
  std::filesystem::create_directory(folder / "in\\\xff");  // a folder's name is in no index
  save_sharded(folder / "in\\\xff/m.safetensors", model(5));
  EXPECT_EQ(values_in(folder / "in\\\xff/m.safetensors.index.json"), "5");
  std::filesystem::rename(folder / "m.save3-00001-of-00001.safetensors",
                          folder / "m.save1000000000-00001-of-00001.safetensors");
  EXPECT_ERROR(save_sharded(path, model(4)), "its number of the save is too large");
}

TEST(Shards, LeaveOutWhatIsSkipped) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors", index = path + ".index.json";
  save_sharded(path, model(1), {.max_bytes = 8});
  std::filesystem::remove(folder / "m-00001-of-00003.safetensors");
  const SafeTensors rest = load(index, {.skip = {"w0", "w1", "w3"}});
  EXPECT_EQ(rest.tensors.size(), 3u);
  EXPECT_ERROR(load(index, {.skip = {"w0"}}), "m-00001-of-00003.safetensors: cannot open");
}

}  // namespace shards_test
}  // namespace mixtape::io
