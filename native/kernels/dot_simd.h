// What matmul.inl needs of a tier: byte vectors of codes, integer dot products, float lanes. Chosen by the flags that the
// including tier file is compiled with; include it inside the tier's anonymous namespace, after <immintrin.h>.
//
// kLanes outputs are computed together, kParts such parts make a panel. `Bytes` holds 4 codes per lane.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#define RAMET_UNROLL _Pragma("GCC unroll 8")
constexpr int kLanes = 16;
constexpr int kManyRowsPanels = 3;  // of unquantised weights beside 8 rows: 24 of 32 registers hold sums
using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;

inline Bytes LoadBytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes AndBytes(Bytes v, uint8_t mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
inline Bytes OrBytes(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
template <int kShift>
inline Bytes ShiftRight(Bytes v) { return kShift ? _mm512_srli_epi16(v, kShift) : v; }
template <int kShift>
inline Bytes ShiftLeft(Bytes v) { return _mm512_slli_epi16(v, kShift); }

inline Floats ZeroFloats() { return _mm512_setzero_ps(); }
inline Floats Splat(float v) { return _mm512_set1_ps(v); }
inline Floats Mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats MulAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats ToFloats(Ints v) { return _mm512_cvtepi32_ps(v); }
inline Floats LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
inline void StoreFloats(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline Floats LoadHalfs(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline Floats LoadBfloats(const uint8_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

inline Ints SplatInt(int32_t v) { return _mm512_set1_epi32(v); }
inline Ints AddInts(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints MulInts(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
inline Ints LoadUnsigned8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints LoadSigned8(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline Ints LowNibbles(Ints v) { return _mm512_and_si512(v, _mm512_set1_epi32(15)); }
inline Ints HighNibbles(Ints v) { return _mm512_srli_epi32(v, 4); }

// Sum over 4 groups of (code - kZero) · a; codes <= kMaxCode, sum = sum of the 16 activations.
// vpdpbusd takes the four activations as a broadcast memory operand: no instruction of their own.
template <int kMaxCode, int kZero>
inline Ints Dot16(const Bytes* w, const int8_t* a, int32_t sum) {
  Ints dot = kZero ? _mm512_set1_epi32(-kZero * sum) : _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    int32_t four;
    __builtin_memcpy(&four, a + 4 * g, 4);
    dot = _mm512_dpbusd_epi32(dot, w[g], _mm512_set1_epi32(four));
  }
  return dot;
}

template <int kMaxCode, int kZero>
inline Ints Dot32(const Bytes* w, const int8_t* a, const int32_t* sums) {
  return AddInts(Dot16<kMaxCode, kZero>(w, a, sums[0]), Dot16<kMaxCode, kZero>(w + 4, a + 16, sums[1]));
}

#elif defined(__AVX2__)

#define RAMET_UNROLL _Pragma("GCC unroll 8")
constexpr int kLanes = 8;
constexpr int kManyRowsPanels = 1;  // 8 of 16 registers hold sums
using Floats = __m256;
using Ints = __m256i;
using Bytes = __m256i;

inline Bytes LoadBytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bytes AndBytes(Bytes v, uint8_t mask) { return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask))); }
inline Bytes OrBytes(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
template <int kShift>
inline Bytes ShiftRight(Bytes v) { return kShift ? _mm256_srli_epi16(v, kShift) : v; }
template <int kShift>
inline Bytes ShiftLeft(Bytes v) { return _mm256_slli_epi16(v, kShift); }

inline Floats ZeroFloats() { return _mm256_setzero_ps(); }
inline Floats Splat(float v) { return _mm256_set1_ps(v); }
inline Floats Mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats Add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats MulAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats ToFloats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Floats LoadFloats(const float* p) { return _mm256_loadu_ps(p); }
inline void StoreFloats(float* p, Floats v) { _mm256_storeu_ps(p, v); }
inline Floats LoadHalfs(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline Floats LoadBfloats(const uint8_t* p) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

inline Ints SplatInt(int32_t v) { return _mm256_set1_epi32(v); }
inline Ints AddInts(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints MulInts(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
inline Ints LoadUnsigned8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Ints LoadSigned8(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

inline Ints LowNibbles(Ints v) { return _mm256_and_si256(v, _mm256_set1_epi32(15)); }
inline Ints HighNibbles(Ints v) { return _mm256_srli_epi32(v, 4); }

// vpmaddubsw adds two products in saturating 16 bits. A product is at most kMaxCode · 127, so kRun results may be added in 16
// bits before they are widened: 8 for 4-bit codes (a whole block of 32), 4 for 5 bits, 2 for 6 bits.
// 8-bit codes do not fit even alone (2 · 255 · 127 > 32767): they become signed, and |w| · sign(a, w), 2 · 128 · 127 = 32512, does.
template <int kMaxCode, int kZero, int kGroups>
inline Ints DotGroups(const Bytes* w, const int8_t* a, int32_t sum) {
  constexpr int kFit = 32767 / (2 * 127 * (kMaxCode > 127 ? 128 : kMaxCode));
  constexpr int kRun = kFit < 2 ? 1 : kFit < 4 ? 2 : kFit < kGroups ? 4 : kGroups;
  static_assert(kGroups % kRun == 0);
  const __m256i ones = _mm256_set1_epi16(1);
  Ints dot = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int first = 0; first < kGroups; first += kRun) {
    __m256i run = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < kRun; ++i) {
      const int g = first + i;
      int32_t four;
      __builtin_memcpy(&four, a + 4 * g, 4);
      const __m256i as = _mm256_set1_epi32(four);
      __m256i products;
      if constexpr (kMaxCode > 127) {
        const __m256i ws = _mm256_xor_si256(w[g], _mm256_set1_epi8(-128));
        products = _mm256_maddubs_epi16(_mm256_abs_epi8(ws), _mm256_sign_epi8(as, ws));
      } else {
        products = _mm256_maddubs_epi16(w[g], as);
      }
      run = _mm256_add_epi16(run, products);
    }
    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(run, ones));
  }
  if constexpr (kZero != 0 && kMaxCode <= 127) dot = _mm256_sub_epi32(dot, _mm256_set1_epi32(kZero * sum));
  return dot;
}

template <int kMaxCode, int kZero>
inline Ints Dot16(const Bytes* w, const int8_t* a, int32_t sum) { return DotGroups<kMaxCode, kZero, 4>(w, a, sum); }

template <int kMaxCode, int kZero>
inline Ints Dot32(const Bytes* w, const int8_t* a, const int32_t* sums) {
  return DotGroups<kMaxCode, kZero, 8>(w, a, sums[0] + sums[1]);
}

#else

// Plain loops over the 16 lanes. Integers equal the other tiers'; floats are multiplied and added with two roundings, since a
// fused multiply-add without the instruction is a library call of some 50 ns.
#define RAMET_UNROLL  // nothing is kept in registers here, and unrolled the file took 36 s to compile
constexpr int kLanes = 16;
constexpr int kManyRowsPanels = 1;
struct Floats { float v[kLanes]; };
struct Ints { int32_t v[kLanes]; };
struct Bytes { uint8_t v[4 * kLanes]; };

template <class Out, class Function>
inline Out ForLanes(Function f) {
  Out out;
  for (int i = 0; i < static_cast<int>(sizeof(out.v) / sizeof(out.v[0])); ++i) out.v[i] = f(i);
  return out;
}

inline Bytes LoadBytes(const uint8_t* p) { return ForLanes<Bytes>([&](int i) { return p[i]; }); }
inline Bytes AndBytes(Bytes a, uint8_t mask) { return ForLanes<Bytes>([&](int i) { return static_cast<uint8_t>(a.v[i] & mask); }); }
inline Bytes OrBytes(Bytes a, Bytes b) { return ForLanes<Bytes>([&](int i) { return static_cast<uint8_t>(a.v[i] | b.v[i]); }); }
template <int kShift>
inline Bytes ShiftRight(Bytes a) { return ForLanes<Bytes>([&](int i) { return static_cast<uint8_t>(a.v[i] >> kShift); }); }
template <int kShift>
inline Bytes ShiftLeft(Bytes a) { return ForLanes<Bytes>([&](int i) { return static_cast<uint8_t>(a.v[i] << kShift); }); }

inline Floats Splat(float v) { return ForLanes<Floats>([&](int) { return v; }); }
inline Floats ZeroFloats() { return Splat(0.0f); }
inline Floats Mul(Floats a, Floats b) { return ForLanes<Floats>([&](int i) { return a.v[i] * b.v[i]; }); }
inline Floats Add(Floats a, Floats b) { return ForLanes<Floats>([&](int i) { return a.v[i] + b.v[i]; }); }
inline Floats MulAdd(Floats a, Floats b, Floats c) { return ForLanes<Floats>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
inline Floats ToFloats(Ints a) { return ForLanes<Floats>([&](int i) { return static_cast<float>(a.v[i]); }); }
inline Floats LoadFloats(const float* p) { return ForLanes<Floats>([&](int i) { return p[i]; }); }
inline void StoreFloats(float* p, Floats a) { for (int i = 0; i < kLanes; ++i) p[i] = a.v[i]; }

inline float FloatOfBits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

// Shifts exponent and mantissa into place and rescales by 2^112, exact for subnormals too; infinities and NaNs keep their bits.
inline float FloatOfHalf(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) return FloatOfBits(sign | 0x70000000u | magnitude);
  return FloatOfBits(sign | magnitude) * FloatOfBits(0x77800000u);
}

inline uint32_t Load16(const uint8_t* p, int i) { return static_cast<uint32_t>(p[2 * i] | p[2 * i + 1] << 8); }
inline Floats LoadHalfs(const uint8_t* p) { return ForLanes<Floats>([&](int i) { return FloatOfHalf(Load16(p, i)); }); }
inline Floats LoadBfloats(const uint8_t* p) { return ForLanes<Floats>([&](int i) { return FloatOfBits(Load16(p, i) << 16); }); }

inline Ints SplatInt(int32_t v) { return ForLanes<Ints>([&](int) { return v; }); }
inline Ints AddInts(Ints a, Ints b) { return ForLanes<Ints>([&](int i) { return a.v[i] + b.v[i]; }); }
inline Ints MulInts(Ints a, Ints b) { return ForLanes<Ints>([&](int i) { return a.v[i] * b.v[i]; }); }
inline Ints LoadUnsigned8(const uint8_t* p) { return ForLanes<Ints>([&](int i) { return static_cast<int32_t>(p[i]); }); }
inline Ints LoadSigned8(const uint8_t* p) {
  return ForLanes<Ints>([&](int i) { return static_cast<int32_t>(static_cast<int8_t>(p[i])); });
}
inline Ints LowNibbles(Ints a) { return ForLanes<Ints>([&](int i) { return a.v[i] & 15; }); }
inline Ints HighNibbles(Ints a) { return ForLanes<Ints>([&](int i) { return a.v[i] >> 4; }); }

template <int kMaxCode, int kZero>
inline Ints Dot16(const Bytes* w, const int8_t* a, int32_t sum) {
  return ForLanes<Ints>([&](int lane) {
    int32_t dot = -kZero * sum;
    for (int i = 0; i < 16; ++i) dot += w[i / 4].v[4 * lane + i % 4] * a[i];
    return dot;
  });
}

template <int kMaxCode, int kZero>
inline Ints Dot32(const Bytes* w, const int8_t* a, const int32_t* sums) {
  return AddInts(Dot16<kMaxCode, kZero>(w, a, sums[0]), Dot16<kMaxCode, kZero>(w + 4, a + 16, sums[1]));
}

#endif

constexpr int kParts = static_cast<int>(kPanelOutputs) / kLanes;
