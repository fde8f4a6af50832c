// Readers other than IDX: CIFAR, image folders, tables, text.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "io/npy.h"
#include "io/png.h"
#include "io/text.h"
#include "tests/support/damage.h"
#include "tests/support/deflate.h"
#include "tests/support/temp_folder.h"
#include "train/data/cifar.h"
#include "train/data/folder.h"
#include "train/data/loader.h"
#include "train/data/tables.h"
#include "train/data/text.h"
#include "train/data/tokens.h"

namespace mixtape::train {
namespace readers_test {

using namespace std::string_literals;
using test::spit;
using test::TempFolder;
using Values = std::vector<double>;
using Names = std::vector<std::string>;

std::span<const std::byte> as_bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

// ---- CIFAR

// n records whose labels and pixels encode their number.
std::string cifar(int n, int first, bool coarse = false) {
  std::string file;
  for (int i = first; i < first + n; ++i) {
    if (coarse) file += '\x13';
    file += char(i % 10);
    for (int c = 0; c < 3; ++c) file += std::string(1024, char(i + 50 * c));
  }
  return file;
}

TEST(Cifar, ReadsRecords) {
  const TensorDataset ten = parse_cifar10(as_bytes(cifar(3, 4)), "f");
  EXPECT_EQ(ten.x().shape(), Shape({3, 3, 32, 32}));
  EXPECT_EQ(ten.x().dtype(), u8);
  EXPECT_EQ(to_vector(ten.y()), (Values{4, 5, 6}));
  EXPECT_EQ(ten.x().at(3072 + 1024), 55);
  const TensorDataset hundred = parse_cifar100(as_bytes(cifar(2, 7, true)), "f");
  EXPECT_EQ(to_vector(hundred.y()), (Values{7, 8}));  // fine, not coarse
  EXPECT_EQ(hundred.x().at(0), 7);
}

TEST(Cifar, ReadsItsFolders) {
  const TempFolder folder;
  EXPECT_ERROR(load_cifar10(folder.path()), "data_batch_1.bin: cannot open");
  for (int i = 1; i <= 5; ++i)
    spit(folder / ("data_batch_" + std::to_string(i) + ".bin"), cifar(2, 2 * i));
  spit(folder / "test_batch.bin", cifar(3, 0));
  const auto ten = load_cifar10(folder.path());
  EXPECT_EQ(to_vector(ten.train.y()), (Values{2, 3, 4, 5, 6, 7, 8, 9, 0, 1}));
  EXPECT_EQ(ten.train.x().at(9 * 3072), 11);
  EXPECT_EQ(ten.valid.size(), 3);
  spit(folder / "train.bin", cifar(4, 0, true));
  spit(folder / "test.bin", cifar(1, 0, true));
  EXPECT_EQ(load_cifar100(folder.path()).train.size(), 4);
}

TEST(Cifar, RefusesHostileFiles) {
  const std::string good = cifar(2, 0);
  EXPECT_ERROR(parse_cifar10({}, "f"), "f: has 0 bytes, not a multiple of the record size 3073");
  EXPECT_ERROR(parse_cifar10(as_bytes(good + "x"), "f"), "f: has 6147 bytes, not a multiple of");
  EXPECT_ERROR(parse_cifar100(as_bytes(good), "f"), "f: has 6146 bytes, not a multiple of");
  std::string bad = good;
  bad[3073] = 10;
  EXPECT_ERROR(parse_cifar10(as_bytes(bad), "f"), "f: label 1 is 10, not 0 to 9");
  bad = cifar(1, 0, true);
  bad[1] = 100;
  EXPECT_ERROR(parse_cifar100(as_bytes(bad), "f"), "f: label 0 is 100, not 0 to 99");
}

// ---- folders of images

#ifdef MIXTAPE_PNG

// Writes n images of one grey value to CLASS/ in the folder.
void paint(const TempFolder& folder, const std::string& name, int n, int grey, int64_t width = 3) {
  std::filesystem::create_directories(folder / name);
  for (int i = 0; i < n; ++i)
    io::save_png(folder / (name + "/" + std::to_string(i) + ".png"),
                 full({1, 2, width}, grey + i, u8));
}

TEST(Folder, ReadsAFolderPerClass) {
  const TempFolder folder;
  paint(folder, "dog", 3, 100);
  paint(folder, "cat", 2, 10);
  spit(folder / "readme.txt", "not a class");
  spit(folder / "cat/.hidden", "not an image");
  const ImageFolder all(folder.path());
  EXPECT_EQ(all.classes(), (Names{"cat", "dog"}));
  EXPECT_EQ(all.size(), 5);
  EXPECT_EQ(all.path(2), folder / "dog/0.png");
  const Example e = all.get(3);
  EXPECT_EQ(e.x.shape(), Shape({3, 2, 3}));
  EXPECT_EQ(e.x.at(17), 101);
  EXPECT_EQ(e.y.item(), 1);
  EXPECT_EQ(ImageFolder(folder.path(), {.channels = 1}).get(0).x.shape(), Shape({1, 2, 3}));

  for (const int workers : {0, 2}) {
    DataLoader loader(all, {.batch_size = 5, .workers = workers});
    for (const auto& [x, y] : loader) {
      EXPECT_EQ(x.shape(), Shape({5, 3, 2, 3}));
      EXPECT_EQ(to_vector(y), (Values{0, 0, 1, 1, 1}));
    }
  }
}

TEST(Folder, SplitsAtRandomOrAsItsFoldersSay) {
  const TempFolder folder;
  paint(folder, "all/a", 10, 0);
  paint(folder, "all/b", 10, 100);
  const auto parts = from_folder(folder / "all", {.channels = 1, .valid_fraction = 0.2, .seed = 1});
  EXPECT_EQ(parts.train.size(), 16);
  EXPECT_EQ(parts.valid.size(), 4);
  EXPECT_EQ(parts.valid.classes(), (Names{"a", "b"}));
  std::set<std::string> paths;
  for (const ImageFolder* part : {&parts.train, &parts.valid})
    for (int64_t i = 0; i < part->size(); ++i) paths.insert(part->path(i));
  EXPECT_EQ(paths.size(), 20u);

  paint(folder, "set/train/a", 2, 0);
  paint(folder, "set/train/b", 2, 0);
  paint(folder, "set/valid/a", 1, 0);
  EXPECT_ERROR(from_folder(folder / "set"), "set: train has classes a, b, valid a");
  paint(folder, "set/valid/b", 1, 0);
  EXPECT_EQ(from_folder(folder / "set").train.size(), 4);
  EXPECT_EQ(from_folder(folder / "set").valid.size(), 2);
  std::filesystem::rename(folder / "set/valid", folder / "set/val");  // as ImageNet has it
  EXPECT_EQ(from_folder(folder / "set").valid.size(), 2);
  std::filesystem::remove_all(folder / "set/val/b");
  EXPECT_ERROR(from_folder(folder / "set"), "set: train has classes a, b, val a");
}

TEST(Folder, SaysWhatIsWrong) {
  const TempFolder folder;
  EXPECT_ERROR(ImageFolder(folder / "gone"), "gone: cannot read this folder: No such file");
  EXPECT_ERROR(ImageFolder(folder.path()), "has no folder for any class");
  std::filesystem::create_directories(folder / "a");
  EXPECT_ERROR(ImageFolder(folder.path()), "/a: no images");
  paint(folder, "a", 1, 0, 3);
  paint(folder, "b", 1, 0, 4);
  const ImageFolder all(folder.path());
  EXPECT_ERROR(DataLoader(all).batch(0),
               "b/0.png): its input is u8 [3, 2, 4], but the first in the batch has u8 [3, 2, 3]");
  EXPECT_EQ(pixel_stats(all).mean, (Values{0, 0, 0}));  // of images of any sizes
  EXPECT_ERROR(ImageFolder(folder.path(), {.channels = 2}), "channels must be 1 or 3, got 2");
  EXPECT_ERROR(all.get(2), "example 2 is out of range for 2");
  EXPECT_ERROR(all.part({0, 2}), "example 2 is out of range for 2");
  spit(folder / "b/0.png", "\x89PNG");
  EXPECT_ERROR(DataLoader(all, {.workers = 2}).batch(0), "b/0.png: not a PNG or JPEG file");
  spit(folder / "b/0.jpg", "GIF89a");
  EXPECT_ERROR(load_image(folder / "b/0.jpg"),
               "b/0.jpg: not a PNG or JPEG file: it starts with other bytes, but a GIF image");
  spit(folder / "b/0.jpg", "");
  EXPECT_ERROR(load_image(folder / "b/0.jpg"), "b/0.jpg: not a PNG or JPEG file: it is empty");
  std::filesystem::remove(folder / "b/0.jpg");
  EXPECT_ERROR(pixel_stats(all), folder.path() + ": example 1 (" + folder.path() + "/b/0.png): ");
  spit(folder / "b/notes.txt", "x");
  EXPECT_ERROR(ImageFolder(folder.path()), "b/notes.txt: not a .png, .jpg or .jpeg file");
}

#endif

// ---- tables

TEST(Csv, ReadsNumbersAndATarget) {
  const Csv csv = parse_csv("a,b,c\n1,2.5,3\n-4, +5e1 ,6\n", "f");
  EXPECT_EQ(csv.columns, (Names{"a", "b"}));
  EXPECT_EQ(csv.target, "c");
  EXPECT_TRUE(csv.classes.empty());
  EXPECT_EQ(csv.data.x().shape(), Shape({2, 2}));
  EXPECT_EQ(to_vector(csv.data.x()), (Values{1, 2.5, -4, 50}));
  EXPECT_EQ(csv.data.y().dtype(), f32);
  EXPECT_EQ(to_vector(csv.data.y()), (Values{3, 6}));
  EXPECT_EQ(csv.data.name(), "f");

  const Csv first = parse_csv("a,b,c\n1,2,3\n", "f", {.target = "a"});
  EXPECT_EQ(to_vector(first.data.x()), (Values{2, 3}));
  EXPECT_EQ(to_vector(first.data.y()), (Values{1}));
  const Csv bare = parse_csv("1;2\n3;4", "f", {.target = "0", .header = false, .separator = ';'});
  EXPECT_EQ(to_vector(bare.data.x()), (Values{2, 4}));
  EXPECT_EQ(bare.columns, (Names{"1"}));
  EXPECT_EQ(parse_csv("a,b\n", "f").data.size(), 0);
}

TEST(Csv, NumbersTheClassesOfATarget) {
  const Csv holes = parse_csv("x,kind\n1,nan\n2,3\n3,1\n4,nan\n", "f", {.classes = true});
  EXPECT_EQ(holes.classes, (Names{"1", "3", "nan"}));
  const Csv text = parse_csv("x,kind\n1,pear\n2,apple\n3,pear\n", "f");
  EXPECT_EQ(text.classes, (Names{"apple", "pear"}));
  EXPECT_EQ(text.data.y().dtype(), i64);
  EXPECT_EQ(to_vector(text.data.y()), (Values{1, 0, 1}));
  const Csv numbers = parse_csv("x,kind\n1,10\n2,9\n3,10\n", "f", {.classes = true});
  EXPECT_EQ(numbers.classes, (Names{"9", "10"}));
  EXPECT_EQ(to_vector(numbers.data.y()), (Values{1, 0, 1}));
  const Csv spelt = parse_csv("x,kind\n0,2\n0, 1\n0,1.0\n0,1\n", "f", {.classes = true});
  EXPECT_EQ(spelt.classes, (Names{" 1", "2"}));
  EXPECT_EQ(to_vector(spelt.data.y()), (Values{1, 0, 0, 0}));
}

// Doubles would merge ids of 19 digits.
TEST(Csv, TellsLargeIdsApart) {
  const std::string text =
      "user,y\n1146885700011425793,1\n1146885700011425794,2\n-9007199254740993,3\n"
      "-9007199254740992,3\n1146885700011425793,3\n";
  const Csv users = parse_csv(text, "f", {.categories = {"user"}});
  EXPECT_EQ(users.categories.at("user"), (Names{"-9007199254740992", "-9007199254740993",
                                                "1146885700011425793", "1146885700011425794"}));
  EXPECT_EQ(to_vector(users.data.x()), (Values{2, 3, 1, 0, 2}));
  EXPECT_EQ(to_vector(parse_csv(text, "f", {.like = &users}).data.x()), (Values{2, 3, 1, 0, 2}));
  const Csv classes = parse_csv(text, "f", {.target = "user", .classes = true});
  EXPECT_EQ(to_vector(classes.data.y()), (Values{2, 3, 1, 0, 2}));
  const Csv exact =
      parse_csv("x,y\n1,inf\n1,9007199254740991\n1,9\n1,-inf\n1,9.0\n", "f", {.classes = true});
  EXPECT_EQ(exact.classes, (Names{"-inf", "9", "9007199254740991", "inf"}));
}

TEST(Csv, NumbersBelowF32AreZero) {
  std::string far = "0." + std::string(400, '0') + "1", same = far + "e401";
  for (const std::string& text : {"1e-46"s, "1e-400"s, "0.5E-400"s, "+1e-99999999999"s, far})
    EXPECT_EQ(to_vector(parse_csv(fmt::format("a,b\n{},2\n", text), "f").data.x()), (Values{0}))
        << text;
  const Tensor negative = parse_csv("a,b\n-1e-400,2\n", "f").data.x();
  EXPECT_TRUE(negative.at(0) == 0 && std::signbit(negative.at(0)));
  EXPECT_EQ(parse_csv("a,b\n" + same + ",2\n", "f").data.x().at(0), 1);
  for (const std::string& text : {"1e400"s, "1E+99999999999"s, "0.1e400"s, std::string(400, '1'),
                                  "-1e400"s, std::string(400, '1') + "e-1"})
    EXPECT_ERROR(parse_csv(fmt::format("a,b\n{},2\n", text), "f"),
                 "is not a number that f32 holds");
}

TEST(Csv, ChoosesColumnsAndNumbersCategories) {
  const Csv csv = parse_csv("id,sex,deck,fare,alive\n7,m,10,5,1\n8,f,9,,0\n9,m,,6,1\n", "f",
                            {.columns = {"fare", "deck", "sex"},
                             .categories = {"sex", "deck"},
                             .classes = true,
                             .missing = -1});
  EXPECT_EQ(csv.columns, (Names{"fare", "deck", "sex"}));
  EXPECT_EQ(csv.categories.size(), 2u);
  EXPECT_EQ(csv.categories.at("sex"), (Names{"f", "m"}));
  EXPECT_EQ(csv.categories.at("deck"), (Names{"", "10", "9"})) << "a missing one is a text";
  EXPECT_EQ(to_vector(csv.data.x()), (Values{5, 1, 1, -1, 2, 0, 6, 0, 1}));
  EXPECT_EQ(to_vector(csv.data.y()), (Values{1, 0, 1}));

  EXPECT_ERROR(parse_csv("a,b\n1,2\n", "f", {.columns = {"c"}}), "f: no column is named \"c\"");
  EXPECT_ERROR(parse_csv("a,b\n1,2\n", "f", {.columns = {"a", "b"}}),
               "f: \"b\" is both the target and in columns");
  EXPECT_ERROR(parse_csv("a,b\n1,2\n", "f", {.categories = {"b"}}),
               "f: \"b\" is not one of the columns \"a\"");
}

TEST(Csv, IsNumberedLikeATableReadBefore) {
  const Csv train = parse_csv("sex,fare,alive\nm,5,no\nf,6,yes\n", "f", {.categories = {"sex"}});
  const Csv valid = parse_csv("alive,sex,id,fare\nyes,m,1,7\n", "g", {.like = &train});
  EXPECT_EQ(valid.target, "alive");
  EXPECT_EQ(valid.columns, train.columns);
  EXPECT_EQ(valid.classes, train.classes);
  EXPECT_EQ(valid.categories, train.categories);
  EXPECT_EQ(to_vector(valid.data.x()), (Values{1, 7}));
  EXPECT_EQ(to_vector(valid.data.y()), (Values{1}));
  EXPECT_ERROR(parse_csv("sex,fare,alive\nm,5,no\nx,6,yes\n", "g", {.like = &train}),
               "g: line 3, column \"sex\": \"x\" is not among \"f\", \"m\"");
  EXPECT_ERROR(parse_csv("sex,fare,alive\nm,5,maybe\n", "g", {.like = &train}),
               "g: line 2, column \"alive\": \"maybe\" is not among \"no\", \"yes\"");
  EXPECT_ERROR(parse_csv("sex,alive\nm,no\n", "g", {.like = &train}),
               "g: no column is named \"fare\"");

  const Csv numbers = parse_csv("a,b\n1,2\n", "f");
  EXPECT_TRUE(parse_csv("a,b\n1,2\n", "g", {.like = &numbers}).classes.empty());
  EXPECT_ERROR(parse_csv("a,b\n1,x\n", "g", {.like = &numbers}),
               "g: line 2, column \"b\": \"x\" is not a number that f32 holds");
  const Csv classes = parse_csv("a,b\n1,2\n1,10\n", "f", {.classes = true});
  EXPECT_EQ(to_vector(parse_csv("a,b\n1,10.0\n", "g", {.like = &classes}).data.y()), (Values{1}));
  EXPECT_ERROR(parse_csv("a,b\n1,3\n", "g", {.like = &classes}),
               "\"3\" is not among \"2\", \"10\"");
  EXPECT_ERROR(parse_csv("a,b\n1,\n", "g", {.like = &classes}), "\"\" is not among \"2\", \"10\"");
}

TEST(Csv, UnderstandsQuotesAndLineEnds) {
  const Csv csv = parse_csv(
      "\xef\xbb\xbf\"size, in cm\",\"the \"\"kind\"\"\"\r\n\"1\",\"a\nb\"\r\n\r\n2,\"a,b\"\r\n",
      "f");
  EXPECT_EQ(csv.columns, (Names{"size, in cm"}));
  EXPECT_EQ(csv.target, "the \"kind\"");
  EXPECT_EQ(csv.classes, (Names{"a\nb", "a,b"}));
  EXPECT_EQ(to_vector(csv.data.x()), (Values{1, 2}));
  EXPECT_EQ(to_vector(parse_csv("a,b\r1,2\r3,4\r", "f").data.x()), (Values{1, 3}));
}

TEST(Csv, SaysWhatIsWrongAndWhere) {
  EXPECT_ERROR(parse_csv("", "f"), "f: has no lines");
  EXPECT_ERROR(parse_csv("a;b\n1;2\n", "f"),
               "f: there is only one column, \"a;b\": is \",\" the wrong separator?");
  EXPECT_ERROR(parse_csv("a,b\n1,2\n1\n", "f"), "f: line 3 has 1 fields, but the first line has 2");
  EXPECT_ERROR(parse_csv("a,b\n1,2,3\n", "f"), "f: line 2 has 3 fields, but the first line has 2");
  EXPECT_ERROR(parse_csv("a,b\n\"1\n\",2\nx,2\n", "f"),
               "f: line 2, column \"a\": \"1\\n\" is not a");
  EXPECT_ERROR(parse_csv("a,b\n1,\"p\nq\"\nx,2\n", "f"),
               "f: line 4, column \"a\": \"x\" is not a number");
  EXPECT_ERROR(
      parse_csv("a,b\n,2\n", "f"),
      "column \"a\": \"\" is not a number that f32 holds (write nan for a missing one, or");
  EXPECT_TRUE(isnan(parse_csv("a,b\nnan,2\n", "f").data.x()).item<bool>());
  for (const char* wrong : {"+-5", "1e300", "++1"})
    EXPECT_ERROR(parse_csv(fmt::format("a,b\n{},2\n", wrong), "f"),
                 fmt::format("f: line 2, column \"a\": \"{}\" is not a number", wrong));
  EXPECT_ERROR(parse_csv("a,b\n1,2\n1, \n1,\n", "f"),
               "f: line 3 has no \"b\", which every line needs: it is the target");
  EXPECT_ERROR(parse_csv("a,b\n1,x\n2, \n", "f"), "f: line 3 has no \"b\", which every line needs");
  EXPECT_ERROR(parse_csv("a,b\n1,\n2,3\n", "f", {.classes = true}), "f: line 2 has no \"b\"");
  EXPECT_ERROR(parse_csv("a,b\n1,2\n1,\"2\n3\n", "f"), "f: the quote that line 3 opens is never");
  EXPECT_ERROR(parse_csv("a,b\n1,\"2\"x\n", "f"), "f: line 2: \"x\" follows a closing quote");
  EXPECT_ERROR(parse_csv("a,b\n1,2\n", "f", {.target = "c"}),
               "f: no column is named \"c\"; there are \"a\", \"b\"");
  EXPECT_ERROR(parse_csv("a,a\n1,2\n", "f", {.target = "a"}), "f: two columns are named \"a\"");
  EXPECT_ERROR(read_csv("/no/such.csv"), "/no/such.csv: cannot open");
  EXPECT_ERROR(parse_csv(std::string("PK\3\4\0\0", 6) + std::string(40, 'x'), "table.xlsx"),
               "table.xlsx: not a text: it has zero bytes, but a zip archive");
}

// Untimed: what takes time quadratic in the columns takes minutes here.
TEST(Csv, TakesTimeLinearInItsColumns) {
  std::string text;
  CsvOptions options;
  constexpr int64_t columns = 40'000;
  for (int64_t i = 0; i < columns; ++i) {
    text += fmt::format("column{},", i);
    options.columns.push_back(fmt::format("column{}", columns - 1 - i));
    if (i % 2) options.categories.push_back(fmt::format("column{}", i));
  }
  text += "y\n";
  for (const int64_t row : {1, 2}) {
    for (int64_t i = 0; i < columns; ++i) text += fmt::format("{},", i % 2 ? i * row : i % 9);
    text += "3\n";
  }
  const Csv known = parse_csv(text, "f", options);
  EXPECT_EQ(known.categories.size(), size_t(columns / 2));
  EXPECT_EQ(known.data.x().at(1), double((columns - 2) % 9)) << "in the order of .columns";
  EXPECT_EQ(known.data.x().at(0), 0) << "the first of two names";
  const Csv again = parse_csv(text, "f", {.like = &known});
  EXPECT_TRUE(equal(again.data.x(), known.data.x()));

  text = "x,kind\n";  // and in the classes
  for (int i = 0; i < 100'000; ++i) text += fmt::format("1,k{}\n", i);
  const Csv classes = parse_csv(text, "f");
  EXPECT_EQ(classes.classes.size(), 100'000u);
  EXPECT_TRUE(equal(parse_csv(text, "f", {.like = &classes}).data.y(), classes.data.y()));
  EXPECT_ERROR(parse_csv("x,kind\n1,other\n", "f", {.like = &classes}),
               "\"other\" is not among \"k0\", \"k1\", \"k10\"");
}

TEST(Csv, TakesNoMoreMemoryThanAllowed) {
  EXPECT_ERROR(parse_csv(std::string(2'000'000, ','), "f"),
               "f: line 1 has more than 200000 fields (raise max_memory)");
  std::string rows = "a,b\n";
  while (rows.size() < 1'000'000) rows += "1,2\n";
  EXPECT_EQ(parse_csv(rows, "f").data.size(), 249'999);
  EXPECT_ERROR(parse_csv(rows, "f", {.max_memory = 3'000'000}), "more than the 3000000 allowed");
  const TempFolder folder;
  std::string zeros = "a,b\n";
  while (zeros.size() < 20'000'000) zeros += "0,0\n";
#ifdef MIXTAPE_ZLIB
  spit(folder / "zeros.csv.gz", test::gzip(zeros));
  EXPECT_ERROR(read_csv(folder / "zeros.csv.gz"),
               "zeros.csv.gz: unpacks to more than the 16777216 bytes allowed (raise max_memory)");
  EXPECT_EQ(read_csv(folder / "zeros.csv.gz", {.max_memory = 1'000'000'000}).data.size(),
            4'999'999);
#endif
}

TEST(Csv, KeepsQuotesWithinFields) {
  const Csv csv = parse_csv("x,kind\n\"1\",\"a \"\"b\"\"\"\n2,\"a\"\n3,\"\"\"\"\n\"4\",a\n", "f");
  EXPECT_EQ(csv.classes, (std::vector<std::string>{"\"", "a", "a \"b\""}));
  EXPECT_EQ(to_vector(csv.data.y()), (Values{2, 1, 0, 1}));
  EXPECT_EQ(to_vector(csv.data.x()), (Values{1, 2, 3, 4}));
}

TEST(Csv, SurvivesDamage) {
  const auto parse = [](std::span<const std::byte> file) { parse_csv(io::as_text(file), "f"); };
  test::survive_damage("a,b,\"c\"\n1,2.5,\"x\"\n-3,4e2,y\n", "\",\n\r1", parse);
}

TEST(Csv, ReadsFilesAndArrays) {
  const TempFolder folder;
  spit(folder / "t.csv", "a,b\n1,2\n");
  EXPECT_EQ(read_csv(folder / "t.csv").data.size(), 1);
  io::save_npy(folder / "x.npy", zeros({3, 4}));
  io::save_npy(folder / "y.npy", arange(0, 3));
  const TensorDataset data = from_npy(folder / "x.npy", folder / "y.npy");
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(to_vector(data.y()), (Values{0, 1, 2}));
  io::save_npy(folder / "y.npy", arange(0, 4));
  EXPECT_ERROR(from_npy(folder / "x.npy", folder / "y.npy"),
               "x.npy: inputs of shape [3, 4] need as many targets, got [4]");
}

// ---- text

TEST(CharText, NumbersCharactersInOrder) {
  const CharText text("ba ab\xc3\xa9 aa bb", {.context = 2, .valid_fraction = 0.4});
  EXPECT_EQ(text.vocabulary(), (Names{" ", "a", "b", "\xc3\xa9"}));
  EXPECT_EQ(to_vector(text.encode("b\xc3\xa9")), (Values{2, 3}));
  EXPECT_EQ(text.decode(text.encode("ab \xc3\xa9")), "ab \xc3\xa9");
  EXPECT_EQ(text.train().tokens().size(0) + text.valid().tokens().size(0), 12);
  EXPECT_EQ(text.valid().tokens().size(0), 5);
  EXPECT_EQ(text.decode(text.valid().tokens()), "aa bb");
}

TEST(CharText, WindowsAreContextAndWhatFollows) {
  const CharText text("abcdefghijklmnopqrst", {.context = 3, .valid_fraction = 0.25});
  EXPECT_EQ(text.train().size(), 4);  // of 15 characters: 0, 3, 6, 9; 12 lacks a next character
  EXPECT_EQ(to_vector(text.train().get(3).x), (Values{9, 10, 11}));
  EXPECT_EQ(to_vector(text.train().get(3).y), (Values{10, 11, 12}));
  EXPECT_EQ(to_vector(text.valid().get(0).x), (Values{15, 16, 17}));
  EXPECT_EQ(text.valid().size(), 1);
  const CharText dense("abcdefghijklmnopqrst", {.context = 3, .stride = 1, .valid_fraction = 0.25});
  EXPECT_EQ(dense.train().size(), 12);
  EXPECT_EQ(to_vector(dense.train().get(11).y), (Values{12, 13, 14}));
  const int64_t some[] = {1, 0};
  EXPECT_EQ(text.train().gather(some).x.shape(), Shape({2, 3}));
  EXPECT_EQ(Windows().size(), 0);
}

TEST(CharText, SaysWhatIsWrong) {
  const CharText text("abcabcabcabc", {.context = 2, .valid_fraction = 0.5});
  EXPECT_ERROR(text.encode("abx"), "character \"x\" is not among the 3 of the vocabulary");
  EXPECT_ERROR(text.encode("\xff"), "is not UTF-8");
  EXPECT_ERROR(text.decode(from({3}, {1}, i64)), "token 3 is out of range for 3 characters");
  EXPECT_ERROR(text.decode(from({-1}, {1}, i64)), "token -1 is out of range for 3 characters");
  EXPECT_ERROR(text.decode(from({1}, {1})), "tokens must be integers, got f32");
  EXPECT_ERROR(text.train().get(5), "text: example 5 is out of range for 2");
  EXPECT_ERROR(CharText("ab\xc3"), "text: is not UTF-8");
  EXPECT_ERROR(CharText("abcabc", {.context = 4, .valid_fraction = 0.5}),
               "text: 3 characters to train with, but a window needs 4 plus one");
  EXPECT_ERROR(CharText("abcabcabcabc", {.context = 2, .valid_fraction = 0.1}),
               "text: 1 characters to validate with");
  EXPECT_ERROR(CharText("abcabc", {.context = 0, .valid_fraction = 0.5}),
               "text: context and stride must be > 0, got 0 and 0");
  EXPECT_ERROR(CharText(""), "text: 0 examples cannot be split");
  EXPECT_ERROR(Windows(zeros({3}), 1, 1),
               "tokens: tokens must be integers [n] on the CPU, got f32 [3]");
  EXPECT_ERROR(CharText::load("/no/such.txt"), "/no/such.txt: cannot open");
}

TEST(CharText, ReadsAFile) {
  const TempFolder folder;
  spit(folder / "t.txt", std::string(50, 'a') + std::string(50, 'b'));
  const CharText text = CharText::load(folder / "t.txt", {.context = 4, .valid_fraction = 0.2});
  EXPECT_EQ(text.train().name(), folder / "t.txt");
  EXPECT_EQ(text.train().size(), 19);
  spit(folder / "t.txt", "\xff\xfe");
  EXPECT_ERROR(CharText::load(folder / "t.txt"), "t.txt: is not UTF-8");
}

// ---- tokens

// Little-endian numbers of `bytes` bytes.
std::string numbers(std::initializer_list<uint32_t> values, int bytes) {
  std::string file;
  for (const uint32_t v : values)
    for (int i = 0; i < bytes; ++i) file += char(v >> (8 * i));
  return file;
}
// A file of llm.c that promises `count` tokens.
std::string with_header(uint32_t magic, uint32_t count, const std::string& tokens) {
  std::string file = numbers({magic, 1, count}, 4);
  file.resize(1024);
  return file + tokens;
}

TEST(Tokens, ReadsBothFormats) {
  const auto read = [](const std::string& file) {
    const Tensor tokens = parse_tokens(as_bytes(file), "f");
    EXPECT_EQ(tokens.dtype(), i32);
    return to_vector(tokens);
  };
  EXPECT_EQ(read(numbers({1, 50256, 65535}, 2)), (Values{1, 50256, 65535}));
  EXPECT_EQ(read(with_header(20240520, 2, numbers({50256, 7}, 2))), (Values{50256, 7}));
  EXPECT_EQ(read(with_header(20240801, 2, numbers({128255, 7}, 4))), (Values{128255, 7}));
  const TempFolder folder;
  spit(folder / "t.bin", numbers({3, 1, 4, 1, 5}, 2));
  const Windows windows(read_tokens(folder / "t.bin"), 2, 2);
  EXPECT_EQ(windows.size(), 2);
  EXPECT_EQ(windows.get(1).x.dtype(), i64);
  EXPECT_EQ(to_vector(windows.get(1).y), (Values{1, 5}));
}
TEST(Tokens, SaysWhatIsWrong) {
  const auto parse = [](const std::string& file) { return parse_tokens(as_bytes(file), "f"); };
  EXPECT_ERROR(parse(""), "f: has no tokens");
  EXPECT_ERROR(parse("abc"), "f: 3 bytes do not divide into tokens of 2");
  EXPECT_ERROR(parse(numbers({20240520, 1}, 4)), "f: the header takes 1024 bytes, the file has 8");
  std::string file = with_header(20240520, 3, numbers({1, 2}, 2));
  EXPECT_ERROR(parse(file), "f: the header says 3 tokens, the file has 4 bytes of them");
  file[4] = 2;
  EXPECT_ERROR(parse(file), "f: version 2 of the format is not known, only 1");
  EXPECT_ERROR(parse(with_header(20240520, 0, "")), "f: has no tokens");
  EXPECT_ERROR(parse(with_header(20240801, 1, numbers({0x80000000u}, 4))),
               "f: token 0 is 2147483648, more than i32 holds");
  EXPECT_ERROR(read_tokens("/no/such.bin"), "/no/such.bin: cannot open");
}

}  // namespace readers_test
}  // namespace mixtape::train
