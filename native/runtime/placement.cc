#include "runtime/placement.h"

#if defined(__linux__)
#include <sched.h>
#endif

namespace ramet {

Placement::Placement(int workers) : workers_(workers), seats_(new Seat[static_cast<size_t>(workers)]) {}

#if defined(__linux__)

void Placement::Settle(int index) {
  if (workers_ == 1) return;
  Seat& seat = seats_[index];
  const int processor = sched_getcpu();
  seat.processor.store(processor, std::memory_order_relaxed);
  if (seat.patience > 0) {
    --seat.patience;
  } else if (Shared(index, processor)) {
    Move(index);
    seat.patience = kPatience;
  }
}

// Only workers before this one count, so that of two on a processor just one moves.
bool Placement::Shared(int index, int processor) const {
  for (int other = 0; other < index; ++other) {
    if (seats_[other].processor.load(std::memory_order_relaxed) == processor) return true;
  }
  return false;
}

void Placement::Move(int index) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // over 1,024 processors: leave it to the scheduler
  cpu_set_t others = allowed;
  for (int other = 0; other < workers_; ++other) {
    const int processor = seats_[other].processor.load(std::memory_order_relaxed);
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_CLR(static_cast<unsigned>(processor), &others);
  }
  if (CPU_COUNT(&others) == 0) return;  // more workers than processors
  if (sched_setaffinity(0, sizeof others, &others) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
  seats_[index].processor.store(sched_getcpu(), std::memory_order_relaxed);
}

#else

void Placement::Settle(int) {}

#endif

}  // namespace ramet
