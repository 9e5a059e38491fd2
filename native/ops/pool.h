// The arithmetic of `pool` and `l2_norm`: a whole prompt becomes one vector. In double and in a fixed order, so that bits do
// not depend on what else a step holds; both run once a prompt, beside whole layers for each of its tokens.
#pragma once

#include <cstdint>

namespace ramet {

// y[0, width) = mean of `rows` >= 1 rows of x, the next one `stride` floats behind the last, added from the first on.
void MeanOfRows(const float* x, int64_t rows, int64_t stride, int64_t width, float* y);

// y[0, width) = x / max(|x|, eps). x and y may be the same.
void L2Norm(const float* x, int64_t width, float eps, float* y);

}  // namespace ramet
