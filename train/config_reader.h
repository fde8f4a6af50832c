#pragma once
// ConfigReader: the values of a small Hugging Face JSON file, by the paths of their keys.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/check.h"
#include "io/json.h"
#include "io/text.h"

namespace mixtape::train {

// All values by path, such as "rope_scaling.factor"; the values of a list share a path.
class ConfigReader final : public io::JsonEvents {
 public:
  explicit ConfigReader(std::string name) : name_(std::move(name)) {}  // begins every Error

  void open(char bracket) override {
    check(bracket == '{' || !path_.empty(), "{}: is not an object", name_);
    check(path_.size() < 8, "{}: nests deeper than 8", name_);
    keys_.push_back(key_);
    path_.push_back(path_.empty() ? "" : bracket == '{' ? key_ + "." : key_);
  }
  void close() override {
    path_.pop_back();
    key_ = std::move(keys_.back());  // for the next item of a list
    keys_.pop_back();
  }
  void key(std::string& name) override { key_ = path_.back() + name; }
  void scalar(io::JsonScalar& value) override {
    check(!path_.empty(), "{}: is not an object", name_);
    if (!std::holds_alternative<std::nullptr_t>(value)) all_[key_].push_back(std::move(value));
  }

  // The value of a key, or `otherwise`. Throws Error if there is neither.
  template <class T>
  T value(const std::string& key, std::optional<T> otherwise = {}) const {
    const auto found = all_.find(key);
    if (found == all_.end()) {
      check(otherwise.has_value(), "{}: has no {}", name_, key);
      return *otherwise;
    }
    check(found->second.size() == 1, "{}: has {} values of {}", name_, found->second.size(), key);
    return as<T>(key, found->second[0]);
  }
  int64_t size(const std::string& key, std::optional<int64_t> otherwise = {}) const {
    constexpr int64_t most = 1 << 24;
    const auto n = value<int64_t>(key, otherwise);
    check((0 < n && n <= most) || n == otherwise, "{}: {} must be from 1 to {}, got {}", name_, key,
          most, n);
    return n;
  }
  void expect(const std::string& key, const std::string& wanted) const {
    const auto found = value<std::string>(key, wanted);
    check(found == wanted, "{}: {} is {}, not {}", name_, key, io::quote(found), wanted);
  }
  template <class T>
  std::vector<T> list(const std::string& key) const {
    std::vector<T> values;
    if (const auto found = all_.find(key); found != all_.end())
      for (const io::JsonScalar& x : found->second) values.push_back(as<T>(key, x));
    return values;
  }
  bool has(const std::string& key) const { return all_.contains(key); }
  // True if an object of that key has values.
  bool has_within(const std::string& key) const {
    const auto first = all_.lower_bound(key + ".");
    return first != all_.end() && first->first.starts_with(key + ".");
  }
  // The value as text, whatever its type; "" if there is none.
  std::string text(const std::string& key) const {
    const auto found = all_.find(key);
    return found == all_.end() ? "" : io::json_text(found->second[0]);
  }

 private:
  template <class T>
  T as(const std::string& key, const io::JsonScalar& x) const {
    if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
      if (const auto* whole = std::get_if<uint64_t>(&x); whole && *whole < uint64_t{1} << 53)
        return static_cast<T>(*whole);
    }
    if constexpr (std::is_same_v<T, double>)
      if (const auto* whole = std::get_if<int64_t>(&x)) return static_cast<T>(*whole);
    if (const auto* same = std::get_if<T>(&x)) return *same;
    fail("{}: {} has the wrong type: {}", name_, key, io::quote(io::json_text(x)));
  }

  const std::string name_;
  std::vector<std::string> path_, keys_;  // of open objects and lists: the path, and the last key
  std::string key_;
  std::map<std::string, std::vector<io::JsonScalar>> all_;
};

}  // namespace mixtape::train
