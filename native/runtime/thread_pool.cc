#include "runtime/thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ramet {
namespace {

// The longest spin: covers the usual imbalance between workers, and a parked thread takes about as long to come back.
constexpr int64_t kMaxSpinNs = 50'000;

// Pauses before the clock is first read, 1 to 3 µs: most waits at a barrier are shorter.
constexpr int kPausesPerLook = 64;

// A Run of which worker 0 was parked for more than a tenth, while its colleagues were kept from running for as long, has somebody
// in its way. Parked alone says little: first touches of memory and the packing of weights are uneven by nature.
constexpr int64_t kParkedShare = 10;

// How long worker 0 may be parked before a Run that is under way is judged.
constexpr int64_t kJudgeAfterNs = 500'000;

// Runs with a reduced team before a larger one is tried. A trial that fails costs about one run, so 32 bound the cost of trying at
// some 5 %; with 256 one interruption halved the speed of the next second.
constexpr int kMinPatience = 2;
constexpr int kMaxPatience = 32;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Blocks until `word` differs from `old`. Returns whether the thread slept for it, and so may have woken elsewhere.
bool WaitForChange(const std::atomic<int32_t>& word, int32_t old, Waiter& waiter) {
  int64_t begin = 0;
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (word.load(std::memory_order_acquire) != old) {
        if (begin) waiter.spin_ns = kMaxSpinNs;
        return false;
      }
      Pause();
    }
    const int64_t now = Nanoseconds();
    if (!begin) begin = now;
    if (now - begin >= waiter.spin_ns) break;
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
  const int64_t waited = Nanoseconds() - begin;
  waiter.parked_ns += waited;
  // What came soon after all is worth spinning for next time; what did not, is not.
  waiter.spin_ns = waited < 2 * kMaxSpinNs ? kMaxSpinNs : waiter.spin_ns / 2;
  return true;
}

int Fewer(int count) { return std::max(1, count - (count + 3) / 4); }

}  // namespace

void Worker::Barrier() {
  if (count_ > 1) pool_->Meet(*this, false);
}

bool Worker::Regroup() {
  if (count_ > 1) pool_->Meet(*this, true);
  return index_ < count_;
}

Worker::Range Worker::Split(int64_t n, int64_t grain) const {
  const int64_t grains = (n + grain - 1) / grain;
  const int64_t begin = (grains * index_ + count_ - 1) / count_ * grain;  // rounded up: a single grain is worker 0's
  const int64_t end = (grains * (index_ + 1) + count_ - 1) / count_ * grain;
  return {std::min(begin, n), std::min(end, n)};
}

void TeamSize::Learn(bool suffered) {
  if (suffered) {
    now_ = Fewer(now_);
    patience_ = std::clamp(patience_ * 2, kMinPatience, kMaxPatience);
    runs_left_ = patience_;
  } else if (now_ == most_) {
    patience_ -= (patience_ + 3) / 4;
  } else if (--runs_left_ <= 0) {
    now_ = std::min(now_ + (most_ + 3) / 4, most_);  // and again after the next Run, if that goes well
  }
}

ThreadPool::ThreadPool(int threads, bool ask_kernel)
    : seats_(static_cast<size_t>(std::max(threads, 1))), team_(size()), placement_(size()), ask_kernel_(ask_kernel) {
  for (Seat& seat : seats_) seat.at_barrier.spin_ns = seat.between_runs.spin_ns = kMaxSpinNs;
  for (int i = 1; i < size(); ++i) seats_[static_cast<size_t>(i)].thread = std::thread([this, i] { Loop(i); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  CallWorkers(size());
  for (size_t i = 1; i < seats_.size(); ++i) seats_[i].thread.join();
}

void ThreadPool::CallWorkers(int count) {
  for (int i = 1; i < count; ++i) {
    Seat& seat = seats_[static_cast<size_t>(i)];
    seat.calls.fetch_add(1, std::memory_order_release);
    seat.calls.notify_one();
  }
}

void ThreadPool::RunErased(Call call, void* context) {
  call_ = call;
  context_ = context;
  count_ = team_.now();
  shrink_to_.store(count_, std::memory_order_relaxed);
  seats_[0].at_barrier.parked_ns = 0;
  if (count_ > 1) delay_ns_ = DelayNs();
  begin_ns_ = Nanoseconds();
  if (count_ > 1) placement_.Settle(0);
  CallWorkers(count_);
  Work(0, 0);
  if (size() > 1) team_.Learn(Suffers());
}

bool ThreadPool::Suffers() const {
  const int64_t much_ns = (Nanoseconds() - begin_ns_) / kParkedShare;
  if (seats_[0].at_barrier.parked_ns <= much_ns) return false;
  return delay_ns_ < 0 || DelayNs() - delay_ns_ > much_ns;
}

// Of all workers but worker 0, together; -1 if not known.
int64_t ThreadPool::DelayNs() const {
  int64_t sum = 0;
  for (size_t i = 1; i < seats_.size(); ++i) {
    const int64_t delay = seats_[i].delay.Read();
    if (delay < 0) return -1;
    sum += delay;
  }
  return sum;
}

void ThreadPool::Work(int index, int32_t call) {
  Worker worker(this, index, count_, call);
  call_(context_, worker);
  if (worker.index() < worker.count()) worker.Barrier();
}

void ThreadPool::Loop(int index) {
  Seat& seat = seats_[static_cast<size_t>(index)];
  if (ask_kernel_) seat.delay.Open();
  // Counted from zero, not read: a Run may begin before this thread does, but none ends without it.
  for (int32_t seen = 0;; ++seen) {
    WaitForChange(seat.calls, seen, seat.between_runs);
    if (stopping_) return;
    placement_.Settle(index);
    Work(index, seen + 1);
  }
}

void ThreadPool::Meet(Worker& worker, bool may_shrink) {
  Seat& seat = seats_[static_cast<size_t>(worker.index_)];
  const int32_t phase = phase_.load(std::memory_order_relaxed);
  // Compared with the worker's own count: whoever arrives last may already be lowering count_.
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == worker.count_) {
    if (may_shrink) Shrink();
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
  } else if (WaitForChange(phase_, phase, seat.at_barrier)) {
    placement_.Settle(worker.index_);
  }
  if (!may_shrink) return;
  if (worker.index_ > 0 && seat.left.load(std::memory_order_relaxed) == worker.call_) {
    worker.count_ = worker.index_;  // not in it any more. The Run may be over and count_ another one's.
    return;
  }
  worker.count_ = count_;
  if (worker.index_ == 0 && seat.at_barrier.parked_ns > kJudgeAfterNs && Suffers()) {
    shrink_to_.store(Fewer(worker.count_), std::memory_order_relaxed);
  }
}

// By the last to arrive, before the others may go on.
void ThreadPool::Shrink() {
  const int count = std::min(count_, static_cast<int>(shrink_to_.load(std::memory_order_relaxed)));
  for (int i = count; i < count_; ++i) {
    Seat& seat = seats_[static_cast<size_t>(i)];
    seat.left.store(seat.calls.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  count_ = count;
}

}  // namespace ramet
