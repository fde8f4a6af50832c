#pragma once
// HookList: registered functions, and the handles that remove them.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace mixtape {

// Removes a hook. Need not be kept, may outlive the hook's owner, and stays valid when that moves.
class HookHandle {
 public:
  void remove() {
    if (remove_) remove_();
  }

 private:
  template <class F>
  friend class HookList;
  std::function<void()> remove_;
};

template <class F>
class HookList {
 public:
  // `owner` keeps this list alive.
  HookHandle add(const std::shared_ptr<void>& owner, F f) {
    hooks_.emplace_back(++newest_, std::move(f));
    HookHandle handle;
    handle.remove_ = [list = std::weak_ptr(std::shared_ptr<HookList>(owner, this)), id = newest_] {
      if (const auto l = list.lock())
        std::erase_if(l->hooks_, [id](const auto& hook) { return hook.first == id; });
    };
    return handle;
  }
  bool empty() const { return hooks_.empty(); }
  // Calls f with each hook, in order of addition. Hooks added or removed during the call count the
  // next time.
  template <class Each>
  void for_each(const Each& f) const {
    const auto now = hooks_;
    for (const auto& [id, hook] : now) f(hook);
  }

 private:
  std::vector<std::pair<uint64_t, F>> hooks_;
  uint64_t newest_ = 0;
};

}  // namespace mixtape
