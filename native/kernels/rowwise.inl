// Bodies of RowwiseKernels.

namespace ramet {
namespace {
namespace rowwise {

// y[i] = f(x[i]), the tail through the same f on a padded vector.
template <typename Fn>
inline void Map(const float* x, int64_t n, float* y, Fn f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(f(Load(x + i)), y + i);
  if (i < n) StoreN(f(LoadN(x + i, n - i)), y + i, n - i);
}

template <typename Fn>
inline void Map2(const float* a, const float* b, int64_t n, float* y, Fn f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(f(Load(a + i), Load(b + i)), y + i);
  if (i < n) StoreN(f(LoadN(a + i, n - i), LoadN(b + i, n - i)), y + i, n - i);
}

// Σ f(x[i]) in kLanes fixed lanes, then ReduceAdd's tree. f(0) must be 0: missing lanes of the tail count as that.
template <typename Fn>
inline float Sum(const float* x, int64_t n, Fn add) {
  F32 sum = Zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = add(sum, Load(x + i));
  if (i < n) sum = add(sum, LoadN(x + i, n - i));
  return ReduceAdd(sum);
}

void RmsNorm(const float* x, const float* w, int64_t n, float eps, float offset, float* y) {
  const float squares = Sum(x, n, [](F32 sum, F32 v) { return Fma(v, v, sum); });
  const F32 inverse = Set(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  const F32 o = Set(offset);
  Map2(x, w, n, y, [=](F32 v, F32 weight) { return v * inverse * (o + weight); });
}

void LayerNorm(const float* x, const float* w, const float* b, int64_t n, float eps, float* y) {
  const float count = static_cast<float>(n);
  const float average = Sum(x, n, [](F32 sum, F32 v) { return sum + v; }) / count;
  const F32 mean = Set(average);
  F32 squares = Zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F32 d = Load(x + i) - mean;
    squares = Fma(d, d, squares);
  }
  if (i < n) {
    float rest[kLanes];  // filled up with the average: zeros would each add average²
    for (int64_t j = 0; j < kLanes; ++j) rest[j] = i + j < n ? x[i + j] : average;
    const F32 d = Load(rest) - mean;
    squares = Fma(d, d, squares);
  }
  const F32 inverse = Set(1.0f / __builtin_sqrtf(ReduceAdd(squares) / count + eps));
  for (i = 0; i + kLanes <= n; i += kLanes) Store(Fma((Load(x + i) - mean) * inverse, Load(w + i), Load(b + i)), y + i);
  if (i < n) {
    const int64_t rest = n - i;
    StoreN(Fma((LoadN(x + i, rest) - mean) * inverse, LoadN(w + i, rest), LoadN(b + i, rest)), y + i, rest);
  }
}

void Add(const float* a, const float* b, int64_t n, float* y) {
  Map2(a, b, n, y, [](F32 u, F32 v) { return u + v; });
}

void Mul(const float* a, const float* b, int64_t n, float* y) {
  Map2(a, b, n, y, [](F32 u, F32 v) { return u * v; });
}

void Scale(const float* x, float factor, int64_t n, float* y) {
  const F32 f = Set(factor);
  Map(x, n, y, [=](F32 v) { return v * f; });
}

void SoftCap(const float* x, float cap, int64_t n, float* y) {
  const F32 c = Set(cap);
  Map(x, n, y, [=](F32 v) { return c * Tanh(v / c); });
}

struct Silu {
  F32 operator()(F32 x) const { return x / (Set(1.0f) + Exp(Zero() - x)); }
};

struct Gelu {  // x · Φ(x), from Φ's tail so that the left side keeps its relative accuracy
  F32 operator()(F32 x) const {
    const F32 tail = NormalTail(Abs(x));
    return x * Select(Less(x, Zero()), tail, Set(1.0f) - tail);
  }
};

struct GeluTanh {  // x / 2 · (1 + tanh u) = x · sigmoid(2u)
  F32 operator()(F32 x) const {
    const F32 cubic = Fma(x * x, x * Set(0.044715f), x);
    return x / (Set(1.0f) + Exp(cubic * Set(-1.59576912f)));
  }
};

struct Relu {
  F32 operator()(F32 x) const { return Max(Zero(), x); }
};

struct SigmoidFn {
  F32 operator()(F32 x) const { return Sigmoid(x); }
};

struct TanhFn {
  F32 operator()(F32 x) const { return Tanh(x); }
};

template <typename Fn>
void Activate(const float* x, int64_t n, float* y) {
  Map(x, n, y, Fn{});
}

template <typename Fn>
void ActivateGated(const float* gate, const float* up, int64_t n, float* y) {
  Map2(gate, up, n, y, [](F32 g, F32 u) { return Fn{}(g)*u; });
}

void RopeHalf(const float* x, const float* cosines, const float* sines, int64_t half, int64_t head_dim, float* y) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    const F32 a = LoadN(x + i, n);
    const F32 b = LoadN(x + half + i, n);
    const F32 c = LoadN(cosines + i, n);
    const F32 s = LoadN(sines + i, n);
    StoreN(a * c - b * s, y + i, n);
    StoreN(b * c + a * s, y + half + i, n);
  }
  for (int64_t i = 2 * half; i < head_dim; ++i) y[i] = x[i];
}

void RopeInterleaved(const float* x, const float* cosines, const float* sines, int64_t half, int64_t head_dim, float* y) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    y[2 * i] = a * cosines[i] - b * sines[i];
    y[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
  for (int64_t i = 2 * half; i < head_dim; ++i) y[i] = x[i];
}

}  // namespace rowwise

constexpr RowwiseKernels kRowwiseKernels = {
    rowwise::RmsNorm,
    rowwise::LayerNorm,
    rowwise::Add,
    rowwise::Mul,
    rowwise::Scale,
    rowwise::SoftCap,
    {rowwise::Activate<rowwise::Silu>, rowwise::Activate<rowwise::Gelu>, rowwise::Activate<rowwise::GeluTanh>,
     rowwise::Activate<rowwise::Relu>, rowwise::Activate<rowwise::SigmoidFn>, rowwise::Activate<rowwise::TanhFn>},
    {rowwise::ActivateGated<rowwise::Silu>, rowwise::ActivateGated<rowwise::Gelu>, rowwise::ActivateGated<rowwise::GeluTanh>,
     rowwise::ActivateGated<rowwise::Relu>, rowwise::ActivateGated<rowwise::SigmoidFn>,
     rowwise::ActivateGated<rowwise::TanhFn>},
    {rowwise::RopeHalf, rowwise::RopeInterleaved},
};

}  // namespace
}  // namespace ramet
