// Rowwise and attention kernels of every tier that runs here: close to float64, the same bits at every place, length and
// alignment, and nothing written beyond the end.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "core/status.h"
#include "runtime/cpu_features.h"

namespace ramet {
namespace {

constexpr float kGuard = 12345.0f;
const float kNaN = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

std::mt19937 g_random(11);

std::vector<float> Normal(size_t n, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& x : out) x = normal(g_random);
  return out;
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) == 0; }

void Near(double got, double want, double tolerance, const char* what) {
  if (std::fabs(got - want) <= tolerance) return;
  std::fprintf(stderr, "%s: %.9g instead of %.9g\n", what, got, want);
  Check(false, what);
}

// f over n floats at an odd alignment gives, element by element, what f over that element alone gives, and stays in bounds.
void TestPlaces(const std::function<void(const float*, int64_t, float*)>& f, float scale, const char* what) {
  for (int64_t n = 0; n <= 70; ++n) {
    const std::vector<float> x = Normal(static_cast<size_t>(n) + 1, scale);
    std::vector<float> y(static_cast<size_t>(n) + 2, kGuard);
    f(x.data() + 1, n, y.data() + 1);
    Check(y[0] == kGuard && y[static_cast<size_t>(n) + 1] == kGuard, what);
    for (int64_t i = 0; i < n; ++i) {
      float alone = 0;
      f(&x[static_cast<size_t>(i) + 1], 1, &alone);
      Check(SameBits(alone, y[static_cast<size_t>(i) + 1]), what);
    }
  }
}

double Reference(Activation f, double x) {
  switch (f) {
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGelu: return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
    case Activation::kGeluTanh: return x / (1 + std::exp(-2 * std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu: return x > 0 ? x : 0;
    case Activation::kSigmoid: return 1 / (1 + std::exp(-x));
    case Activation::kTanh: return std::tanh(x);
  }
  return 0;
}

// How exact exp's argument is bounds the tails of the gelus: a rounded square where multiply-adds are not fused, a rounded
// cube.
double RelativeError(Activation f, bool fused) {
  if (f == Activation::kGeluTanh) return 1.3e-5;
  return f == Activation::kGelu && !fused ? 5e-6 : 4e-7;
}

void TestActivations(const RowwiseKernels& kernels, bool fused) {
  for (int i = 0; i < kNumActivations; ++i) {
    const auto f = kernels.activation[i];
    TestPlaces(f, 3.0f, "activation");
    for (double x = -12; x <= 12; x += 0.00371) {
      const float in = static_cast<float>(x);
      float out = 0;
      f(&in, 1, &out);
      const double want = Reference(static_cast<Activation>(i), in);
      Near(out, want, RelativeError(static_cast<Activation>(i), fused) * std::fabs(want) + 1e-37, "activation");
      float gated = 0;
      const float up = 1.7f;
      kernels.gated_activation[i](&in, &up, 1, &gated);
      Check(SameBits(gated, out * up), "gated activation");
    }
    float out = 0;
    f(&kNaN, 1, &out);
    Check(std::isnan(out), "NaN stays NaN");
    for (const float big : {1e5f, -1e5f}) {
      f(&big, 1, &out);
      Near(out, Reference(static_cast<Activation>(i), big), 1e-30, "activation far out");
    }
  }
  TestPlaces([&](const float* x, int64_t n, float* y) { kernels.soft_cap(x, 30.0f, n, y); }, 40.0f, "soft cap");
}

void TestNorms(const RowwiseKernels& kernels) {
  for (const size_t n : {1u, 2u, 7u, 8u, 15u, 16u, 17u, 64u, 577u}) {
    const std::vector<float> x = Normal(n, 2.0f), w = Normal(n), b = Normal(n);
    std::vector<float> y(n + 1, kGuard), z(n + 1, kGuard);
    const int64_t count = static_cast<int64_t>(n);
    kernels.rms_norm(x.data(), w.data(), count, 1e-5f, 1.0f, y.data());
    kernels.layer_norm(x.data(), w.data(), b.data(), count, 1e-5f, z.data());
    double squares = 0, sum = 0, variance = 0;
    for (const float v : x) squares += double{v} * v, sum += v;
    const double mean = sum / static_cast<double>(n);
    for (const float v : x) variance += (v - mean) * (v - mean);
    for (size_t i = 0; i < n; ++i) {
      Near(y[i], x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * (1.0 + w[i]), 1e-5, "rms_norm");
      Near(z[i], (x[i] - mean) / std::sqrt(variance / static_cast<double>(n) + 1e-5) * w[i] + b[i], 2e-5, "layer_norm");
    }
    Check(y[n] == kGuard && z[n] == kGuard, "norms stay in bounds");
    std::vector<float> in_place = x;
    kernels.rms_norm(in_place.data(), w.data(), count, 1e-5f, 1.0f, in_place.data());
    for (size_t i = 0; i < n; ++i) Check(SameBits(in_place[i], y[i]), "rms_norm in place");
  }
}

void TestRope(const RowwiseKernels& kernels) {
  for (const size_t half : {1u, 3u, 8u, 16u, 20u, 32u}) {
    const size_t dim = 2 * half + 3;
    const std::vector<float> x = Normal(dim), cosines = Normal(half), sines = Normal(half);
    for (int style = 0; style < 2; ++style) {
      std::vector<float> y(dim + 1, kGuard);
      kernels.rope[style](x.data(), cosines.data(), sines.data(), static_cast<int64_t>(half), static_cast<int64_t>(dim),
                          y.data());
      for (size_t i = 0; i < half; ++i) {
        const size_t a = style == 0 ? i : 2 * i;
        const size_t b = style == 0 ? i + half : 2 * i + 1;
        Near(y[a], double{x[a]} * cosines[i] - double{x[b]} * sines[i], 2e-6, "rope");
        Near(y[b], double{x[b]} * cosines[i] + double{x[a]} * sines[i], 2e-6, "rope");
      }
      for (size_t i = 2 * half; i < dim; ++i) Check(SameBits(y[i], x[i]), "rope copies what does not rotate");
      Check(y[dim] == kGuard, "rope stays in bounds");
      std::vector<float> in_place = x;
      kernels.rope[style](in_place.data(), cosines.data(), sines.data(), static_cast<int64_t>(half), static_cast<int64_t>(dim),
                          in_place.data());
      for (size_t i = 0; i < dim; ++i) Check(SameBits(in_place[i], y[i]), "rope in place");
    }
  }
}

// Keys and values of one block in a type, and the attention of some queries over them, one query at a time and together.
void TestAttention(const AttendKernels& kernels, int type, int64_t dim, int64_t v_dim) {
  constexpr int64_t kQueries = 13;
  const std::vector<float> q = Normal(static_cast<size_t>(kQueries * dim));
  std::vector<uint8_t> keys(static_cast<size_t>(kAttendBlock * dim * 4));
  std::vector<uint8_t> values(static_cast<size_t>(kAttendBlock * v_dim * 4));
  const int64_t element = KvTypeBytes(static_cast<KvType>(type));
  const std::vector<float> k = Normal(static_cast<size_t>(kAttendBlock * dim)),
                           v = Normal(static_cast<size_t>(kAttendBlock * v_dim));
  kernels.store[type](k.data(), kAttendBlock * dim, keys.data());
  kernels.store[type](v.data(), kAttendBlock * v_dim, values.data());
  std::vector<float> rounded_k(k.size()), rounded_v(v.size());
  kernels.load[type](keys.data(), kAttendBlock * dim, rounded_k.data());
  kernels.load[type](values.data(), kAttendBlock * v_dim, rounded_v.data());
  std::vector<const void*> strips, rows;
  for (int64_t s = 0; s < kAttendBlock / kStrip; ++s) strips.push_back(keys.data() + s * kStrip * dim * element);
  for (int64_t j = 0; j < kAttendBlock; ++j) rows.push_back(values.data() + j * v_dim * element);

  std::vector<float> scores(kQueries * kAttendBlock), out(static_cast<size_t>(kQueries * v_dim));
  kernels.scores[type](q.data(), kQueries, dim, strips.data(), kAttendBlock / kStrip, dim, scores.data());
  const std::vector<float> raw = scores;
  for (const auto& [first, last] : std::vector<std::pair<int64_t, int64_t>>{{0, 128}, {0, 1}, {5, 77}, {127, 128}, {16, 40}}) {
    for (int64_t i = 0; i < kQueries; ++i) {
      float one[kAttendBlock], weights[kAttendBlock], max = 0, sum = 0;
      const float* query = q.data() + i * dim;
      kernels.scores[type](query, 1, dim, strips.data(), kAttendBlock / kStrip, dim, one);
      Check(std::memcmp(one, &raw[static_cast<size_t>(i * kAttendBlock)], sizeof(one)) == 0,
            "scores of one query are those of many");
      std::memcpy(weights, one, sizeof(one));
      kernels.softmax(weights, first, last, 0.25f, i % 2 ? 20.0f : 0.0f, &max, &sum);
      std::vector<double> want(kAttendBlock, 0.0);
      double total = 0, best = -1e30;
      for (int64_t j = first; j < last; ++j) {
        double s = 0;
        for (int64_t d = 0; d < dim; ++d)
          s += double{query[d]} * rounded_k[static_cast<size_t>(((j / kStrip) * dim + d) * kStrip + j % kStrip)];
        s *= 0.25;
        if (i % 2) s = 20 * std::tanh(s / 20);
        best = std::max(best, s);
        want[static_cast<size_t>(j)] = s;
      }
      for (int64_t j = 0; j < kAttendBlock; ++j) {
        const bool seen = j >= first && j < last;
        const double p = seen ? std::exp(want[static_cast<size_t>(j)] - best) : 0.0;
        Near(weights[j], p, seen ? 2e-5 : 0.0, "softmax");
        total += p;
      }
      Near(max, best, 2e-5, "largest score");
      Near(sum, total, 2e-5 * total, "sum of weights");
      std::memcpy(&scores[static_cast<size_t>(i * kAttendBlock)], weights, sizeof(weights));
    }
    kernels.weigh[type](scores.data(), kQueries, rows.data(), kAttendBlock, v_dim, out.data(), v_dim);
    for (int64_t i = 0; i < kQueries; ++i) {
      std::vector<float> one(static_cast<size_t>(v_dim) + 1, kGuard);
      // What a query does not see may be left out: its weights there are zero.
      kernels.weigh[type](&scores[static_cast<size_t>(i * kAttendBlock + first)], 1, rows.data() + first, last - first, v_dim,
                          one.data(), v_dim);
      Check(one.back() == kGuard, "weigh stays in bounds");
      for (int64_t d = 0; d < v_dim; ++d) {
        double want = 0;
        for (int64_t j = 0; j < kAttendBlock; ++j)
          want += double{scores[static_cast<size_t>(i * kAttendBlock + j)]} * rounded_v[static_cast<size_t>(j * v_dim + d)];
        const float got = out[static_cast<size_t>(i * v_dim + d)];
        Near(got, want, 1e-4, "weigh");
        Check(SameBits(got, one[static_cast<size_t>(d)]), "values of one query are those of many");
      }
    }
  }
}

void TestMerge(const AttendKernels& kernels) {
  for (const int64_t dim : {1, 8, 20, 64}) {
    const std::vector<float> a = Normal(static_cast<size_t>(dim)), b = Normal(static_cast<size_t>(dim));
    std::vector<float> out(static_cast<size_t>(dim), 0.0f), y(static_cast<size_t>(dim));
    float max = -kInf, sum = 0;
    kernels.merge(1.5f, 3.0f, a.data(), dim, &max, &sum, out.data());
    Check(max == 1.5f && sum == 3.0f, "the first block is taken as it is");
    for (size_t d = 0; d < a.size(); ++d) Check(out[d] == a[d], "the first block is taken as it is");
    kernels.merge(2.0f, 4.0f, b.data(), dim, &max, &sum, out.data());
    const double share = std::exp(-0.5), total = 3 * share + 4, sink = std::exp(-1.0);
    const float sink_logit = 1.0f;
    Near(sum, total, 1e-5, "merged sum");
    for (const bool has_sink : {false, true}) {
      kernels.finish(max, sum, has_sink ? &sink_logit : nullptr, out.data(), dim, y.data());
      for (size_t d = 0; d < a.size(); ++d) Near(y[d], (a[d] * share + b[d]) / (total + (has_sink ? sink : 0)), 1e-5, "merged");
    }
  }
}

void TestStore(const AttendKernels& kernels, const AttendKernels& scalar) {
  std::vector<float> x = Normal(200, 100.0f);
  for (const float special : {0.0f, -0.0f, kInf, -kInf, 1e30f, 65504.0f, 65520.0f, 1e-8f, 5.96e-8f, 6.1e-5f, 1.0009765625f})
    x.push_back(special);
  for (int type = 0; type < kNumKvTypes; ++type) {
    for (size_t n = 0; n <= x.size(); n += n < 40 ? 1 : 57) {
      std::vector<uint8_t> got(n * 4 + 4, 0xAB), want(n * 4 + 4, 0xAB);
      kernels.store[type](x.data(), static_cast<int64_t>(n), got.data());
      scalar.store[type](x.data(), static_cast<int64_t>(n), want.data());
      Check(got == want, "tiers store the same");
      std::vector<float> a(n + 1, kGuard), b(n + 1, kGuard);
      kernels.load[type](got.data(), static_cast<int64_t>(n), a.data());
      scalar.load[type](got.data(), static_cast<int64_t>(n), b.data());
      Check(std::memcmp(a.data(), b.data(), a.size() * 4) == 0, "tiers load the same");
    }
  }
}

}  // namespace
}  // namespace ramet

int main() {
  using namespace ramet;
  for (const KernelTable* table : RunnableTiers()) {
    TestActivations(table->rowwise, table != &kScalarKernels);
    TestNorms(table->rowwise);
    TestRope(table->rowwise);
    for (int type = 0; type < kNumKvTypes; ++type) {
      for (const int64_t dim : {64, 80, 17, 1}) TestAttention(table->attend, type, dim, dim);
      TestAttention(table->attend, type, 24, 130);
    }
    TestMerge(table->attend);
    TestStore(table->attend, kScalarKernels.attend);
    std::printf("kernels_test: %s ok\n", table->name);
  }
  return 0;
}
