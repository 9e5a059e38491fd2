#include "ops/pool.h"

#include <algorithm>
#include <cmath>

namespace ramet {

void MeanOfRows(const float* x, int64_t rows, int64_t stride, int64_t width, float* y) {
  constexpr int64_t kColumns = 64;  // sums of one pass: 512 bytes, which stay in registers and the first cache
  double sums[kColumns];
  for (int64_t begin = 0; begin < width; begin += kColumns) {
    const int64_t count = std::min(kColumns, width - begin);
    std::fill_n(sums, count, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * stride + begin;
      for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(row[i]);
    }
    for (int64_t i = 0; i < count; ++i) y[begin + i] = static_cast<float>(sums[i] / static_cast<double>(rows));
  }
}

void L2Norm(const float* x, int64_t width, float eps, float* y) {
  double sum = 0;
  for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double norm = std::max(std::sqrt(sum), static_cast<double>(eps));
  for (int64_t i = 0; i < width; ++i) y[i] = static_cast<float>(static_cast<double>(x[i]) / norm);
}

}  // namespace ramet
