// Bodies of SampleKernels, compiled once per tier: the vector width follows the tier's flags, the results do not.
//
// Needs -ffp-contract=off: a fused multiply-add rounds once where the definition (ramet/executor/sampling.py) rounds twice.
#include <cstdint>

#include "kernels/sample_kernels.h"

namespace ramet {
namespace {
namespace sample {

// GCC's vectors instead of simd.h: weights are 64-bit integers, and even the scalar tier then uses what the baseline has.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#define RAMET_LOW_HALF 0, 1, 2, 3, 4, 5, 6, 7
#define RAMET_HIGH_HALF 8, 9, 10, 11, 12, 13, 14, 15
#elif defined(__AVX__)
constexpr int kWidth = 8;
#define RAMET_LOW_HALF 0, 1, 2, 3
#define RAMET_HIGH_HALF 4, 5, 6, 7
#else
constexpr int kWidth = 4;
#define RAMET_LOW_HALF 0, 1
#define RAMET_HIGH_HALF 2, 3
#endif

typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));
typedef double Doubles __attribute__((vector_size(4 * kWidth)));    // kWidth / 2 of them: a register
typedef uint64_t Words __attribute__((vector_size(4 * kWidth)));

struct WordPair {
  Words low, high;
};

constexpr float kFloatMax = 3.402823466e38f;

inline void Load(const float* from, Floats& to) { __builtin_memcpy(&to, from, sizeof(Floats)); }

// The last n % kWidth logits, filled up with -inf.
inline void LoadTail(const float* from, int64_t count, Floats& to) {
  to = Floats{} - __builtin_inff();
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

bool BlockMax(const float* logits, int64_t n, float* block_max) {
  Ints good = Ints{} - 1;
  for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
    const int64_t count = n - begin < kSampleBlock ? n - begin : kSampleBlock;
    Floats best = Floats{} - __builtin_inff();
    Floats v;
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) {
      Load(logits + begin + i, v);
      good &= v <= Floats{} + kFloatMax;  // false for NaN too
      best = v > best ? v : best;
    }
    LoadTail(logits + begin + i, count - i, v);
    good &= v <= Floats{} + kFloatMax;
    best = v > best ? v : best;
    float m = best[0];
    for (int lane = 1; lane < kWidth; ++lane) m = best[lane] > m ? best[lane] : m;
    block_max[begin / kSampleBlock] = m;
  }
  for (int lane = 0; lane < kWidth; ++lane) {
    if (!good[lane]) return false;
  }
  return true;
}

// Adding 2^52 to a double in [0, 2^52) rounds it to an integer, half to even, which is then the double's low 52 bits; these are
// the bits above.
constexpr uint64_t kTwo52Bits = 0x4330000000000000;

// kTwo52Bits + weight in each lane. The polynomial is the Taylor series of exp on |r| <= ln(2) / 2.
inline WordPair BiasedWeights(const Floats& logits, float max, float inverse_temperature) {
  Floats x = (logits - max) * inverse_temperature;
  const Floats floor = Floats{} - 40.0f;  // e^-40 · 2^40 already rounds to 0
  x = x > floor ? x : floor;
  const Floats shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: rounds to a whole number, half to even
  const Floats n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Floats power = (Floats)((Ints)p + ((Ints)shifted << 23));  // p · 2^n; the bits of 1.5 · 2^23 are shifted out
  const auto low = __builtin_convertvector(__builtin_shufflevector(power, power, RAMET_LOW_HALF), Doubles);
  const auto high = __builtin_convertvector(__builtin_shufflevector(power, power, RAMET_HIGH_HALF), Doubles);
  return {(Words)(low * 0x1p40 + 0x1p52), (Words)(high * 0x1p40 + 0x1p52)};
}

inline uint64_t Sum(const Words& words) {
  uint64_t sum = 0;
  for (int lane = 0; lane < kWidth / 2; ++lane) sum += words[lane];
  return sum;
}

uint64_t WeightSum(const float* logits, int64_t n, float max, float inverse_temperature) {
  Words sums = {};
  Floats v;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Load(logits + i, v);
    const WordPair biased = BiasedWeights(v, max, inverse_temperature);
    sums += biased.low + biased.high;
  }
  LoadTail(logits + i, n - i, v);
  const WordPair biased = BiasedWeights(v, max, inverse_temperature);
  sums += biased.low + biased.high;
  return Sum(sums) - static_cast<uint64_t>(i + kWidth) * kTwo52Bits;  // wraps as the lanes did
}

uint64_t Weights(const float* logits, int64_t n, float max, float inverse_temperature, uint64_t* weights) {
  Words sums = {};
  Floats v;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Load(logits + i, v);
    WordPair pair = BiasedWeights(v, max, inverse_temperature);
    pair.low -= kTwo52Bits;
    pair.high -= kTwo52Bits;
    sums += pair.low + pair.high;
    __builtin_memcpy(weights + i, &pair, sizeof(pair));
  }
  LoadTail(logits + i, n - i, v);
  WordPair pair = BiasedWeights(v, max, inverse_temperature);
  pair.low -= kTwo52Bits;
  pair.high -= kTwo52Bits;
  sums += pair.low + pair.high;
  uint64_t tail[kWidth];
  __builtin_memcpy(tail, &pair, sizeof(pair));
  for (int64_t lane = 0; i + lane < n; ++lane) weights[i + lane] = tail[lane];
  return Sum(sums);
}

#undef RAMET_LOW_HALF
#undef RAMET_HIGH_HALF

}  // namespace sample

constexpr SampleKernels kSampleKernels = {sample::BlockMax, sample::WeightSum, sample::Weights};

}  // namespace
}  // namespace ramet
