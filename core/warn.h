#pragma once
// Warnings about usage that is allowed but probably a mistake.

#include <functional>
#include <string>
#include <vector>

#include "core/no_copy.h"

namespace mixtape {

// Passes the text to this thread's innermost OnWarning, or to stderr without one. Either receives a
// text only once.
void warn(const std::string& text);

// A guard: this thread's warnings go to `tell`.
class OnWarning : NoCopy {
 public:
  [[nodiscard]] explicit OnWarning(std::function<void(const std::string&)> tell);  // run by warn()
  ~OnWarning();

 private:
  friend void warn(const std::string& text);
  const std::function<void(const std::string&)> tell_;
  std::vector<std::string> told_;
  OnWarning* const outer_;
};

}  // namespace mixtape
