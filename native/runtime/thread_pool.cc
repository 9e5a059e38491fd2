#include "runtime/thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ramet {
namespace {

// Long enough to cover the imbalance between workers of a decode step (measured 2 to 15 µs), short enough that a waiting
// thread costs a busy neighbour next to nothing.
constexpr std::chrono::microseconds kSpin{40};

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Blocks until `word` differs from `old`. Returns whether the thread slept for it, and so may have woken elsewhere.
bool WaitForChange(const std::atomic<int32_t>& word, int32_t old) {
  std::chrono::steady_clock::time_point deadline{};
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (word.load(std::memory_order_acquire) != old) return false;
      Pause();
    }
    const auto now = std::chrono::steady_clock::now();
    if (deadline == std::chrono::steady_clock::time_point{}) deadline = now + kSpin;
    if (now >= deadline) break;
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
  return true;
}

}  // namespace

void Worker::Barrier() {
  if (count_ > 1) pool_->WaitAtBarrier(index_);
}

Worker::Range Worker::Split(int64_t n, int64_t grain) const {
  const int64_t grains = (n + grain - 1) / grain;
  const int64_t begin = grains * index_ / count_ * grain;
  const int64_t end = grains * (index_ + 1) / count_ * grain;
  return {std::min(begin, n), std::min(end, n)};
}

ThreadPool::ThreadPool(int threads) : placement_(std::max(threads, 1)) {
  threads_.reserve(static_cast<size_t>(std::max(threads, 1) - 1));
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this, i] { Loop(i); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  run_.fetch_add(1, std::memory_order_release);
  run_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::RunErased(Call call, void* context) {
  call_ = call;
  context_ = context;
  if (!threads_.empty()) {
    placement_.Settle(0);
    run_.fetch_add(1, std::memory_order_release);
    run_.notify_all();
  }
  Worker worker(this, 0, size());
  call(context, worker);
  worker.Barrier();
}

void ThreadPool::Loop(int index) {
  // Counted from zero, not read: a Run may begin before this thread does, but none ends without it.
  for (int32_t seen = 0;; ++seen) {
    WaitForChange(run_, seen);
    if (stopping_) return;
    placement_.Settle(index);
    Worker worker(this, index, size());
    call_(context_, worker);
    worker.Barrier();
  }
}

void ThreadPool::WaitAtBarrier(int index) {
  const int32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
  } else if (WaitForChange(phase_, phase)) {
    placement_.Settle(index);
  }
}

}  // namespace ramet
