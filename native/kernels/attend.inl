// Bodies of AttendKernels.

namespace ramet {
namespace {
namespace attend {

// Queries that share a load of keys or values. Accumulators, for 16 registers: 6 queries x 2 vectors of 8 = 12, and 2 loads +
// 6 broadcasts for 12 multiply-adds; for 32 registers: 6 x 4 of 16 = 24.
#if defined(__AVX512F__)
constexpr int kQueries = 6;
constexpr int VectorsAtOnce(int queries) { return queries == 1 ? 8 : 4; }
#elif defined(__AVX2__)
constexpr int kQueries = 6;
constexpr int VectorsAtOnce(int queries) { return queries == 1 ? 8 : queries <= 3 ? 4 : 2; }
#else
constexpr int kQueries = 1;
constexpr int VectorsAtOnce(int) { return 16; }
#endif
constexpr int kStripVectors = static_cast<int>(kStrip / kLanes);

template <KvType kType>
inline F32 LoadKv(const void* p, int64_t i) {
  if constexpr (kType == KvType::kF32) return Load(static_cast<const float*>(p) + i);
  if constexpr (kType == KvType::kF16) return LoadHalf(static_cast<const uint16_t*>(p) + i);
  if constexpr (kType == KvType::kBF16) return LoadBrain(static_cast<const uint16_t*>(p) + i);
}

template <KvType kType>
inline F32 LoadKvN(const void* p, int64_t i, int64_t n) {
  if constexpr (kType == KvType::kF32) return LoadN(static_cast<const float*>(p) + i, n);
  if constexpr (kType == KvType::kF16) return LoadHalfN(static_cast<const uint16_t*>(p) + i, n);
  if constexpr (kType == KvType::kBF16) return LoadBrainN(static_cast<const uint16_t*>(p) + i, n);
}

template <KvType kType>
void StoreAs(const float* x, int64_t n, void* out) {
  if constexpr (kType == KvType::kF32) {
    __builtin_memcpy(out, x, static_cast<size_t>(n) * 4);
  } else if constexpr (kType == KvType::kF16) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const int64_t count = n - i < kLanes ? n - i : kLanes;
      StoreHalfN(LoadN(x + i, count), static_cast<uint16_t*>(out) + i, count);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) static_cast<uint16_t*>(out)[i] = FloatToBrainBits(x[i]);
  }
}

template <KvType kType>
void LoadAs(const void* x, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(LoadKv<kType>(x, i), out + i);
  if (i < n) StoreN(LoadKvN<kType>(x, i, n - i), out + i, n - i);
}

// Scores of kQ queries against kS strips.
template <KvType kType, int kQ, int kS>
inline void ScoresTile(const float* q, int64_t ldq, const void* const* strips, int64_t dim, float* scores) {
  constexpr int kVectors = kS * kStripVectors;
  F32 sums[kQ][kVectors];
  for (int i = 0; i < kQ; ++i) {
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Zero();
  }
  const void* strip[kS];
  for (int s = 0; s < kS; ++s) strip[s] = strips[s];
  for (int64_t d = 0; d < dim; ++d) {
    F32 keys[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      keys[v] = LoadKv<kType>(strip[v / kStripVectors], d * kStrip + v % kStripVectors * kLanes);
    }
    for (int i = 0; i < kQ; ++i) {
      const F32 query = Set(q[i * ldq + d]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = Fma(query, keys[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kQ; ++i) {
    for (int v = 0; v < kVectors; ++v) Store(sums[i][v], scores + i * kAttendBlock + v * kLanes);
  }
}

template <KvType kType, int kQ>
void ScoresRows(const float* q, int64_t ldq, const void* const* strips, int64_t num_strips, int64_t dim, float* scores) {
  constexpr int kS = VectorsAtOnce(kQ) / kStripVectors;
  int64_t s = 0;
  for (; s + kS <= num_strips; s += kS) ScoresTile<kType, kQ, kS>(q, ldq, strips + s, dim, scores + s * kStrip);
  // What is left goes at once too where registers allow: a strip alone waits for its multiply-adds, 4 cycles for each element.
  if constexpr (kS > 4) {
    for (; s + 4 <= num_strips; s += 4) ScoresTile<kType, kQ, 4>(q, ldq, strips + s, dim, scores + s * kStrip);
  }
  if constexpr (kS > 3) {
    if (s + 3 == num_strips) return ScoresTile<kType, kQ, 3>(q, ldq, strips + s, dim, scores + s * kStrip);
  }
  if constexpr (kS > 2) {
    if (s + 2 == num_strips) return ScoresTile<kType, kQ, 2>(q, ldq, strips + s, dim, scores + s * kStrip);
  }
  if constexpr (kS > 1) {
    for (; s < num_strips; ++s) ScoresTile<kType, kQ, 1>(q, ldq, strips + s, dim, scores + s * kStrip);
  }
}

template <KvType kType>
void Scores(const float* q, int64_t queries, int64_t ldq, const void* const* strips, int64_t num_strips, int64_t dim,
            float* scores) {
  int64_t i = 0;
  for (; i + kQueries <= queries; i += kQueries) {
    ScoresRows<kType, kQueries>(q + i * ldq, ldq, strips, num_strips, dim, scores + i * kAttendBlock);
  }
  q += i * ldq;
  scores += i * kAttendBlock;
  if constexpr (kQueries > 1) {
    switch (queries - i) {
      case 1: return ScoresRows<kType, 1>(q, ldq, strips, num_strips, dim, scores);
      case 2: return ScoresRows<kType, 2>(q, ldq, strips, num_strips, dim, scores);
      case 3: return ScoresRows<kType, 3>(q, ldq, strips, num_strips, dim, scores);
      case 4: return ScoresRows<kType, 4>(q, ldq, strips, num_strips, dim, scores);
      case 5: return ScoresRows<kType, 5>(q, ldq, strips, num_strips, dim, scores);
      default: return;
    }
  }
}

void Softmax(float* scores, int64_t first, int64_t last, float scale, float cap, float* max, float* sum) {
  const int64_t begin = first / kLanes * kLanes;
  const int64_t end = (last + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = begin; i < first; ++i) scores[i] = -kInfinity;
  for (int64_t i = last; i < end; ++i) scores[i] = -kInfinity;
  F32 maxima = Set(-kInfinity);
  for (int64_t i = begin; i < end; i += kLanes) {
    F32 s = Load(scores + i) * Set(scale);
    if (cap > 0) s = Set(cap) * Tanh(s / Set(cap));
    Store(s, scores + i);
    maxima = Max(maxima, s);
  }
  if (cap > 0) {  // which has made finite what must not count
    for (int64_t i = begin; i < first; ++i) scores[i] = -kInfinity;
    for (int64_t i = last; i < end; ++i) scores[i] = -kInfinity;
    maxima = Set(-kInfinity);
    for (int64_t i = begin; i < end; i += kLanes) maxima = Max(maxima, Load(scores + i));
  }
  *max = ReduceMax(maxima);
  const F32 m = Set(*max);
  F32 sums = Zero();
  for (int64_t i = begin; i < end; i += kLanes) {
    const F32 p = ExpDown(Load(scores + i) - m);
    Store(p, scores + i);
    sums = sums + p;
  }
  *sum = ReduceAdd(sums);
  for (int64_t i = 0; i < begin; ++i) scores[i] = 0;
  for (int64_t i = end; i < kAttendBlock; ++i) scores[i] = 0;
}

// kQ queries, kD vectors of the head from `d` on; `n` <= kLanes floats of the last vector exist.
template <KvType kType, int kQ, int kD, bool kWhole>
inline void WeighTile(const float* p, const void* const* values, int64_t positions, int64_t d, int64_t n, float* out,
                      int64_t ldo) {
  F32 sums[kQ][kD];
  for (int i = 0; i < kQ; ++i) {
    for (int v = 0; v < kD; ++v) sums[i][v] = Zero();
  }
  for (int64_t j = 0; j < positions; ++j) {
    F32 value[kD];
    for (int v = 0; v < kD; ++v) {
      value[v] = kWhole ? LoadKv<kType>(values[j], d + v * kLanes) : LoadKvN<kType>(values[j], d, n);
    }
    for (int i = 0; i < kQ; ++i) {
      const F32 weight = Set(p[i * kAttendBlock + j]);
      for (int v = 0; v < kD; ++v) sums[i][v] = Fma(weight, value[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kQ; ++i) {
    for (int v = 0; v < kD; ++v) {
      if (kWhole) {
        Store(sums[i][v], out + i * ldo + d + v * kLanes);
      } else {
        StoreN(sums[i][v], out + i * ldo + d, n);
      }
    }
  }
}

template <KvType kType, int kQ>
void WeighRows(const float* p, const void* const* values, int64_t positions, int64_t dim, float* out, int64_t ldo) {
  constexpr int kD = VectorsAtOnce(kQ);
  int64_t d = 0;
  for (; d + kD * kLanes <= dim; d += kD * kLanes) {
    WeighTile<kType, kQ, kD, true>(p, values, positions, d, kLanes, out, ldo);
  }
  if constexpr (kD > 4) {
    for (; d + 4 * kLanes <= dim; d += 4 * kLanes) WeighTile<kType, kQ, 4, true>(p, values, positions, d, kLanes, out, ldo);
  }
  for (; d + kLanes <= dim; d += kLanes) WeighTile<kType, kQ, 1, true>(p, values, positions, d, kLanes, out, ldo);
  if (d < dim) WeighTile<kType, kQ, 1, false>(p, values, positions, d, dim - d, out, ldo);
}

template <KvType kType>
void Weigh(const float* p, int64_t queries, const void* const* values, int64_t positions, int64_t dim, float* out,
           int64_t ldo) {
  int64_t i = 0;
  for (; i + kQueries <= queries; i += kQueries) {
    WeighRows<kType, kQueries>(p + i * kAttendBlock, values, positions, dim, out + i * ldo, ldo);
  }
  p += i * kAttendBlock;
  out += i * ldo;
  if constexpr (kQueries > 1) {
    switch (queries - i) {
      case 1: return WeighRows<kType, 1>(p, values, positions, dim, out, ldo);
      case 2: return WeighRows<kType, 2>(p, values, positions, dim, out, ldo);
      case 3: return WeighRows<kType, 3>(p, values, positions, dim, out, ldo);
      case 4: return WeighRows<kType, 4>(p, values, positions, dim, out, ldo);
      case 5: return WeighRows<kType, 5>(p, values, positions, dim, out, ldo);
      default: return;
    }
  }
}

inline float ExpOf(float x) {
  float lanes[kLanes];
  Store(Exp(Set(x)), lanes);
  return lanes[0];
}

void Merge(float block_max, float block_sum, const float* block_out, int64_t dim, float* max, float* sum, float* out) {
  const float m = *max > block_max ? *max : block_max;
  const float old_share = *max == m ? 1.0f : ExpOf(*max - m);  // one of the two is 1, as exp(0) is
  const float new_share = block_max == m ? 1.0f : ExpOf(block_max - m);
  *max = m;
  *sum = *sum * old_share + block_sum * new_share;
  const F32 a = Set(old_share);
  const F32 b = Set(new_share);
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    StoreN(Fma(LoadN(out + d, n), a, LoadN(block_out + d, n) * b), out + d, n);
  }
}

void Finish(float max, float sum, const float* sink, const float* out, int64_t dim, float* y) {
  float share = 1;
  if (sink) {
    const float m = max > *sink ? max : *sink;
    share = ExpOf(max - m);
    sum = sum * share + ExpOf(*sink - m);
  }
  const F32 factor = Set(share / sum);
  for (int64_t d = 0; d < dim; d += kLanes) {
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    StoreN(LoadN(out + d, n) * factor, y + d, n);
  }
}

}  // namespace attend

constexpr AttendKernels kAttendKernels = {
    {attend::StoreAs<KvType::kF32>, attend::StoreAs<KvType::kF16>, attend::StoreAs<KvType::kBF16>},
    {attend::LoadAs<KvType::kF32>, attend::LoadAs<KvType::kF16>, attend::LoadAs<KvType::kBF16>},
    {attend::Scores<KvType::kF32>, attend::Scores<KvType::kF16>, attend::Scores<KvType::kBF16>},
    attend::Softmax,
    {attend::Weigh<KvType::kF32>, attend::Weigh<KvType::kF16>, attend::Weigh<KvType::kBF16>},
    attend::Merge,
    attend::Finish,
};

}  // namespace
}  // namespace ramet
