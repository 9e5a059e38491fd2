// The team: everyone runs once, barriers separate writes from reads, splits cover, a parked or oversubscribed team still moves,
// and one whose workers keep it waiting becomes smaller. Meant to run under ThreadSanitizer too (RAMET_SANITIZE=thread).
#include "runtime/thread_pool.h"

#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "core/status.h"

namespace ramet {
namespace {

void TestEveryoneRunsOnce(ThreadPool& pool) {
  std::vector<int> calls(static_cast<size_t>(pool.size()), 0);
  int count = 0;
  pool.Run([&](Worker& worker) {
    if (worker.index() == 0) count = worker.count();
    ++calls[static_cast<size_t>(worker.index())];
  });
  Check(count >= 1 && count <= pool.size(), "a Run has some of the team");
  for (int i = 0; i < pool.size(); ++i)
    Check(calls[static_cast<size_t>(i)] == (i < count ? 1 : 0), "every worker is called once");
}

// Plain memory, written by one worker and read by its neighbour in the next round: a missing barrier is a data race.
void TestBarriersOrder(ThreadPool& pool, int rounds) {
  std::vector<int> now(static_cast<size_t>(pool.size()), 0);
  std::vector<int> next(static_cast<size_t>(pool.size()), 0);
  int count = 0;
  pool.Run([&](Worker& worker) {
    if (worker.index() == 0) count = worker.count();
    const size_t mine = static_cast<size_t>(worker.index());
    const size_t neighbour = static_cast<size_t>((worker.index() + 1) % worker.count());
    for (int round = 0; round < rounds; ++round) {
      next[mine] = now[neighbour] + 1;
      worker.Barrier();
      now[mine] = next[mine];
      worker.Barrier();
    }
  });
  for (int i = 0; i < count; ++i)
    Check(now[static_cast<size_t>(i)] == rounds, "what was written before a barrier is read after it");
}

// Workers other than 0 dawdle, and the kernel is not asked why: the team shrinks in mid-Run, every round's work is still done exactly once, and once nobody
// dawdles it grows again.
void TestRegroup() {
  constexpr int kRounds = 20;
  constexpr int64_t kWork = 40;
  ThreadPool pool(4, false);
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::vector<int> done(kWork, 0);
    int last_count = 0;
    pool.Run([&](Worker& worker) {
      for (int round = 0; round < kRounds; ++round) {
        const Worker::Range range = worker.Split(kWork);
        for (int64_t i = range.begin; i < range.end; ++i) ++done[static_cast<size_t>(i)];
        if (worker.index() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        if (!worker.Regroup()) return;
      }
      if (worker.index() == 0) last_count = worker.count();
    });
    Check(last_count == 1, "a team that keeps worker 0 waiting shrinks to it");
    for (const int times : done) Check(times == kRounds, "work is done once a round whatever the team");
  }
  RunDelay delay;
  delay.Open();
  const int64_t before_ns = delay.Read();
  Check(before_ns <= delay.Read(), "the time a thread was kept from running only grows");
  TeamSize size(4);
  for (int i = 0; i < 5; ++i) size.Learn(true);
  Check(size.now() == 1, "a team that suffers shrinks");
  int runs = 0;
  for (; size.now() < 4 && runs < 1000; ++runs) size.Learn(false);
  Check(size.now() == 4 && runs > 10, "a team is tried again after a while");
}

void TestSplit() {
  ThreadPool pool(5);
  for (const int64_t n : {0, 1, 4, 5, 16, 1000, 1001}) {
    for (const int64_t grain : {1, 8, 16}) {
      std::vector<int> taken(static_cast<size_t>(n), 0);
      pool.Run([&](Worker& worker) {
        const Worker::Range range = worker.Split(n, grain);
        Check(range.begin <= range.end && (range.begin % grain == 0 || range.begin == n), "splits are whole grains");
        for (int64_t i = range.begin; i < range.end; ++i) ++taken[static_cast<size_t>(i)];
      });
      for (const int count : taken) Check(count == 1, "a split covers everything once");
    }
  }
}

}  // namespace
}  // namespace ramet

int main() {
  using namespace ramet;
  for (const int threads : {1, 2, 3, 8}) {  // 8: more than there may be processors
    ThreadPool pool(threads);
    Check(pool.size() == threads, "a team has the size asked for");
    for (int i = 0; i < 200; ++i) TestEveryoneRunsOnce(pool);
    TestBarriersOrder(pool, 500);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long enough for the team to park
    TestBarriersOrder(pool, 50);
  }
  for (int i = 0; i < 50; ++i) ThreadPool idle(3);  // ends without ever having run
  TestSplit();
  TestRegroup();
  std::puts("thread_pool_test: ok");
  return 0;
}
