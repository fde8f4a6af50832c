#pragma once
// Assertions about errors. Includes only core, so that tests of core may use it.

#include <gtest/gtest.h>

#include <string>

#include "core/device.h"
#include "core/error.h"
#include "core/stream.h"

namespace mixtape::test {

// The whole message of the Error that f throws or that the device reports for f's work, or "no
// error".
template <class F>
std::string full_error(const F& f) {
  try {
    f();
    synchronize(DefaultDevice::current());
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
// The message without the source location.
template <class F>
std::string error(const F& f) {
  const std::string text = full_error(f);
  return text.substr(0, text.find("\n  at "));
}

}  // namespace mixtape::test

// Expects an Error whose message contains the text.
#define EXPECT_ERROR(expression, text)                                                    \
  do {                                                                                    \
    const std::string message = ::mixtape::test::full_error([&] { (void)(expression); }); \
    EXPECT_NE(message.find(text), std::string::npos)                                      \
        << "message: " << message << "\nwanted: " << (text);                              \
  } while (false)
