// How long a thread was ready to run while its processor ran others, as the kernel counts it.
//
// This tells a team that is in the way of other processes from one whose work was uneven, or whose memory was touched for the
// first time: both make workers wait for each other, but only the first calls for fewer workers.
#pragma once

#include <atomic>
#include <cstdint>

namespace ramet {

class RunDelay {
 public:
  RunDelay() = default;
  ~RunDelay();
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;

  // Of the calling thread, from now on.
  void Open();

  // Nanoseconds since the thread began; any thread may ask, for half a microsecond. -1 where the system does not say.
  int64_t Read() const;

 private:
  std::atomic<int> file_{-1};
};

}  // namespace ramet
