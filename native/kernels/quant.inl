// Quantises activations to int8 in blocks of 32. Included by matmul.inl in the tier's anonymous namespace.
//
// All tiers give the same bits: the maximum and the sums are order-free (the maximum is taken over bit patterns as integers, where
// a NaN is larger than any number), the rest is elementwise. A block with a NaN or an infinity gets scale NaN and codes 0.

// Below kLeastMax the inverse of a scale could overflow; such a block counts as zero: it is 28 orders of magnitude below
// anything a model's row can hold next to it.
constexpr float kLeastMax = 1.5e-36f;
constexpr float kGreatestFloat = 3.402823466e38f;

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

// Four vectors' reductions share their shuffles: lane i of each 128-bit half is v[i]'s largest or sum there.
template <bool kMax>
inline __m256i ReduceFour(const __m256i* v) {
  const auto join = [](__m256i a, __m256i b) { return kMax ? _mm256_max_epi32(a, b) : _mm256_add_epi32(a, b); };
  const __m256i v01 = join(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
  const __m256i v23 = join(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
  return join(_mm256_unpacklo_epi64(v01, v23), _mm256_unpackhi_epi64(v01, v23));
}

// Four blocks of a row at once, 4.2 ns a block instead of 5.5: one at a time, shuffles and divisions wait for one another. Near the
// row's end some of the four are the last block again.
inline void QuantizeBlocks(const float* x, int64_t blocks, ActivationBlock* out, int64_t stride) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t first = 0; first < blocks; first += 4) {
    int64_t at[4];
    __m256i largest[4], sums[4];
    RAMET_UNROLL
    for (int i = 0; i < 4; ++i) {
      at[i] = first + i < blocks ? first + i : blocks - 1;
      const __m512i lo = _mm512_and_si512(_mm512_loadu_si512(x + 32 * at[i]), magnitude);
      const __m512i hi = _mm512_and_si512(_mm512_loadu_si512(x + 32 * at[i] + 16), magnitude);
      const __m512i both = _mm512_max_epi32(lo, hi);
      largest[i] = _mm256_max_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
    }
    const __m256i halves = ReduceFour<true>(largest);
    const __m128 max = _mm_castsi128_ps(_mm_max_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
    const __mmask8 finite = _mm_cmp_ps_mask(max, _mm_set1_ps(kGreatestFloat), _CMP_LE_OQ);
    const __mmask8 usable = _mm_mask_cmp_ps_mask(finite, max, _mm_set1_ps(kLeastMax), _CMP_GE_OQ);
    const __m128 inverse = _mm_maskz_div_ps(usable, _mm_set1_ps(127.0f), max);
    const __m128 quotient = _mm_maskz_div_ps(usable, max, _mm_set1_ps(127.0f));
    const __m128 scale = _mm_mask_mov_ps(_mm_set1_ps(__builtin_nanf("")), finite, quotient);
    alignas(16) float inverses[4];
    _mm_store_ps(inverses, inverse);
    RAMET_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512 factor = _mm512_set1_ps(inverses[i]);
      const __mmask16 keep = _mm512_cmp_ps_mask(factor, _mm512_setzero_ps(), _CMP_GT_OQ);
      const __m512 lo = _mm512_mul_ps(_mm512_loadu_ps(x + 32 * at[i]), factor);
      const __m512 hi = _mm512_mul_ps(_mm512_loadu_ps(x + 32 * at[i] + 16), factor);
      const __m128i lo_codes = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(keep, lo));
      const __m128i hi_codes = _mm512_cvtsepi32_epi8(_mm512_maskz_cvtps_epi32(keep, hi));
      const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(lo_codes), hi_codes, 1);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[at[i] * stride].codes), codes);
      sums[i] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);  // sums of four, lo and hi apart
    }
    const __m256i totals = ReduceFour<false>(sums);
    const __m128i lo = _mm256_castsi256_si128(totals), hi = _mm256_extracti128_si256(totals, 1);
    const __m128 scaled = _mm_mul_ps(scale, _mm_cvtepi32_ps(_mm_add_epi32(lo, hi)));
    const __m128 scales[2] = {_mm_unpacklo_ps(scale, scaled), _mm_unpackhi_ps(scale, scaled)};
    const __m128 ints[2] = {_mm_castsi128_ps(_mm_unpacklo_epi32(lo, hi)), _mm_castsi128_ps(_mm_unpackhi_epi32(lo, hi))};
    RAMET_UNROLL
    for (int i = 0; i < 4; ++i) {  // scale, scaled_sum, sums[2] of block i
      const __m128 fields = i % 2 ? _mm_movehl_ps(ints[i / 2], scales[i / 2]) : _mm_movelh_ps(scales[i / 2], ints[i / 2]);
      _mm_storeu_ps(reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(out + at[i] * stride) + 32), fields);
    }
  }
}

#else

struct BlockScale {
  float scale;
  float inverse;
};

// What a block's largest |x|, as bits, makes of it.
inline BlockScale ScaleOfMax(int32_t max_bits) {
  float max;
  __builtin_memcpy(&max, &max_bits, 4);
  if (!(max <= kGreatestFloat)) return {__builtin_nanf(""), 0.0f};
  if (max < kLeastMax) return {0.0f, 0.0f};
  return {max / 127.0f, 127.0f / max};
}

#if defined(__AVX2__)

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

#endif  // __AVX2__

inline void QuantizeBlocks(const float* x, int64_t blocks, ActivationBlock* out, int64_t stride) {
  for (int64_t b = 0; b < blocks; ++b) QuantizeBlock(x + 32 * b, out + b * stride);
}

#endif  // AVX-512

inline void QuantizeActivations(const float* x, int64_t ldx, int64_t k, int64_t first_row, int64_t rows, int64_t total_rows,
                                ActivationBlock* activations) {
  const int64_t blocks = k / 32;
  for (int64_t tile = first_row; tile < first_row + rows; tile += kTileRows) {
    const int64_t left = total_rows - tile;
    const int64_t valid = left < kTileRows ? left : kTileRows;
    const int64_t padded = left < kTileRows ? PaddedTileRows(left) : kTileRows;
    ActivationBlock* out = activations + tile * blocks;
    for (int64_t r = 0; r < valid; ++r) QuantizeBlocks(x + (tile + r) * ldx, blocks, out + r, padded);
    for (int64_t r = valid; r < padded; ++r) {
      for (int64_t b = 0; b < blocks; ++b) out[b * padded + r] = ActivationBlock{};
    }
  }
}
