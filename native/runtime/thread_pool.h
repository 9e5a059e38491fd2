// A fixed team of threads that runs one function at a time, the same function on every thread (SPMD).
//
//   pool.Run([&](Worker& worker) {
//     FirstOp(args, worker);   // splits its work by worker.index() and worker.count()
//     worker.Barrier();        // everyone sees what the first op wrote
//     SecondOp(args, worker);
//   });
//
// A team that shares its processors with other busy processes can be slower than one thread by a factor of ten: each barrier
// waits until whoever lost its processor gets it back (an emulated decode of 360 barriers beside one busy process, on two
// processors: 57 ms with two threads, 3 ms with one). Two things keep that away. Waiting adapts: a wait spins for tens of
// microseconds where that has paid and parks on a futex at once where it has not. And the team adapts: when much time was spent
// parked, workers leave the Run where it says Regroup, the next Runs use fewer, and more are tried again later. So
// worker.count() may differ from Run to Run and change at a Regroup; results must not depend on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "runtime/placement.h"
#include "runtime/run_delay.h"

namespace ramet {

class ThreadPool;

// How one thread waits, and what it cost during the current Run.
struct Waiter {
  int64_t spin_ns = 0;    // how long to spin before parking
  int64_t parked_ns = 0;  // time spent parked since this was set to 0
};

// One thread's view of the team during a Run.
class Worker {
 public:
  int index() const { return index_; }
  int count() const { return count_; }

  // Returns once all workers of the Run have called it. What any of them wrote before is visible to all after.
  void Barrier();

  // Barrier, after which the team may be smaller. False: this worker is no longer in it and must return from the function at
  // once, touching nothing of the caller's.
  [[nodiscard]] bool Regroup();

  // This worker's share of [0, n) in a static split into `count` runs of whole `grain`s: [begin, end), maybe empty.
  struct Range {
    int64_t begin;
    int64_t end;
  };
  Range Split(int64_t n, int64_t grain = 1) const;

 private:
  friend class ThreadPool;
  Worker(ThreadPool* pool, int index, int count, int32_t call) : pool_(pool), index_(index), count_(count), call_(call) {}

  ThreadPool* pool_;
  int index_;
  int count_;
  int32_t call_;  // which of its seat's calls this is
};

// How many workers the next Run uses: all of them while nothing is in their way.
class TeamSize {
 public:
  explicit TeamSize(int most) : most_(most), now_(most) {}

  int now() const { return now_; }

  // A Run of now() workers went well, or it `suffered`: worker 0 was parked for much of it because others were kept from running.
  void Learn(bool suffered);

 private:
  int most_;
  int now_;
  int runs_left_ = 0;  // with a reduced team, before more workers are tried
  int patience_ = 0;   // what runs_left_ starts from; doubles while trying fails
};

class ThreadPool {
 public:
  // A team of up to `threads` >= 1 workers: the caller of Run is worker 0, the others are threads owned by the pool.
  // Unless `ask_kernel`, whoever keeps worker 0 waiting counts as kept from running: so it is where the kernel does not say, and
  // in tests.
  explicit ThreadPool(int threads, bool ask_kernel = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The most workers that a Run has.
  int size() const { return static_cast<int>(seats_.size()); }

  // Calls fn(worker) once on each worker of the Run and returns when all have returned. `fn` must not throw and must not call
  // Run. One caller at a time.
  template <typename Fn>
  void Run(Fn&& fn) {
    RunErased([](void* context, Worker& worker) { (*static_cast<std::remove_reference_t<Fn>*>(context))(worker); },
              const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  friend class Worker;
  using Call = void (*)(void* context, Worker& worker);

  // One worker's place; on cache lines of its own.
  struct alignas(64) Seat {
    std::atomic<int32_t> calls{0};  // counts the Runs it was called to; its thread waits for a change
    std::atomic<int32_t> left{0};   // the last of these calls that it was sent away from
    Waiter at_barrier;
    Waiter between_runs;
    RunDelay delay;      // of worker 0: not known
    std::thread thread;  // of worker 0: none
  };

  void RunErased(Call call, void* context);
  void Loop(int index);
  void Work(int index, int32_t call);
  void Meet(Worker& worker, bool may_shrink);
  void Shrink();
  bool Suffers() const;
  int64_t DelayNs() const;
  void CallWorkers(int count);

  std::vector<Seat> seats_;
  TeamSize team_;
  Placement placement_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  int count_ = 0;         // workers of the current Run; the last to arrive at a Regroup may lower it
  int64_t begin_ns_ = 0;  // of the current Run
  bool ask_kernel_;
  int64_t delay_ns_ = 0;  // of the workers until the current Run began
  bool stopping_ = false;
  alignas(64) std::atomic<int32_t> arrived_{0};  // workers at the current barrier
  std::atomic<int32_t> shrink_to_{0};            // what count_ becomes at the next Regroup, if less
  alignas(64) std::atomic<int32_t> phase_{0};    // counts passed barriers; workers wait for it to change
};

}  // namespace ramet
