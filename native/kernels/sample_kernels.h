// Inner loops of sampling, one set per instruction tier; `KernelTable` has it as its member `sample`.
//
// Every tier gives the same bits: the work is elementwise in float32 without contraction, and what is summed are integers.
#pragma once

#include <cstdint>

namespace ramet {

// Logits per entry of the block maxima. 64 floats are four cache lines: few enough that looking through a block again costs
// about 20 ns, enough that a vocabulary of 49k has only 768 maxima.
constexpr int64_t kSampleBlock = 64;

// A weight is exp((logit - max) / temperature) in fixed point with this many fraction bits; the best token weighs
// exactly 1 << kWeightBits. 2^20 tokens of that weight sum to 2^60, so totals fit 64 bits with room.
constexpr int kWeightBits = 40;

struct SampleKernels {
  // block_max[i] = largest of logits [i * kSampleBlock, ...) (-inf if all are); ceil(n / kSampleBlock) entries written.
  // False if a logit is NaN or +inf; the maxima then mean nothing.
  bool (*block_max)(const float* logits, int64_t n, float* block_max);

  // Sum of the n weights. `max` is the largest logit (finite), `inverse_temperature` > 0.
  uint64_t (*weight_sum)(const float* logits, int64_t n, float max, float inverse_temperature);

  // The n weights, and their sum.
  uint64_t (*weights)(const float* logits, int64_t n, float max, float inverse_temperature, uint64_t* weights);
};

}  // namespace ramet
