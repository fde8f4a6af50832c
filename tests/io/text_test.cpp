// Escaped text, JSON lines, and checksums.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "core/format.h"
#include "io/crc.h"
#include "io/jsonl.h"
#include "io/text.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"

namespace mixtape::io {
namespace text_test {

using test::slurp;
using test::spit;
using test::TempFolder;

TEST(Text, EscapesAndRepairs) {
  EXPECT_EQ(json_string("a\"\\\n\x01\x7f/"), R"("a\"\\\n\u0001\u007f/")");
  EXPECT_EQ(json_string("\u00e9\u20ac\U0001F600"), "\"\u00e9\u20ac\U0001F600\"");
  EXPECT_EQ(json_string("\xff|\xc3|\xc0\xaf|\xed\xa0\x80"),
            "\"\uFFFD|\uFFFD|\uFFFD\uFFFD|\uFFFD\uFFFD\uFFFD\"");
  EXPECT_EQ(json_string("\xf4\x90\x80\x80"), "\"\uFFFD\uFFFD\uFFFD\uFFFD\"");  // above U+10FFFF
  EXPECT_EQ(xml_text("<a & \"b\">\x01"), "&lt;a &amp; &quot;b&quot;&gt;\uFFFD");
  EXPECT_EQ(quote(std::string(79, 'a') + "\u00e9\u00e9"), '"' + std::string(79, 'a') + "\"...");
}

TEST(Text, SpellsBytesInTheirUnit) {
  EXPECT_EQ(bytes_text(10239), "10239 B");
  EXPECT_EQ(bytes_text(10240), "10.0 KiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 30), "3072.0 MiB");
}

TEST(JsonLines, SpellsEveryKindOfValue) {
  EXPECT_EQ(json_object({}), "{}");
  EXPECT_EQ(json_object({{"step", int64_t{3}}, {"loss", 0.1}, {"tag", "a\"b"}, {"ok", true}}),
            R"({"step":3,"loss":0.1,"tag":"a\"b","ok":true})");
  EXPECT_EQ(json_object({{"a", NAN}, {"b", -INFINITY}, {"c", 1e-300}, {"d", INT64_MIN}}),
            R"({"a":null,"b":null,"c":1e-300,"d":-9223372036854775808})");
}

TEST(JsonLines, KeepTheBitsOfDoubles) {
  for (const double x : {0.0, -0.0, 0.1, -3.0, 1e22, 0x1p53, 0x1p63, 5e-324, 1e15 + 0.5}) {
    const std::string line = json_object({{"x", x}}) + "\n";
    const double back = number_in(parse_json_lines(line, "f")[0], "x");
    EXPECT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(x)) << line;
  }
}

TEST(JsonLines, AppendsLinesAtOnce) {
  const TempFolder folder;
  {
    JsonLines log(folder / "log.jsonl");
    log.write({{"a", 1.0}});
    EXPECT_EQ(slurp(folder / "log.jsonl"), "{\"a\":1}\n");  // before it is closed
  }
  JsonLines(folder / "log.jsonl").write({{"a", 2.5}});
  EXPECT_EQ(slurp(folder / "log.jsonl"), "{\"a\":1}\n{\"a\":2.5}\n");

  spit(folder / "cut.jsonl", "{\"a\":");
  JsonLines(folder / "cut.jsonl").write({{"a", 3.0}});
  EXPECT_EQ(slurp(folder / "cut.jsonl"), "{\"a\":3}\n");
  spit(folder / "cut.jsonl", "{\"a\":1}\n{\"a\":");
  JsonLines(folder / "cut.jsonl").write({{"a", 3.5}});
  EXPECT_EQ(read_json_lines(folder / "cut.jsonl"),
            (std::vector<JsonFields>{{{"a", int64_t{1}}}, {{"a", 3.5}}}));
  EXPECT_ERROR(JsonLines(folder / "no/log"), "no/log: cannot open for appending: No such file");
}

// The disk is full in the middle of a line, and later has space again.
TEST(JsonLines, ContinuesAfterAFailedLine) {
  const TempFolder folder;
  JsonLines log(folder / "log.jsonl");
  log.write({{"a", int64_t{1}}});
  struct rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small = {12, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = test::full_error([&] { log.write({{"a", int64_t{2}}}); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, ignored);
  EXPECT_NE(message.find("log.jsonl: cannot append: File too large"), std::string::npos) << message;
  log.write({{"a", int64_t{3}}});
  EXPECT_EQ(slurp(folder / "log.jsonl"), "{\"a\":1}\n{\"a\":3}\n");
}

TEST(JsonLines, ReportsARemovedFile) {
  const TempFolder folder;
  JsonLines log(folder / "log.jsonl");
  log.write({{"a", 1.0}});
  std::filesystem::remove(folder / "log.jsonl");
  EXPECT_ERROR(log.write({{"a", 2.0}}), "log.jsonl: cannot append: it was removed");
}

TEST(JsonLines, ReadsBackWhatWasWritten) {
  const TempFolder folder;
  const std::string file = folder / "log.jsonl";
  const JsonFields line = {{"a", 0.1}, {"b", int64_t{-3}}, {"c", "x\ny"}, {"d", true}};
  JsonLines(file).write(line);
  JsonLines(file).write({});
  spit(file, slurp(file) + "{\"a\":nu");
  EXPECT_EQ(read_json_lines(file), (std::vector<JsonFields>{line, {}}));
  const auto wrong = [&](const std::string& text) {
    spit(file, "{}\n" + text + "\n");
    return test::error([&] { read_json_lines(file); });
  };
  EXPECT_EQ(wrong("{\"a\":"), file + ": line 2: invalid JSON near byte 6");
  EXPECT_EQ(wrong("3"), file + ": line 2: \"3\" is not a JSON object");
  EXPECT_EQ(wrong("{\"a\":[1]}"),
            file + ": line 2: values must be numbers, strings or bools, got an array");
  EXPECT_EQ(wrong("[1]"), file + ": line 2: \"[1]\" is not a JSON object");
  spit(file, "{\"a\":null,\"b\":18446744073709551615}\n");
  EXPECT_TRUE(std::isnan(std::get<double>(read_json_lines(file)[0][0].second)));
  EXPECT_EQ(std::get<double>(read_json_lines(file)[0][1].second), 0x1p64);
}

TEST(JsonLines, FindFieldsByName) {
  const JsonFields line = {{"a", 0.5}, {"b", int64_t{-3}}, {"c", "4"}, {"a", 2.0}};
  EXPECT_EQ(number_in(line, "a"), 0.5);
  EXPECT_EQ(number_in(line, "b"), -3);
  EXPECT_TRUE(std::isnan(number_in(line, "c")));
  EXPECT_TRUE(std::isnan(number_in(line, "d")));
  EXPECT_EQ(*find_field(line, "c"), JsonValue("4"));
  EXPECT_EQ(find_field(line, "d"), nullptr);
}

TEST(JsonLines, TakeNoMoreMemoryThanAllowed) {
  std::string line = "{";
  for (int i = 0; i < 300'000; ++i) line += fmt::format("{}\"{}\":0", i ? "," : "", i);
  EXPECT_ERROR(parse_json_lines(line + "}\n", "f"), "f: line 1: has more than ");
  EXPECT_EQ(parse_json_lines(line + "}\n", "f", 100'000'000)[0].size(), 300'000u);
  EXPECT_ERROR(parse_json_lines("{}\n{}\n", "f", 50), "f: needs 54 bytes of memory");
}

TEST(Crc, HasTheKnownAnswers) {
  const auto digits = std::as_bytes(std::span("123456789", 9));
  EXPECT_EQ(crc32(digits), 0xCBF43926u);
  EXPECT_EQ(crc32c(digits), 0xE3069283u);
  EXPECT_EQ(crc32c(digits.subspan(4), crc32c(digits.first(4))), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

}  // namespace text_test
}  // namespace mixtape::io
