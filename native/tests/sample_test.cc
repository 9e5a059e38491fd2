// Every runnable tier gives the scalar tier's bits, at every length and alignment; rows do not touch each other.
// That these bits are the right ones, tests/property/test_sampling_executors.py shows against numpy.
#include "ops/sample.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "core/status.h"
#include "kernels/kernels.h"
#include "runtime/cpu_features.h"

namespace ramet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(std::mt19937& random, size_t n, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(n);
  for (float& z : logits) z = normal(random);
  return logits;
}

float Max(const std::vector<float>& values) {
  float max = -kInfinity;
  for (const float v : values) max = v > max ? v : max;
  return max;
}

void TestKernels(const SampleKernels& kernels) {
  std::mt19937 random(1);
  for (size_t n = 0; n <= 150; ++n) {
    for (size_t offset = 0; offset < 3; ++offset) {
      std::vector<float> logits = RandomLogits(random, n, offset == 2 ? 1e30f : 8.0f);
      if (n > 3) logits[n / 2] = -kInfinity;
      std::vector<float> shifted(offset + n);
      std::copy(logits.begin(), logits.end(), shifted.begin() + static_cast<ptrdiff_t>(offset));
      const float* p = shifted.data() + offset;
      const int64_t count = static_cast<int64_t>(n);
      const float max = n ? Max(logits) : 0.0f;

      std::vector<uint64_t> expected(n), weights(n);
      const uint64_t sum = kScalarKernels.sample.weights(p, count, max, 0.75f, expected.data());
      Check(kernels.weights(p, count, max, 0.75f, weights.data()) == sum, "sum of stored weights");
      Check(weights == expected, "weights");
      Check(kernels.weight_sum(p, count, max, 0.75f) == sum, "sum of weights");
      uint64_t added = 0;
      for (const uint64_t w : expected) added += w;
      Check(added == sum, "the sum is that of the weights");

      std::vector<float> maxima((n + kSampleBlock - 1) / kSampleBlock);
      Check(kernels.block_max(p, count, maxima.data()), "finite and -inf are logits");
      for (size_t block = 0; block < maxima.size(); ++block) {
        const size_t end = std::min(n, (block + 1) * static_cast<size_t>(kSampleBlock));
        const std::vector<float> part(p + block * kSampleBlock, p + end);
        Check(maxima[block] == Max(part), "block maximum");
      }
      if (n == 0) continue;
      shifted[offset + random() % n] = n % 2 ? kNaN : kInfinity;
      Check(!kernels.block_max(p, count, maxima.data()), "NaN or +inf anywhere is found");
    }
  }
}

std::vector<RowParams> SomeParams(std::mt19937& random, int32_t vocab_size) {
  std::vector<RowParams> all;
  for (const double temperature : {0.0, 0.3, 1.0, 4e6}) {
    for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{40}, int64_t{2000}}) {
      for (const double top_p : {1.0, 0.9, 1e-9, 1e-300}) {
        for (const double min_p : {0.0, 0.1}) {
          RowParams params;
          params.temperature = temperature;
          params.top_k = top_k;
          params.top_p = top_p;
          params.min_p = min_p;
          params.seed = random();
          params.top_logprobs = 5;
          params.logprob_ids = {static_cast<int32_t>(random() % static_cast<uint32_t>(vocab_size))};
          if (random() % 2) {
            params.frequency_penalty = 0.5;
            params.repetition_penalty = 1.3;
            params.generated = {0, vocab_size - 1, 0};
          }
          all.push_back(params);
        }
      }
    }
  }
  return all;
}

struct Drawn {
  SampledToken token;
  std::vector<TokenLogprob> top;
  std::vector<float> chosen;
};

void CheckSame(const Drawn& a, const Drawn& b) {
  Check(a.token.id == b.token.id && a.token.logprob == b.token.logprob, "same token and logprob");
  Check(a.top.size() == b.top.size(), "same number of best tokens");
  for (size_t i = 0; i < a.top.size(); ++i) {
    Check(a.top[i].id == b.top[i].id && a.top[i].logprob == b.top[i].logprob, "same best tokens");
  }
  Check(a.chosen == b.chosen, "same chosen logprobs");
}

// A row drawn with fresh scratch memory by the scalar tier, and in turn with other rows by this tier.
void TestRows(const SampleKernels& kernels) {
  std::mt19937 random(2);
  SampleScratch shared;
  for (const int32_t vocab_size : {1, 63, 64, 65, 777, 5000}) {
    for (const RowParams& params : SomeParams(random, vocab_size)) {
      RowSampler alone, among;
      alone.Set(params, vocab_size);
      among.Set(params, vocab_size);
      for (int step = 0; step < 3; ++step) {
        const std::vector<float> logits = RandomLogits(random, static_cast<size_t>(vocab_size), 3.0f);
        std::vector<float> copy = logits;
        SampleScratch fresh;
        Drawn expected;
        expected.token = alone.Sample(kScalarKernels.sample, fresh, copy.data(), vocab_size, nullptr);
        expected.top = fresh.top;
        expected.chosen = fresh.chosen;
        copy = logits;
        Drawn drawn;
        drawn.token = among.Sample(kernels, shared, copy.data(), vocab_size, nullptr);
        drawn.top = shared.top;
        drawn.chosen = shared.chosen;
        CheckSame(expected, drawn);
        Check(among.last_token() == drawn.token.id, "the row remembers its token");
      }
      Check(among.num_generated() == std::ssize(params.generated) + 3, "the row counts its tokens");
    }
  }
}

void TestBadParams() {
  for (int which = 0; which < 5; ++which) {
    RowParams params;
    if (which == 0) params.generated = {10};
    if (which == 1) params.suppress_ids = {-1};
    if (which == 2) params.logprob_ids = {10};
    if (which == 3) params.bias_ids = {3};
    if (which == 4) params.bias_ids = {10}, params.bias_values = {1.0};
    bool raised = false;
    try {
      RowSampler().Set(params, 10);
    } catch (const Error&) {
      raised = true;
    }
    Check(raised, "a token id outside the vocabulary or a missing bias is refused");
  }
}

}  // namespace
}  // namespace ramet

int main() {
  for (const ramet::KernelTable* table : ramet::RunnableTiers()) {
    std::printf("%s\n", table->name);
    ramet::TestKernels(table->sample);
    ramet::TestRows(table->sample);
  }
  ramet::TestBadParams();
  return 0;
}
