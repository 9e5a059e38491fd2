// The team: everyone runs once, barriers separate writes from reads, splits cover, and a parked or oversubscribed team still
// moves. Meant to run under ThreadSanitizer too (RAMET_SANITIZE=thread).
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
  pool.Run([&](Worker& worker) {
    Check(worker.count() == pool.size(), "a worker knows the size of its team");
    ++calls[static_cast<size_t>(worker.index())];
  });
  for (const int n : calls) Check(n == 1, "every worker is called once");
}

// Plain memory, written by one worker and read by its neighbour in the next round: a missing barrier is a data race.
void TestBarriersOrder(ThreadPool& pool, int rounds) {
  const int n = pool.size();
  std::vector<int> now(static_cast<size_t>(n), 0);
  std::vector<int> next(static_cast<size_t>(n), 0);
  pool.Run([&](Worker& worker) {
    const size_t mine = static_cast<size_t>(worker.index());
    const size_t neighbour = static_cast<size_t>((worker.index() + 1) % n);
    for (int round = 0; round < rounds; ++round) {
      next[mine] = now[neighbour] + 1;
      worker.Barrier();
      now[mine] = next[mine];
      worker.Barrier();
    }
  });
  for (const int value : now) Check(value == rounds, "what was written before a barrier is read after it");
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
  std::puts("thread_pool_test: ok");
  return 0;
}
