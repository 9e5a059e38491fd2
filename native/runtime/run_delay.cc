#include "runtime/run_delay.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#endif

namespace ramet {

#if defined(__linux__)

RunDelay::~RunDelay() {
  if (file_ >= 0) close(file_);
}

void RunDelay::Open() { file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC); }

int64_t RunDelay::Read() const {
  char text[96];  // nanoseconds run, nanoseconds delayed, number of times
  const int file = file_;
  const ssize_t size = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
  if (size <= 0) return -1;
  text[size] = 0;
  char* end = nullptr;
  std::strtoll(text, &end, 10);
  return std::strtoll(end, nullptr, 10);
}

#else

RunDelay::~RunDelay() = default;
void RunDelay::Open() {}
int64_t RunDelay::Read() const { return -1; }

#endif

}  // namespace ramet
