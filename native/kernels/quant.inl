// Quantises activations to int8 in blocks of 32. Included by matmul.inl in the tier's anonymous namespace.
//
// All tiers give the same bits: the maximum and the sums are order-free (the maximum is taken over bit patterns as integers, where
// a NaN is larger than any number), the rest is elementwise. A block with a NaN or an infinity gets scale NaN and codes 0.

// What a block's largest |x| (as bits) makes of it. Below 127 · 2^-126 the inverse would overflow; such a block counts as zero:
// it is 28 orders of magnitude below anything a model's row can hold next to it.
struct BlockScale {
  float scale;
  float inverse;
};

inline BlockScale ScaleOfMax(int32_t max_bits) {
  float max;
  __builtin_memcpy(&max, &max_bits, 4);
  if (!(max <= 3.402823466e38f)) return {__builtin_nanf(""), 0.0f};
  if (max < 1.5e-36f) return {0.0f, 0.0f};
  return {max / 127.0f, 127.0f / max};
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

inline void QuantizeBlock(const float* x, ActivationBlock* out) {
  const __m512 lo = _mm512_loadu_ps(x), hi = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i max = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(lo), magnitude),
                                       _mm512_and_si512(_mm512_castps_si512(hi), magnitude));
  const BlockScale s = ScaleOfMax(_mm512_reduce_max_epi32(max));
  const __m512 inverse = _mm512_set1_ps(s.inverse);
  const __mmask16 keep = s.inverse > 0.0f ? 0xffff : 0;
  const __m512i lo_codes = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(lo, inverse));
  const __m512i hi_codes = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(hi, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes), _mm512_cvtsepi32_epi8(lo_codes));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->codes + 16), _mm512_cvtsepi32_epi8(hi_codes));
  out->sums[0] = _mm512_reduce_add_epi32(lo_codes);
  out->sums[1] = _mm512_reduce_add_epi32(hi_codes);
  out->scale = s.scale;
  out->scaled_sum = s.scale * static_cast<float>(out->sums[0] + out->sums[1]);
}

#elif defined(__AVX2__)

inline int32_t HorizontalMax(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

inline int32_t HorizontalSum(__m256i v) {
  __m128i m = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

inline void QuantizeBlock(const float* x, ActivationBlock* out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i max = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), magnitude));
  }
  const BlockScale s = ScaleOfMax(HorizontalMax(max));
  const __m256 inverse = _mm256_set1_ps(s.inverse);
  const __m256i keep = _mm256_set1_epi32(s.inverse > 0.0f ? -1 : 0);
  __m256i codes[4];
  for (int i = 0; i < 4; ++i) {
    codes[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse)));
  }
  // The packs work within 128-bit halves; the permutation puts dwords back in order.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
  const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->codes), ordered);
  out->sums[0] = HorizontalSum(_mm256_add_epi32(codes[0], codes[1]));
  out->sums[1] = HorizontalSum(_mm256_add_epi32(codes[2], codes[3]));
  out->scale = s.scale;
  out->scaled_sum = s.scale * static_cast<float>(out->sums[0] + out->sums[1]);
}

#else

inline void QuantizeBlock(const float* x, ActivationBlock* out) {
  int32_t max_bits = 0;
  for (int i = 0; i < 32; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    if (bits > max_bits) max_bits = bits;
  }
  const BlockScale s = ScaleOfMax(max_bits);
  for (int half = 0; half < 2; ++half) {
    int32_t sum = 0;
    for (int i = 16 * half; i < 16 * half + 16; ++i) {
      // Adding 1.5 · 2^23 rounds to an integer, half to even. With inverse 0 nothing of x may get through: 0 · NaN is NaN.
      const float rounded = s.inverse > 0.0f ? x[i] * s.inverse + 12582912.0f - 12582912.0f : 0.0f;
      out->codes[i] = static_cast<int8_t>(rounded);
      sum += out->codes[i];
    }
    out->sums[half] = sum;
  }
  out->scale = s.scale;
  out->scaled_sum = s.scale * static_cast<float>(out->sums[0] + out->sums[1]);
}

#endif

inline void QuantizeActivations(const float* x, int64_t ldx, int64_t k, int64_t first_row, int64_t rows, int64_t total_rows,
                                ActivationBlock* activations) {
  const int64_t blocks = k / 32;
  for (int64_t tile = first_row; tile < first_row + rows; tile += kTileRows) {
    const int64_t left = total_rows - tile;
    const int64_t valid = left < kTileRows ? left : kTileRows;
    const int64_t padded = left < kTileRows ? PaddedTileRows(left) : kTileRows;
    ActivationBlock* out = activations + tile * blocks;
    for (int64_t r = 0; r < valid; ++r) {
      for (int64_t b = 0; b < blocks; ++b) QuantizeBlock(x + (tile + r) * ldx + 32 * b, out + b * padded + r);
    }
    for (int64_t r = valid; r < padded; ++r) {
      for (int64_t b = 0; b < blocks; ++b) out[b * padded + r] = ActivationBlock{};
    }
  }
}
