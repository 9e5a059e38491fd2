// `linear` in every format, tier and edge shape against double precision, and bit for bit against itself.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "core/status.h"
#include "formats/block.h"
#include "kernels/panel.h"
#include "ops/linear.h"
#include "runtime/cpu_features.h"
#include "tests/random_weights.h"

namespace ramet {
namespace {

int failures = 0;

// Reports at most 20 failures; main returns 1 if there was one.
template <typename... Parts>
void Expect(bool holds, const Parts&... parts) {
  if (holds) return;
  if (++failures > 20) return;
  std::ostringstream text;
  (text << ... << parts);
  std::fprintf(stderr, "FAILED: %s\n", text.str().c_str());
}

constexpr float kUntouched = -12345.0f;

struct Problem {
  Format format;
  int64_t n, k, rows;
  std::vector<uint8_t> file;
  std::vector<float> x;  // [rows, ldx]
  int64_t ldx;

  Problem(Format f, int64_t n_, int64_t k_, int64_t rows_, uint32_t seed)
      : format(f), n(n_), k(k_), rows(rows_), file(RandomWeights(f, n_ * k_, seed)),
        x(RandomFloats(rows_ * (k_ + 3), seed + 1)), ldx(k_ + 3) {}

  std::string Name() const {
    return std::string(GetFormatInfo(format).name) + " n=" + std::to_string(n) + " k=" + std::to_string(k) +
           " rows=" + std::to_string(rows);
  }
  PackedMatrix Pack(ThreadPool& pool) const {
    return PackMatrix({.format = format, .n = n, .k = k, .bytes = file.data()}, pool);
  }
};

// y [rows, n + 2]; the two columns beyond n must stay untouched.
std::vector<float> Run(const KernelTable& kernels, ThreadPool& pool, const PackedMatrix& weight, const float* x, int64_t ldx,
                       int64_t rows, const float* bias = nullptr, const std::vector<float>* residual = nullptr) {
  const int64_t ldy = weight.n + 2;
  std::vector<float> y(static_cast<size_t>(rows * ldy), kUntouched);
  if (residual) y = *residual;
  AlignedBytes scratch(LinearScratchBytes(rows, weight.k, pool.size()));
  LinearArgs args{.kernels = &kernels, .x = x, .ldx = ldx, .rows = rows,
                  .outputs = {}, .num_outputs = 1, .scratch = scratch.data()};
  args.outputs[0] = {.weight = &weight, .bias = bias, .y = y.data(), .ldy = ldy, .accumulate = residual != nullptr};
  pool.Run([&](Worker& worker) { Linear(args, worker); });
  return y;
}

bool SameBits(const float* a, const float* b, int64_t n) { return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0; }

// The activations as a quantised weight meets them, by the definition.
std::vector<double> Quantised(const float* x, int64_t k) {
  std::vector<double> out(static_cast<size_t>(k));
  for (int64_t b = 0; b < k; b += 32) {
    float max = 0.0f;
    for (int i = 0; i < 32; ++i) max = std::fmax(max, std::fabs(x[b + i]));
    for (int i = 0; i < 32; ++i) {
      const float code = max > 0.0f ? std::nearbyint(x[b + i] * (127.0f / max)) : 0.0f;
      out[static_cast<size_t>(b + i)] = static_cast<double>(max / 127.0f) * static_cast<double>(code);
    }
  }
  return out;
}

// For each weight of a row the sum of the magnitudes that its formula adds up: what rounding errors are relative to.
std::vector<double> Magnitudes(Format format, const uint8_t* row, int64_t k) {
  const FormatInfo& info = GetFormatInfo(format);
  std::vector<double> out(static_cast<size_t>(k));
  for (int64_t i = 0; i < k; i += info.block_elements, row += info.block_bytes) {
    if (!info.quantised) {
      out[static_cast<size_t>(i)] = std::fabs(static_cast<double>(LoadElement(format, row, 0)));
      continue;
    }
    Block block;
    ReadBlock(format, row, &block);
    const double d = std::fabs(HalfToFloat(block.d)), m = std::fabs(HalfToFloat(block.m));
    for (int e = 0; e < info.block_elements; ++e) {
      const int s = block.scale_elements ? e / block.scale_elements : 0;
      const double scale = block.scale_elements ? std::abs(block.scales[s]) : 1;
      const double min = block.minimum == Minimum::kScaled ? block.mins[s] : block.minimum == Minimum::kAdded ? 1 : 0;
      out[static_cast<size_t>(i + e)] = d * scale * (block.codes[e] + block.zero) + m * min;
    }
  }
  return out;
}

// Every element within the rounding error of one chain of float operations over k.
void TestAgainstDouble(const KernelTable& kernels, ThreadPool& pool) {
  for (int f = 0; f < kNumFormats; ++f) {
    const Format format = static_cast<Format>(f);
    const FormatInfo& info = GetFormatInfo(format);
    for (const int64_t n : {1, 7, 8, 9, 33}) {
      for (const int64_t blocks : {1, 3}) {
        for (const int64_t rows : {1, 3, 17}) {
          const Problem problem(format, n, blocks * info.block_elements, rows, static_cast<uint32_t>(f * 100 + n + rows));
          const int64_t k = problem.k;
          const std::vector<float> y = Run(kernels, pool, problem.Pack(pool), problem.x.data(), problem.ldx, rows);
          std::vector<float> w(static_cast<size_t>(k));
          for (int64_t j = 0; j < n; ++j) {
            const uint8_t* file_row = problem.file.data() + FileBytes(format, k) * static_cast<size_t>(j);
            DequantizeRow(format, file_row, k, w.data());
            const std::vector<double> magnitudes = Magnitudes(format, file_row, k);
            for (int64_t r = 0; r < rows; ++r) {
              const float* x = problem.x.data() + r * problem.ldx;
              const std::vector<double> used = info.quantised ? Quantised(x, k) : std::vector<double>(x, x + k);
              double exact = 0, size = 0;
              for (int64_t i = 0; i < k; ++i) {
                const size_t at = static_cast<size_t>(i);
                exact += static_cast<double>(w[at]) * used[at];
                size += magnitudes[at] * std::fabs(used[at]);
              }
              const double steps = static_cast<double>(info.quantised ? 2 * k / 32 + 6 : 2 * k);
              const double error = std::fabs(static_cast<double>(y[static_cast<size_t>(r * (n + 2) + j)]) - exact);
              Expect(error <= steps * (0x1p-24 * size + 0x1p-149), kernels.name, " ", problem.Name(), " (", r, ", ", j,
                     "): error ", error, " of ", exact, ", bound ", steps * 0x1p-24 * size);
            }
          }
          for (int64_t r = 0; r < rows; ++r) {
            Expect(y[static_cast<size_t>(r * (n + 2) + n)] == kUntouched, kernels.name, " wrote beyond column n: ", problem.Name());
          }
        }
      }
    }
  }
}

// Row r of m rows on t threads has the bits of row r alone on one thread, with bias and residual too.
void TestBitsDependOnNothing(const KernelTable& kernels, std::vector<ThreadPool*> pools, bool all_counts) {
  for (int f = 0; f < kNumFormats; ++f) {
    const Format format = static_cast<Format>(f);
    const int64_t n = 71, k = GetFormatInfo(format).block_elements == 256 ? 512 : 96, max_rows = 70;
    const Problem problem(format, n, k, max_rows, static_cast<uint32_t>(900 + f));
    const PackedMatrix weight = problem.Pack(*pools[0]);
    const std::vector<float> bias = RandomFloats(n, 5);
    const std::vector<float> residual = RandomFloats(max_rows * (n + 2), 6);
    std::vector<float> alone, alone_added;
    for (int64_t r = 0; r < max_rows; ++r) {
      const float* x = problem.x.data() + r * problem.ldx;
      const std::vector<float> row = Run(kernels, *pools[0], weight, x, problem.ldx, 1, bias.data());
      alone.insert(alone.end(), row.begin(), row.end());
      const std::vector<float> start(residual.begin() + r * (n + 2), residual.begin() + (r + 1) * (n + 2));
      const std::vector<float> added = Run(kernels, *pools[0], weight, x, problem.ldx, 1, nullptr, &start);
      alone_added.insert(alone_added.end(), added.begin(), added.end());
    }
    for (int64_t rows = 1; rows <= max_rows; rows += all_counts ? 1 : 23) {
      const std::vector<float> start(residual.begin(), residual.begin() + rows * (n + 2));
      for (ThreadPool* pool : pools) {
        const std::vector<float> y = Run(kernels, *pool, weight, problem.x.data(), problem.ldx, rows, bias.data());
        Expect(SameBits(y.data(), alone.data(), rows * (n + 2)), kernels.name, " ", problem.Name(), ": ", rows, " rows on ",
               pool->size(), " threads differ from one row at a time");
        const std::vector<float> added = Run(kernels, *pool, weight, problem.x.data(), problem.ldx, rows, nullptr, &start);
        Expect(SameBits(added.data(), alone_added.data(), rows * (n + 2)), kernels.name, " ", problem.Name(), ": ", rows,
               " rows added to a residual on ", pool->size(), " threads differ");
      }
    }
  }
}

// Three outputs of different formats that share x equal three calls.
void TestSharedInput(const KernelTable& kernels, ThreadPool& pool) {
  const int64_t k = 256, rows = 37;
  const Problem a(Format::kQ4_1, 48, k, rows, 1), b(Format::kQ6_K, 17, k, rows, 2), c(Format::kF16, 5, k, rows, 3);
  const PackedMatrix weights[3] = {a.Pack(pool), b.Pack(pool), c.Pack(pool)};
  std::vector<float> y[3];
  AlignedBytes scratch(LinearScratchBytes(rows, k, pool.size()));
  LinearArgs args{.kernels = &kernels, .x = a.x.data(), .ldx = a.ldx, .rows = rows,
                  .outputs = {}, .num_outputs = 3, .scratch = scratch.data()};
  for (int i = 0; i < 3; ++i) {
    y[i].assign(static_cast<size_t>(rows * (weights[i].n + 2)), kUntouched);
    args.outputs[i] = {.weight = &weights[i], .y = y[i].data(), .ldy = weights[i].n + 2};
  }
  pool.Run([&](Worker& worker) { Linear(args, worker); });
  for (int i = 0; i < 3; ++i) {
    const std::vector<float> apart = Run(kernels, pool, weights[i], a.x.data(), a.ldx, rows);
    Expect(y[i] == apart, kernels.name, ": output ", i, " of three differs from the same matrix alone");
  }
}

// Codes at both ends with activations at both ends: what overflows if any integer step can. The sums are exact in float here.
void TestSaturation(const KernelTable& kernels, ThreadPool& pool) {
  for (int f = 0; f < kNumFormats; ++f) {
    const Format format = static_cast<Format>(f);
    const FormatInfo& info = GetFormatInfo(format);
    if (!info.quantised) continue;
    const int64_t k = 256, n = 16;
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      std::vector<uint8_t> file(FileBytes(format, n * k), static_cast<uint8_t>(fill));
      SetScales(format, 0x3c00, file);  // 1.0
      const PackedMatrix weight = PackMatrix({.format = format, .n = n, .k = k, .bytes = file.data()}, pool);
      std::vector<float> w(static_cast<size_t>(k));
      UnpackRow(weight, 3, w.data());
      for (const int pattern : {0, 1, 2}) {  // all +127, all -127, alternating
        std::vector<float> x(static_cast<size_t>(k));
        double exact = 0;
        for (int64_t i = 0; i < k; ++i) {
          x[static_cast<size_t>(i)] = pattern == 0 || (pattern == 2 && i % 2) ? 127.0f : -127.0f;
          exact += static_cast<double>(w[static_cast<size_t>(i)]) * static_cast<double>(x[static_cast<size_t>(i)]);
        }
        const std::vector<float> y = Run(kernels, pool, weight, x.data(), k, 1);
        const double error = std::fabs(static_cast<double>(y[3]) - exact);
        Expect(error <= 1e-6 * std::fabs(exact), kernels.name, " ", info.name, " fill ", fill, " pattern ",
               pattern, ": ", y[3], " is not ", exact);
      }
    }
  }
}

void TestOddNumbers(const KernelTable& kernels, ThreadPool& pool) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (int f = 0; f < kNumFormats; ++f) {
    const Format format = static_cast<Format>(f);
    const FormatInfo& info = GetFormatInfo(format);
    const int64_t n = 20, k = 256, rows = 9;
    Problem problem(format, n, k, rows, static_cast<uint32_t>(70 + f));
    const PackedMatrix weight = problem.Pack(pool);
    const std::vector<float> clean = Run(kernels, pool, weight, problem.x.data(), problem.ldx, rows);
    for (const float odd : {inf, -inf, nan}) {
      std::vector<float> x = problem.x;
      x[static_cast<size_t>(4 * problem.ldx + 77)] = odd;
      const std::vector<float> y = Run(kernels, pool, weight, x.data(), problem.ldx, rows);
      for (int64_t r = 0; r < rows; ++r) {
        const size_t at = static_cast<size_t>(r * (n + 2));
        if (r != 4) Expect(SameBits(&y[at], &clean[at], n), kernels.name, " ", info.name, ": ", odd, " in row 4 changed row ", r);
        if (r == 4 && info.quantised) Expect(std::isnan(y[at]), kernels.name, " ", info.name, ": ", odd, " in a row vanished");
      }
    }
    for (const float tiny : {0.0f, -0.0f, 1e-45f, 1e-38f, 1e-36f}) {
      const std::vector<float> x(static_cast<size_t>(k), tiny);
      const std::vector<float> y = Run(kernels, pool, weight, x.data(), k, 1);
      for (int64_t j = 0; j < n; ++j) {
        Expect(std::fabs(y[static_cast<size_t>(j)]) <= 1e-28f, kernels.name, " ", info.name, ": x = ", tiny,
               " gives ", y[static_cast<size_t>(j)]);
      }
    }
    if (!info.quantised) continue;
    for (const int half : {0x7c00, 0xfc00, 0x7e00, 0x0001, 0x83ff, 0x0000}) {  // ±inf, NaN, subnormals, zero: only no crash
      SetScales(format, static_cast<uint16_t>(half), problem.file);
      const std::vector<float> y = Run(kernels, pool, problem.Pack(pool), problem.x.data(), problem.ldx, rows);
      Expect(y[static_cast<size_t>(n)] == kUntouched, kernels.name, " ", info.name, " wrote beyond column n");
      if (half == 0) Expect(y[0] == 0.0f, kernels.name, " ", info.name, ": scales of zero give ", y[0]);
    }
  }
}

// Tiers above scalar round alike.
void TestTiersAgree(ThreadPool& pool) {
  const std::vector<const KernelTable*> tiers = RunnableTiers();
  for (int f = 0; f < kNumFormats; ++f) {
    const Problem problem(static_cast<Format>(f), 50, 768, 11, static_cast<uint32_t>(40 + f));
    const PackedMatrix weight = problem.Pack(pool);
    std::vector<float> first;
    for (size_t i = 1; i < tiers.size(); ++i) {
      const std::vector<float> y = Run(*tiers[i], pool, weight, problem.x.data(), problem.ldx, problem.rows);
      if (i == 1) first = y;
      Expect(y == first, tiers[i]->name, " differs from ", tiers[1]->name, " for ", problem.Name());
    }
  }
}

}  // namespace
}  // namespace ramet

int main() {
  using namespace ramet;
  ThreadPool one(1), two(2), three(3);
  for (const KernelTable* kernels : RunnableTiers()) {
    const bool scalar = std::string(kernels->name) == "scalar";
    TestAgainstDouble(*kernels, one);
    TestBitsDependOnNothing(*kernels, {&one, &two, &three}, !scalar);
    TestSharedInput(*kernels, two);
    TestSaturation(*kernels, one);
    TestOddNumbers(*kernels, two);
    std::printf("%s: done\n", kernels->name);
  }
  TestTiersAgree(one);
  if (failures) std::fprintf(stderr, "%d failures\n", failures);
  return failures ? 1 : 0;
}
