// Tokenizers: the tokens of Hugging Face's library for hard texts, and errors that say what is not
// read. make_tokenizer_files.py wrote the files.

#include "train/data/tokenizer.h"

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "core/format.h"
#include "io/text.h"
#include "tests/support/damage.h"
#include "tests/support/python.h"
#include "tests/support/reference.h"
#include "tests/support/temp_folder.h"
#include "train/data/pretokenizer.h"

namespace mixtape::train {
namespace tokenizer_test {

using test::slurp;
using Tokens = std::vector<int64_t>;

std::string file(const std::string& name) { return slurp(test::data_file("tokenizer_" + name)); }
Tokenizer gpt2() { return Tokenizer::parse(file("vocab.json"), file("merges.txt"), "f"); }
Tokenizer llama() { return Tokenizer::parse(file("tiny.json"), "", "f"); }
Tokens tokens(const Tensor& t) { return to_vector<int64_t>(t); }

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += char(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// `as` has the name of a reference's tokens.
void expect_tokens(const Tokenizer& tokenizer, const std::string& as, const test::json& reference) {
  for (const auto& c : reference) {
    const std::string text = bytes_of(c.at("bytes"));
    const Tensor got = tokenizer.encode(text);
    EXPECT_EQ(got.dtype(), i64);
    EXPECT_EQ(tokens(got), c.at(as).get<Tokens>()) << as << " " << text;
    if (text.find("<|pad|>") == text.npos) {  // which takes spaces
      EXPECT_EQ(tokenizer.decode(got), replace_invalid(text));
    }
  }
}

TEST(Tokenizer, GivesTheTokensOfTheReference) {
  const test::json reference = test::read_reference("tokenizer_reference.json");
  expect_tokens(gpt2(), "gpt2", reference);
  expect_tokens(llama(), "llama", reference);
}

TEST(Tokenizer, GivesTheTokensOfOtherLibrariesForManyTexts) {
  if (!test::python("import tokenizers, tiktoken"))
    GTEST_SKIP() << "needs Python with tokenizers and tiktoken (MIXTAPE_PYTHON names the "
                    "interpreter)";
  const test::TempFolder folder;
  const std::string path = folder / "reference.json";
  ASSERT_TRUE(test::python_script(test::data_file("make_tokenizer_files.py"), path));
  const test::json reference = test::read_json(path);
  ASSERT_EQ(reference.size(), 10'000u);
  expect_tokens(gpt2(), "gpt2", reference);
  expect_tokens(gpt2(), "tiktoken", reference);
  expect_tokens(llama(), "llama", reference);
}

TEST(Tokenizer, LoadsFilesByTheirNames) {
  const test::TempFolder folder;
  for (const auto& [vocabulary, merges] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    test::spit(folder / vocabulary, file("vocab.json"));
    test::spit(folder / merges, file("merges.txt"));
    const Tokenizer t = Tokenizer::load(folder / vocabulary);
    EXPECT_EQ(t.size(), 501);
    EXPECT_EQ(t.id("<|endoftext|>"), 500);
    EXPECT_EQ(tokens(t.encode("the layers")), tokens(gpt2().encode("the layers")));
  }
  EXPECT_EQ(Tokenizer::load(test::data_file("tokenizer_tiny.json")).size(), 502);
  EXPECT_ERROR(Tokenizer::load(folder / "none.json"), "none.json: cannot open");
}

TEST(Tokenizer, TakesKeysInAnyOrder) {
  const Tokenizer t = Tokenizer::parse(
      R"({"model": {"merges": [["a", "b"]], "vocab": {"ab": 2, "b": 1, "a": 0}, "type": "BPE"}, )"
      R"("pre_tokenizer": {"pretokenizers": [{"use_regex": true, "type": "ByteLevel"}], )"
      R"("type": "Sequence"}, "added_tokens": [{"content": "<|>", "id": 3, "rstrip": true, )"
      R"("lstrip": true}]})",
      "", "f");
  EXPECT_EQ(tokens(t.encode("abab")), (Tokens{2, 2}));
  EXPECT_EQ(tokens(t.encode("a\u3000 <|>\u00a0\u2003b<|><|>")), (Tokens{0, 3, 1, 3, 3}));
}

TEST(Tokenizer, AddedTokensMayBePlainText) {
  const Tokenizer t = gpt2();
  const std::string text = "a<|endoftext|>b";
  EXPECT_EQ(tokens(t.encode(text))[1], 500);
  const Tensor plain = t.encode(text, {.added = false});
  EXPECT_GT(plain.numel(), 5);
  EXPECT_EQ(t.decode(plain), text);
  EXPECT_EQ(t.decode(t.encode(text)), text);
}

TEST(Tokenizer, ATextMayBeginWithASpace) {
  std::string spaced = file("tiny.json");
  const std::string regex = "\"use_regex\": false";
  const size_t split = spaced.find("{\"type\": \"Split\""),
               bytes = spaced.find("{\"type\": \"ByteLevel\"");
  spaced.erase(split, bytes - split);
  spaced.replace(spaced.find(regex), regex.size(), "\"use_regex\": true");
  const std::string space = "\"add_prefix_space\": false";
  spaced.replace(spaced.find(space), space.size(), "\"add_prefix_space\": true");
  const Tokenizer t = Tokenizer::parse(spaced, "", "f");
  EXPECT_EQ(t.decode(t.encode("the")), " the");
  EXPECT_EQ(t.decode(t.encode(" the")), " the");
  EXPECT_EQ(t.decode(t.encode("the<|end|>the")), " the<|end|> the");
}

TEST(Tokenizer, TakesTimeNearlyLinearInAWord) {
  const Tokenizer t = gpt2();
  const std::string word(2'000'000, 'a');  // one piece
  EXPECT_EQ(t.decode(t.encode(word)), word);
}

TEST(Tokenizer, SaysWhatIsWrong) {
  const Tokenizer t = gpt2();
  EXPECT_ERROR(t.decode(from({501}, {1}, i64)), "token 501 is not among the 501 of f");
  EXPECT_ERROR(t.decode(from({-1}, {1}, i64)), "token -1 is not among");
  EXPECT_ERROR(t.decode(ones({1})), "tokens must be integers, got f32");
  EXPECT_ERROR(t.id("no such token"), "f: has no token \"no such token\"");

  const auto error = [](const std::string& json, const std::string& merges = "") {
    return test::error([&] { Tokenizer::parse(json, merges, "f").encode("xyz"); });
  };
  const auto changed = [](const std::string& what, const std::string& by) {
    std::string text = file("tiny.json");
    text.replace(text.find(what), what.size(), by);
    return text;
  };
  const auto model = [](const std::string& inside) {
    return "{\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"model\": {" + inside + "}}";
  };
  const std::string abc = R"({"a": 0, "b": 1, "ab": 2})";
  const std::pair<std::string, std::string> cases[] = {
      {error("[]"), "f: has neither a model nor, beside it, merges"},
      {error("7"), "f: it is not an object"},
      {error("{\"a\": 0"), "f: invalid JSON near byte"},
      {error("{}"), "f: has neither a model nor, beside it, merges"},
      {error(abc), "f: has neither a model nor, beside it, merges"},
      {error(abc, "ab\n"), "f: line 1 of the merges, \"ab\", does not have two parts"},
      {error(abc, "c a\n"), "f: a merge has or makes \"ca\", which is not in the vocabulary"},
      {error(abc, "b a\n"), "f: a merge has or makes \"ba\", which"},
      {error(abc, "a b\n"), "f: byte 0x78 is not in the vocabulary"},
      {error(R"({"a": 0, "b": 0})", "a b"), "f: token 0 is \"a\" and \"b\""},
      {error(R"({"a": 0, "b": 70000})", "a b"), "f: token 70000 of 2 is too large"},
      {error(R"({"a": 100000000})"), "f: token \"a\" has no number below 100000000"},
      {error(model("\"vocab\": {\"a\": -1}")), "f: token \"a\" has no number below 100000000"},
      {error(model("\"type\": \"WordPiece\"")),
       "f: a model of type \"WordPiece\" is not supported"},
      {error(model("\"byte_fallback\": true")), "f: byte_fallback is not supported"},
      {error(model("\"dropout\": 0.1")), "f: dropout \"0.1\" is not supported"},
      {error(model("\"merges\": [\"ab\"]")), "f: merge \"ab\" does not have two parts"},
      {error(model("\"merges\": [7]")), "f: a merge is not a text"},
      {error(model("\"merges\": [[\"a\",\"b\",\"c\"]]")), "f: a merge has more than two parts"},
      {error("{\"model\": {}}"), "f: its pre_tokenizer has no step ByteLevel"},
      {error(
           "{\"added_tokens\": [{}], \"model\": {}, \"pre_tokenizer\": {\"type\": \"ByteLevel\"}}"),
       "f: an added token needs content and id"},
      {error("{\"added_tokens\": [{\"single_word\": true}]}"), "f: an added token of single words"},
      {error("{\"normalizer\": {\"type\": \"NFC\"}}"), "f: normalizer \"NFC\" is not supported"},
      {error(changed("\"Isolated\"", "\"Removed\"")),
       "f: its pre_tokenizer's behavior must be Isolated, got \"Removed\""},
      {error(changed("{1,3}", "{1,4}")), "f: its pre_tokenizer splits by \"(?i:'s"},
      {error(changed("\"Split\"", "\"Digits\"")), "a step \"Digits\" that is not supported there"},
      {error(changed("\"use_regex\": false", "\"use_regex\": true")), "a step \"ByteLevel\" that"},
      {error(model("\"vocab\": {\"a\": {}}")), "f: token \"a\" has no number"},
      {error("{\"a\":" + std::string(20, '[') + std::string(20, ']') + "}"), "deeper than 16"},
  };
  for (const auto& [message, wanted] : cases)
    EXPECT_NE(message.find(wanted), std::string::npos) << message << "\nwanted: " << wanted;
}

TEST(Tokenizer, SurvivesDamage) {
  const std::string small =
      R"({"added_tokens": [{"id": 3, "content": "<|>", "lstrip": true}], "pre_tokenizer": )"
      R"({"type": "ByteLevel", "add_prefix_space": false}, "model": {"type": "BPE", "vocab": )"
      R"({"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
  EXPECT_EQ(tokens(Tokenizer::parse(small, "", "f").encode("ab <|>")), (Tokens{2, 3}));
  test::survive_damage(small, "{}[]\":,",
                       [](auto bytes) { Tokenizer::parse(io::as_text(bytes), "", "f"); });
}

TEST(Pretokenizer, ReplacesWhatPythonReplaces) {
  const std::pair<std::string, int> cases[] = {
      {"\xff", 1},         {"\xc3", 1},         {"\xe2\x82", 1},         {"\xf0\x9f\x98", 1},
      {"\xed\xa0\x80", 3}, {"\xc0\x80", 2},     {"\xf4\x90\x80\x80", 4}, {"\x80\x80", 2},
      {"\xe0\x80\x80", 3}, {"\xf0\x8f\xbf", 3}, {"\xe2(\xa1", 2},        {"\xf1\x80\x80", 1}};
  for (const auto& [bytes, count] : cases) {
    const std::string got = replace_invalid("a" + bytes + "b");
    int found = 0;
    for (size_t at = 0; (at = got.find("\ufffd", at)) != got.npos; ++at) ++found;
    EXPECT_EQ(found, count) << bytes.size() << " bytes";
    EXPECT_EQ(got.front(), 'a');
    EXPECT_EQ(got.back(), 'b');
  }
  EXPECT_EQ(replace_invalid("größer \U0010ffff"), "größer \U0010ffff");
}

TEST(Pretokenizer, KnowsTheClassesOfUnicode) {
  using enum CharClass;
  for (const auto& [code, kind] :
       std::initializer_list<std::pair<uint32_t, CharClass>>{{'a', Letter},
                                                             {0xdf, Letter},
                                                             {0x4e00, Letter},
                                                             {0x1c89, Letter},
                                                             {'0', Number},
                                                             {0xbd, Number},
                                                             {0x10d40, Number},
                                                             {' ', Space},
                                                             {0x85, Space},
                                                             {0x3000, Space},
                                                             {0x1c, Other},
                                                             {'_', Other},
                                                             {0x300, Other},
                                                             {0x1f600, Other},
                                                             {0, Other},
                                                             {0x10ffff, Other}})
    EXPECT_EQ(char_class(code), kind) << code;
  int letters = 0, numbers = 0, spaces = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    letters += char_class(c) == Letter;
    numbers += char_class(c) == Number;
    spaces += char_class(c) == Space;
  }
  EXPECT_EQ(letters, 141028);
  EXPECT_EQ(numbers, 1911);
  EXPECT_EQ(spaces, 25);
}

}  // namespace tokenizer_test
}  // namespace mixtape::train
