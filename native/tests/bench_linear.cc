// Speed of `linear` beside the machine's roof: `bench_linear [tier] [threads] [k] [n] [format]`. Not a test; the best of
// a few runs counts.
//
// Weights come from copies that together exceed the caches. One row: GB/s of packed weights; the roof is the read of such memory
// printed first. More rows: GOP/s, a multiply-add counts two.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "runtime/cpu_features.h"

namespace {

using namespace ramet;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Least time of `tries` calls.
template <typename Function>
double Best(int tries, Function f) {
  double best = 1e9;
  for (int i = 0; i < tries; ++i) {
    const double start = Seconds();
    f();
    best = std::min(best, Seconds() - start);
  }
  return best;
}

std::vector<uint8_t> RandomFileBytes(Format format, int64_t n, int64_t k) {
  std::vector<uint8_t> bytes(FileBytes(format, n * k));
  uint32_t state = 1;
  for (uint8_t& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>((state >> 24) & 0x3f);  // keeps f16 scales finite
  }
  return bytes;
}

double ReadGbps(ThreadPool& pool, const AlignedBytes& bytes) {
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) * 8);
  constexpr int64_t kWindows = 16;
  const int64_t size = static_cast<int64_t>(bytes.size()) / kWindows;
  int64_t window = 0;
  const double time = Best(64, [&] {
    window = (window + 1) % kWindows;
    pool.Run([&](Worker& worker) {
      auto [begin, end] = worker.Split(size, 4096);
      begin += window * size;
      end += window * size;
      const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
      uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
      for (int64_t i = begin / 8; i + 8 <= end / 8; i += 8) {
        a += words[i]; b += words[i + 1]; c += words[i + 2]; d += words[i + 3];
        e += words[i + 4]; f += words[i + 5]; g += words[i + 6]; h += words[i + 7];
      }
      sums[static_cast<size_t>(worker.index()) * 8] = a + b + c + d + e + f + g + h;
    });
  });
  volatile uint64_t keep = sums[0];
  (void)keep;
  return static_cast<double>(size) / time / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const KernelTable& kernels = ChooseTier(argc > 1 ? argv[1] : "");
  ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 1);
  const int64_t k = argc > 3 ? std::atoi(argv[3]) : 576;
  const int64_t n = argc > 4 ? std::atoi(argv[4]) : 1536;
  {
    AlignedBytes memory(size_t{256} << 20);
    for (size_t i = 0; i < memory.size(); i += 64) memory.data()[i] = 1;
    std::printf("tier %s, %d threads, k %ld, n %ld; memory read %.1f GB/s\n", kernels.name, pool.size(), static_cast<long>(k),
                static_cast<long>(n), ReadGbps(pool, memory));
  }
  const int64_t kRows = 512;
  std::vector<float> x(static_cast<size_t>(kRows * k)), y(static_cast<size_t>(kRows * n));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 20 & 1023) - 512) / 512.0f;
  AlignedBytes scratch(LinearScratchBytes(kRows, k, pool.size()));
  for (int f = 0; f < kNumFormats; ++f) {
    const Format format = static_cast<Format>(f);
    const FormatInfo& info = GetFormatInfo(format);
    if (k % info.block_elements != 0 || (argc > 5 && info.name != argv[5])) continue;
    const std::vector<uint8_t> file = RandomFileBytes(format, n, k);
    std::vector<PackedMatrix> copies;
    const double start = Seconds();
    size_t bytes = 0;
    while (bytes < (size_t{160} << 20)) {
      copies.push_back(PackMatrix({.format = format, .n = n, .k = k, .bytes = file.data()}, pool));
      bytes += copies.back().bytes.size();
    }
    const double pack = Seconds() - start;
    LinearArgs args{.kernels = &kernels, .x = x.data(), .ldx = k, .rows = 1,
                    .outputs = {}, .num_outputs = 1, .scratch = scratch.data()};
    args.outputs[0] = {.weight = &copies[0], .y = y.data(), .ldy = n};
    // Windows of an eighth of the copies, in turn: short enough that one of them is not interrupted by a neighbour on the machine.
    const size_t window = std::max<size_t>(copies.size() / 8, 1);
    size_t next = 0;
    constexpr int64_t kRowCounts[] = {1, 8, 32, 512};
    double seconds[4];  // of one product
    for (int i = 0; i < 4; ++i) {
      args.rows = kRowCounts[i];
      const size_t products = args.rows == 512 ? 1 : window;
      const double all = Best(args.rows == 512 ? 7 : 64, [&] {
        const size_t first = next;
        next = (next + window) % (copies.size() / window * window);
        pool.Run([&](Worker& worker) {
          LinearArgs mine = args;
          for (size_t j = first; j < first + products; ++j) {
            mine.outputs[0].weight = &copies[j];
            Linear(mine, worker);
            worker.Barrier();
          }
        });
      });
      seconds[i] = all / static_cast<double>(products);
    }
    auto gops = [&](int i) { return 2.0 * static_cast<double>(kRowCounts[i] * n * k) / seconds[i] / 1e9; };
    std::printf("%-5.*s %.3f bits  pack %5.2f GB/s  1 row %6.1f GB/s  8 rows %7.1f GOP/s  32 rows %7.1f GOP/s  "
                "512 rows %7.1f GOP/s\n",
                static_cast<int>(info.name.size()), info.name.data(),
                8.0 * static_cast<double>(copies[0].bytes.size()) / static_cast<double>(n * k),
                static_cast<double>(bytes) / pack / 1e9, static_cast<double>(copies[0].bytes.size()) / seconds[0] / 1e9, gops(1),
                gops(2), gops(3));
  }
}
