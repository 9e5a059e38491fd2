// Inner loops over one row of floats, one set per instruction tier; `KernelTable` has it as its member `rowwise`.
//
// An output element's bits depend on its inputs only, never on its place in the row: tails use the same formula on padded
// vectors. Outputs may be the inputs themselves, but may not overlap them otherwise.
#pragma once

#include <cstdint>

namespace ramet {

enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kSigmoid, kTanh };
constexpr int kNumActivations = 6;

enum class RopeStyle : uint8_t { kHalf, kInterleaved };

struct RowwiseKernels {
  // y = x / sqrt(mean(x²) + eps) · (offset + w), over n floats. The sum runs over fixed lanes.
  void (*rms_norm)(const float* x, const float* w, int64_t n, float eps, float offset, float* y);

  // y = (x - mean) / sqrt(var + eps) · w + b
  void (*layer_norm)(const float* x, const float* w, const float* b, int64_t n, float eps, float* y);

  void (*add)(const float* a, const float* b, int64_t n, float* y);  // y = a + b
  void (*mul)(const float* a, const float* b, int64_t n, float* y);  // y = a · b
  void (*scale)(const float* x, float factor, int64_t n, float* y);  // y = x · factor
  void (*soft_cap)(const float* x, float cap, int64_t n, float* y);  // y = cap · tanh(x / cap)

  // y = f(x), and y = f(gate) · up.
  void (*activation[kNumActivations])(const float* x, int64_t n, float* y);
  void (*gated_activation[kNumActivations])(const float* gate, const float* up, int64_t n, float* y);

  // One head: rotates the first 2 · half floats of x by angles whose cosines and sines are given (half each) and copies the
  // rest up to head_dim. Pairs are (i, i + half) or (2i, 2i + 1).
  void (*rope[2])(const float* x, const float* cosines, const float* sines, int64_t half, int64_t head_dim, float* y);
};

}  // namespace ramet
