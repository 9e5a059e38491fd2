// A fixed team of threads that runs one function at a time, the same function on every thread (SPMD).
//
//   pool.Run([&](Worker& worker) {
//     FirstOp(args, worker);   // splits its work by worker.index() and worker.count()
//     worker.Barrier();        // everyone sees what the first op wrote
//     SecondOp(args, worker);
//   });
//
// Whoever waits (a thread for the next Run, a worker at a barrier) spins for a few tens of microseconds, longer than the usual
// difference between workers, and then parks on a futex, so that a team on few cores does not starve the process beside it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/placement.h"

namespace ramet {

class ThreadPool;

// One thread's view of the team during a Run.
class Worker {
 public:
  int index() const { return index_; }
  int count() const { return count_; }

  // Returns once all workers of the team have called it. What any of them wrote before is visible to all after.
  void Barrier();

  // This worker's share of [0, n) in a static split into `count` runs of whole `grain`s: [begin, end), maybe empty.
  struct Range {
    int64_t begin;
    int64_t end;
  };
  Range Split(int64_t n, int64_t grain = 1) const;

 private:
  friend class ThreadPool;
  Worker(ThreadPool* pool, int index, int count) : pool_(pool), index_(index), count_(count) {}

  ThreadPool* pool_;
  int index_;
  int count_;
};

class ThreadPool {
 public:
  // A team of `threads` >= 1 workers: the caller of Run is worker 0, the others are threads owned by the pool.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls fn(worker) once on every thread of the team and returns when all have returned. `fn` must not throw and must not
  // call Run. One caller at a time.
  template <typename Fn>
  void Run(Fn&& fn) {
    RunErased([](void* context, Worker& worker) { (*static_cast<std::remove_reference_t<Fn>*>(context))(worker); },
              const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  friend class Worker;
  using Call = void (*)(void* context, Worker& worker);

  void RunErased(Call call, void* context);
  void Loop(int index);
  void WaitAtBarrier(int index);

  Placement placement_;
  std::vector<std::thread> threads_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<int32_t> run_{0};      // counts Runs; threads wait for it to change
  alignas(64) std::atomic<int32_t> arrived_{0};  // workers at the current barrier
  alignas(64) std::atomic<int32_t> phase_{0};    // counts passed barriers; workers wait for it to change
};

}  // namespace ramet
