// Byte pairs are merged by rank, from a heap, so a piece of n bytes takes n log n steps.

#include "train/data/tokenizer.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "core/check.h"
#include "core/format.h"
#include "io/text.h"
#include "train/data/tokenizer_file.h"

namespace mixtape::train {
namespace {

using Token = uint32_t;
constexpr Token none = UINT32_MAX;

}  // namespace

struct Tokenizer::Data {
  // A hash table of merges by their two tokens.
  class MergeTable {
   public:
    struct Merge {
      uint32_t rank = none;
      Token made = none;
    };

    void reserve(size_t merges) {
      size_t slots = 16;
      while (slots < 2 * merges) slots *= 2;
      slots_.assign(slots, {});
    }
    void add(Token left, Token right, const Merge& merge) {
      Slot& slot = slots_[find(left, right)];
      if (slot.merge.rank == none) slot = {left, right, merge};
    }
    const Merge& at(Token left, Token right) const { return slots_[find(left, right)].merge; }

   private:
    struct Slot {
      Token left = none, right = none;
      Merge merge;
    };
    // The slot of the pair, or the free one where it would be.
    size_t find(Token left, Token right) const {
      const uint64_t key = uint64_t{left} << 32 | right;
      size_t at = (key * 0x9e3779b97f4a7c15u >> 32) & (slots_.size() - 1);
      while (slots_[at].merge.rank != none &&
             (slots_[at].left != left || slots_[at].right != right))
        at = (at + 1) & (slots_.size() - 1);
      return at;
    }
    std::vector<Slot> slots_;  // their number is a power of two; at most half are taken
  };

  // The storage of an encode() call, reused for all its pieces.
  struct Work {
    struct Part {
      Token token;
      uint32_t before, after;  // numbers of the neighbours
    };
    struct Candidate {
      uint32_t rank, at;
      Token left, right, made;
      // Puts the lowest rank on top of the heap; of equal ones the first.
      bool operator<(const Candidate& other) const {
        return rank != other.rank ? rank > other.rank : at > other.at;
      }
    };
    std::vector<Part> parts;
    std::vector<Candidate> heap;
    std::vector<int64_t> tokens;
  };

  std::string name;
  std::vector<std::string> bytes;                        // of each token
  std::vector<bool> known;                               // true if the token is in the file
  std::unordered_map<std::string_view, Token> by_bytes;  // views of `bytes`
  std::unordered_map<std::string_view, Token> whole;     // pieces that are one token
  std::array<Token, 256> of_byte;
  MergeTable merges;
  std::vector<AddedToken> added;
  std::array<std::vector<const AddedToken*>, 256> added_by_byte;  // by first byte, longest first
  Pretokenizer pretokenizer;

  explicit Data(TokenizerFile file, std::string name);

  void merge(std::string_view piece, Work& work) const;
  void encode_text(std::string_view text, Work& work) const;
  void encode_all(std::string_view text, Work& work) const;
  const AddedToken* added_at(std::string_view text, size_t at) const;

 private:
  void add_tokens(const TokenizerFile& file);
  void add_merges(const TokenizerFile& file);
};

Tokenizer::Data::Data(TokenizerFile file, std::string of)
    : name(std::move(of)), pretokenizer(file.pretokenizer) {
  add_tokens(file);
  add_merges(file);
  added = std::move(file.added);
  std::ranges::stable_sort(added, std::greater(), [](const auto& t) { return t.text.size(); });
  for (const AddedToken& t : added) added_by_byte[uint8_t(t.text[0])].push_back(&t);
  Data::Work work;
  for (const auto& [piece, token] : by_bytes) {
    if (!file.ignore_merges) {
      work.tokens.clear();
      const bool possible =
          std::ranges::all_of(piece, [&](char c) { return of_byte[uint8_t(c)] != none; });
      if (possible) merge(piece, work);
      if (!possible || work.tokens.size() != 1 || work.tokens[0] != int64_t(token)) continue;
    }
    whole.emplace(piece, token);
  }
}

void Tokenizer::Data::add_tokens(const TokenizerFile& file) {
  int64_t size = 0;
  for (const auto& [letters, id] : file.vocabulary) size = std::max(size, id + 1);
  for (const AddedToken& t : file.added) {
    check(t.id >= 0 && !t.text.empty(), "{}: an added token needs content and id", name);
    size = std::max(size, t.id + 1);
  }
  const size_t most = 16 * (file.vocabulary.size() + file.added.size()) + 1000;
  check(size_t(size) <= most, "{}: token {} of {} is too large", name, size - 1,
        file.vocabulary.size());
  bytes.resize(size_t(size));
  known.resize(size_t(size));
  std::vector<bool> spelled(bytes.size());
  const auto set = [&](int64_t id, const std::string& text) {
    const auto at = size_t(id);
    check(!known[at] || bytes[at] == text, "{}: token {} is {} and {}", name, id,
          io::quote(bytes[at]), io::quote(text));
    known[at] = true;
    bytes[at] = text;
  };
  std::string of_letters;
  for (const auto& [letters, id] : file.vocabulary) {
    spelled[size_t(id)] = bytes_of_letters(letters, of_letters);
    set(id, spelled[size_t(id)] ? of_letters : letters);
  }
  for (const AddedToken& t : file.added) {
    if (!known[size_t(t.id)]) set(t.id, t.text);
    bytes[size_t(t.id)] = t.text;
  }
  of_byte.fill(none);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!spelled[i]) continue;
    by_bytes.emplace(bytes[i], Token(i));
    if (bytes[i].size() == 1) of_byte[uint8_t(bytes[i][0])] = Token(i);
  }
}

void Tokenizer::Data::add_merges(const TokenizerFile& file) {
  merges.reserve(file.merges.size());
  std::string letters;
  const auto token = [&](const std::string& part) {
    const bool spelled = bytes_of_letters(part, letters);
    const auto found = spelled ? by_bytes.find(letters) : by_bytes.end();
    if (found == by_bytes.end())
      fail("{}: a merge has or makes {}, which is not in the vocabulary", name, io::quote(part));
    return found->second;
  };
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [left, right] = file.merges[rank];
    merges.add(token(left), token(right), {uint32_t(rank), token(left + right)});
  }
}

// Appends the tokens of a piece, beginning with one per byte.
void Tokenizer::Data::merge(std::string_view piece, Work& work) const {
  std::vector<Work::Part>& parts = work.parts;
  std::vector<Work::Candidate>& heap = work.heap;
  parts.clear();
  heap.clear();
  for (const char c : piece) {
    const Token t = of_byte[uint8_t(c)];
    check(t != none, "{}: byte {:#04x} is not in the vocabulary", name, uint8_t(c));
    const auto n = uint32_t(parts.size());
    parts.push_back({t, n - 1, n + 1});
  }
  parts.back().after = none;
  const auto propose = [&](uint32_t at) {
    const uint32_t next = parts[at].after;
    if (next == none) return false;
    const Token left = parts[at].token, right = parts[next].token;
    const MergeTable::Merge& m = merges.at(left, right);
    if (m.rank == none) return false;
    heap.push_back({m.rank, at, left, right, m.made});
    return true;
  };
  for (uint32_t i = 0; i < parts.size(); ++i) propose(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Work::Candidate c = heap.back();
    heap.pop_back();
    const uint32_t next = parts[c.at].after;
    // (A neighbour may have been merged since.)
    if (parts[c.at].token != c.left || next == none || parts[next].token != c.right) continue;
    parts[c.at].token = c.made;
    parts[c.at].after = parts[next].after;
    parts[next].token = none;
    if (parts[c.at].after != none) parts[parts[c.at].after].before = c.at;
    if (propose(c.at)) std::push_heap(heap.begin(), heap.end());
    if (parts[c.at].before != none && propose(parts[c.at].before))
      std::push_heap(heap.begin(), heap.end());
  }
  for (uint32_t i = 0; i != none; i = parts[i].after) work.tokens.push_back(parts[i].token);
}

// Encodes a text without added tokens.
void Tokenizer::Data::encode_text(std::string_view text, Work& work) const {
  std::string prefixed;
  if (pretokenizer.prefix_space && !text.empty() && text[0] != ' ')
    text = prefixed = " " + std::string(text);
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = pretokenizer.end_of_piece(text, at);
    const std::string_view piece = text.substr(at, end - at);
    if (const auto found = whole.find(piece); found != whole.end())
      work.tokens.push_back(found->second);
    else
      merge(piece, work);
  }
}

const AddedToken* Tokenizer::Data::added_at(std::string_view text, size_t at) const {
  for (const AddedToken* t : added_by_byte[uint8_t(text[at])])
    if (text.substr(at).starts_with(t->text)) return t;
  return nullptr;
}

void Tokenizer::Data::encode_all(std::string_view text, Work& work) const {
  size_t begin = 0;  // of the text still to encode
  const auto encode_until = [&](size_t end) { encode_text(text.substr(begin, end - begin), work); };
  for (size_t at = 0; at < text.size();) {
    const AddedToken* const t = added_at(text, at);
    if (!t) {
      ++at;
      continue;
    }
    encode_until(t->lstrip ? begin + begin_of_spaces(text.substr(begin, at - begin)) : at);
    work.tokens.push_back(t->id);
    at += t->text.size();
    if (t->rstrip) at = end_of_spaces(text, at);
    begin = at;
  }
  encode_until(text.size());
}

Tokenizer Tokenizer::parse(std::string_view json, std::string_view merges,
                           const std::string& name) {
  return Tokenizer(std::make_shared<const Data>(parse_tokenizer(json, merges, name), name));
}

Tokenizer Tokenizer::load(const std::string& path) {
  return Tokenizer(std::make_shared<const Data>(load_tokenizer_file(path), path));
}

Tensor Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::string valid;
  if (!io::is_utf8(text)) text = valid = replace_invalid(text);
  Data::Work work;
  work.tokens.reserve(text.size() / 3);
  if (options.added)
    data_->encode_all(text, work);
  else
    data_->encode_text(text, work);
  const Tensor tokens({int64_t(work.tokens.size())}, i64, Device::cpu());
  std::ranges::copy(work.tokens, tokens.data<int64_t>());
  return tokens;
}

std::string Tokenizer::decode(const Tensor& tokens) const {
  check(is_integer(tokens.dtype()), "tokens must be integers, got {}", tokens.dtype());
  std::string text;
  for (const int64_t token : to_vector<int64_t>(tokens)) {
    check(token >= 0 && token < size() && data_->known[size_t(token)],
          "token {} is not among the {} of {}", token, size(), data_->name);
    text += data_->bytes[size_t(token)];
  }
  return text;
}

int64_t Tokenizer::size() const { return int64_t(data_->bytes.size()); }

int64_t Tokenizer::id(std::string_view token) const {
  const auto found = std::ranges::find(data_->bytes, token);
  if (token.empty() || found == data_->bytes.end())
    fail("{}: has no token {}", data_->name, io::quote(token));
  return found - data_->bytes.begin();
}

}  // namespace mixtape::train
