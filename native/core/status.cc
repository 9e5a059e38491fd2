#include "core/status.h"

#include <cstdio>
#include <cstdlib>

namespace ramet {

void CheckFailed(const char* what, const std::source_location& where) {
  std::fprintf(stderr, "ramet: broken invariant: %s (%s:%u, %s)\n", what, where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name());
  std::abort();
}

}  // namespace ramet
