// The two ways to fail. `Raise`: the caller's input is wrong; an exception that becomes a Python one. `Check`: our own
// invariant is broken; prints where and aborts, because state can no longer be trusted.
#pragma once

#include <source_location>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ramet {

// Bad input: a plan, weight, step or argument that cannot be honoured.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Error with the parts written one after the other.
template <typename... Parts>
[[noreturn]] void Raise(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Error(text.str());
}

[[noreturn]] void CheckFailed(const char* what, const std::source_location& where);

inline void Check(bool holds, const char* what, const std::source_location& where = std::source_location::current()) {
  if (!holds) [[unlikely]]
    CheckFailed(what, where);
}

}  // namespace ramet
