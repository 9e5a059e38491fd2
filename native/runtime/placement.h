// Keeps the workers of a team on different processors without pinning them.
//
// A scheduler that wakes a thread likes to put it beside the thread that woke it. With as many workers as processors that leaves
// one processor idle and two workers taking turns: a step of 32 rows took 40 ms instead of 12 in every other process on a machine
// of two cores. Pinning would cure it and break two engines on one machine, so a worker that finds itself on a colleague's
// processor asks to be moved once, and is free again right after.
#pragma once

#include <atomic>
#include <memory>

namespace ramet {

class Placement {
 public:
  explicit Placement(int workers);

  // Called by worker `index` when a Run begins (worker 0 before it wakes the others) and when it has slept at a barrier. About
  // 20 ns when all is well.
  void Settle(int index);

 private:
  // Calls that a moved worker stays where it is, so that a machine busy with other things is not asked again and again.
  static constexpr int kPatience = 4;

  struct alignas(64) Seat {
    std::atomic<int> processor{-1};
    int patience = 0;
  };

  bool Shared(int index, int processor) const;
  void Move(int index);

  int workers_;
  std::unique_ptr<Seat[]> seats_;
};

}  // namespace ramet
