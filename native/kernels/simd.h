// F32: a vector of kLanes floats of the tier being compiled (16, 8 or 1), and the few operations that kernels are written in.
//
// Included by tier files only, inside their anonymous namespace through namespace {} below: nothing here may be seen by the
// linker. Hence no standard templates either (<cmath>, <algorithm>): builtins and intrinsics only.
//
// LoadN and StoreN touch the first n <= kLanes floats and no memory beyond; missing lanes read as 0.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ramet {
namespace {

inline float FloatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline uint32_t BitsFromFloat(float value) { return __builtin_bit_cast(uint32_t, value); }

constexpr float kInfinity = __builtin_inff();

#if defined(__AVX512F__)

constexpr int64_t kLanes = 16;
struct F32 { __m512 v; };
struct Mask { __mmask16 m; };

inline __mmask16 FirstLanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
inline F32 Set(float x) { return {_mm512_set1_ps(x)}; }
inline F32 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32 LoadN(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(FirstLanes(n), p)}; }
inline void Store(F32 a, float* p) { _mm512_storeu_ps(p, a.v); }
inline void StoreN(F32 a, float* p, int64_t n) { _mm512_mask_storeu_ps(p, FirstLanes(n), a.v); }
inline F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32 Fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 Max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32 Min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32 Sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
inline F32 Abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
inline F32 Round(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Mask Less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline F32 Select(Mask m, F32 yes, F32 no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
inline F32 CopySign(F32 magnitude, F32 sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign.v), _mm512_castps_si512(magnitude.v), 0xCA))};
}
inline F32 Pow2(F32 n) {  // 2^n for integral n in [-126, 127]
  const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}
inline float ReduceAdd(F32 a) {  // ((lane i + lane i+8), then i+4, i+2, i+1)
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
inline float ReduceMax(F32 a) { return _mm512_reduce_max_ps(a.v); }
inline F32 LoadHalf(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32 LoadHalfN(const uint16_t* p, int64_t n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p))}; }
inline void StoreHalfN(F32 a, uint16_t* p, int64_t n) {
  _mm256_mask_storeu_epi16(p, FirstLanes(n), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F32 FromBrain(__m256i a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16))}; }
inline F32 LoadBrain(const uint16_t* p) { return FromBrain(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline F32 LoadBrainN(const uint16_t* p, int64_t n) { return FromBrain(_mm256_maskz_loadu_epi16(FirstLanes(n), p)); }

#elif defined(__AVX2__)

constexpr int64_t kLanes = 8;
struct F32 { __m256 v; };
struct Mask { __m256 m; };

alignas(32) constexpr int32_t kFirstLanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

inline __m256i FirstLanes(int64_t n) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kFirstLanes + kLanes - n));
}
inline F32 Set(float x) { return {_mm256_set1_ps(x)}; }
inline F32 Load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline F32 LoadN(const float* p, int64_t n) { return {_mm256_maskload_ps(p, FirstLanes(n))}; }
inline void Store(F32 a, float* p) { _mm256_storeu_ps(p, a.v); }
inline void StoreN(F32 a, float* p, int64_t n) { _mm256_maskstore_ps(p, FirstLanes(n), a.v); }
inline F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F32 Fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F32 Max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F32 Min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F32 Sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
inline F32 Abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F32 Round(F32 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline Mask Less(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline F32 Select(Mask m, F32 yes, F32 no) { return {_mm256_blendv_ps(no.v, yes.v, m.m)}; }
inline F32 CopySign(F32 magnitude, F32 sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}
inline F32 Pow2(F32 n) {  // 2^n for integral n in [-126, 127]
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}
inline float ReduceAdd(F32 a) {  // ((lane i + lane i+4), then i+2, i+1)
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
inline float ReduceMax(F32 a) {
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
}
inline __m128i Load16N(const uint16_t* p, int64_t n) {
  alignas(16) uint16_t lanes[8] = {};
  __builtin_memcpy(lanes, p, static_cast<size_t>(n) * 2);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(lanes));
}
inline F32 LoadHalf(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline F32 LoadHalfN(const uint16_t* p, int64_t n) { return {_mm256_cvtph_ps(Load16N(p, n))}; }
inline void StoreHalfN(F32 a, uint16_t* p, int64_t n) {
  const __m128i half = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  if (n == kLanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  } else {
    alignas(16) uint16_t lanes[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(lanes), half);
    __builtin_memcpy(p, lanes, static_cast<size_t>(n) * 2);
  }
}
inline F32 FromBrain(__m128i a) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a), 16))}; }
inline F32 LoadBrain(const uint16_t* p) { return FromBrain(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline F32 LoadBrainN(const uint16_t* p, int64_t n) { return FromBrain(Load16N(p, n)); }

#else

constexpr int64_t kLanes = 1;
struct F32 { float v; };
struct Mask { bool m; };

inline F32 Set(float x) { return {x}; }
inline F32 Load(const float* p) { return {*p}; }
inline F32 LoadN(const float* p, int64_t n) { return {n ? *p : 0.0f}; }
inline void Store(F32 a, float* p) { *p = a.v; }
inline void StoreN(F32 a, float* p, int64_t n) { if (n) *p = a.v; }
inline F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
inline F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
inline F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
inline F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
inline F32 Fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }  // two roundings: a fused one is a library call here
inline F32 Max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }  // as maxps: b if either is NaN
inline F32 Min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
inline F32 Sqrt(F32 a) { return {__builtin_sqrtf(a.v)}; }
inline F32 Abs(F32 a) { return {__builtin_fabsf(a.v)}; }
inline F32 Round(F32 a) { return {__builtin_rintf(a.v)}; }
inline Mask Less(F32 a, F32 b) { return {a.v < b.v}; }
inline F32 Select(Mask m, F32 yes, F32 no) { return m.m ? yes : no; }
inline F32 CopySign(F32 magnitude, F32 sign) { return {__builtin_copysignf(magnitude.v, sign.v)}; }
inline F32 Pow2(F32 n) {  // 2^n for integral n in [-126, 127]; 1 for NaN, which the caller's product keeps NaN
  const int exponent = n.v == n.v ? static_cast<int>(n.v) : 0;
  return {FloatFromBits(static_cast<uint32_t>(exponent + 127) << 23)};
}
inline float ReduceAdd(F32 a) { return a.v; }
inline float ReduceMax(F32 a) { return a.v; }
inline float HalfBitsToFloat(uint16_t half) {
  // Exponents move by a product, which makes halves below the normal range right too; no branches, so loops become vectors.
  const uint32_t rest = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const uint32_t finite = BitsFromFloat(FloatFromBits(rest) * 0x1p112f);
  const uint32_t bits = rest < 0x0f800000u ? finite : rest | 0x7f800000u;
  return FloatFromBits(static_cast<uint32_t>(half & 0x8000u) << 16 | bits);
}
inline uint16_t FloatToHalfBits(float value) {
  const uint32_t bits = BitsFromFloat(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (rest >> 13 & 0x1ffu));
  if (rest >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // below 2^-14: adding 0.5 lets the addition round to a multiple of 2^-24
    return static_cast<uint16_t>(sign | (BitsFromFloat(FloatFromBits(rest) + 0.5f) - BitsFromFloat(0.5f)));
  }
  return static_cast<uint16_t>(sign | ((rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13));
}
inline F32 LoadHalf(const uint16_t* p) { return {HalfBitsToFloat(*p)}; }
inline F32 LoadHalfN(const uint16_t* p, int64_t n) { return {n ? HalfBitsToFloat(*p) : 0.0f}; }
inline void StoreHalfN(F32 a, uint16_t* p, int64_t n) { if (n) *p = FloatToHalfBits(a.v); }
inline F32 LoadBrain(const uint16_t* p) { return {FloatFromBits(static_cast<uint32_t>(*p) << 16)}; }
inline F32 LoadBrainN(const uint16_t* p, int64_t n) { return n ? LoadBrain(p) : Set(0.0f); }

#endif

inline F32 Zero() { return Set(0.0f); }

inline uint16_t FloatToBrainBits(float value) {  // to nearest even; NaN stays NaN
  const uint32_t bits = BitsFromFloat(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace
}  // namespace ramet
