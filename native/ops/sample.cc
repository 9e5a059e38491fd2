#include "ops/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "core/status.h"

namespace ramet {
namespace {

constexpr double kGreedyTemperature = 1e-6;
constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

uint64_t Mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// Output `index` of SplitMix64 started at Mix64(seed + golden).
uint64_t Random64(uint64_t seed, uint64_t index) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  return Mix64(Mix64(seed + kGolden) + kGolden * (index + 1));
}

// floor(a · b / 2^64)
uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 Uint128;
  return static_cast<uint64_t>((Uint128{a} * b) >> 64);
}

// Keys order tokens: a larger logit first, among equal logits the lower id. They fall along the order.
uint64_t OrderKey(float logit, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes +0
  const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{rising} << 32 | ~static_cast<uint32_t>(id);
}

int32_t KeyId(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

float KeyLogit(uint64_t key) {
  const uint32_t rising = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(rising & 0x80000000u ? rising & 0x7FFFFFFFu : ~rising);
}

// One row's logits with their block maxima, and the distribution that a temperature makes of them.
class Distribution {
 public:
  Distribution(const SampleKernels& kernels, SampleScratch& scratch, const float* logits, int64_t size)
      : kernels_(kernels), scratch_(scratch), logits_(logits), size_(size) {}

  // Finds the best logit. False if a logit is NaN or +inf. To be called again when logits have changed.
  bool Scan() {
    scratch_.block_max.resize(static_cast<size_t>((size_ + kSampleBlock - 1) / kSampleBlock));
    if (!kernels_.block_max(logits_, size_, scratch_.block_max.data())) return false;
    best_ = -kInfinity;
    for (const float m : scratch_.block_max) best_ = std::max(best_, m);
    return true;
  }

  // No token can be drawn.
  bool empty() const { return best_ == -kInfinity; }

  // The lowest id among the best.
  int32_t ArgMax() const {
    const auto block = std::find(scratch_.block_max.begin(), scratch_.block_max.end(), best_);
    const int64_t begin = (block - scratch_.block_max.begin()) * kSampleBlock;
    return static_cast<int32_t>(std::find(logits_ + begin, logits_ + size_, best_) - logits_);
  }

  void SetTemperature(double temperature) {
    // The floor keeps -inf · inverse_temperature from being NaN at temperatures beyond 1e38.
    inverse_temperature_ = std::max(static_cast<float>(1.0 / temperature), std::numeric_limits<float>::min());
  }

  int32_t Draw(const RowParams& params, uint64_t random) {
    const bool limited = (params.top_k > 0 && params.top_k < size_) || params.top_p < 1.0;
    if (!limited && params.min_p <= 0.0) return DrawFromAll(random);
    if (limited) {
      KeepBest(params);
    } else {
      // A margin of 1e-3 covers all rounding up to here; exact weights decide in DrawFromOrder.
      const double span = (std::log(params.min_p) - 1e-3) / static_cast<double>(inverse_temperature_);
      GatherAtLeast(static_cast<float>(std::max(static_cast<double>(best_) + span, static_cast<double>(-kFloatMax))));
    }
    return DrawFromOrder(params.min_p * 0x1p40, random);
  }

  // Writes the `n` best tokens of finite logprob to scratch.top.
  void Top(int64_t n) {
    scratch_.top.clear();
    if (n <= 0) return;
    GatherBest(n);
    std::vector<uint64_t>& order = scratch_.order;
    const auto end = order.begin() + std::min<int64_t>(n, std::ssize(order));
    std::partial_sort(order.begin(), end, order.end(), std::greater<>());
    for (auto key = order.begin(); key != end; ++key) scratch_.top.push_back({KeyId(*key), Logprob(KeyId(*key))});
  }

  float Logprob(int32_t id) {
    if (log_total_ < 0) log_total_ = std::log(static_cast<double>(Total()) * 0x1p-40);
    const float x = (logits_[id] - best_) * inverse_temperature_;
    return static_cast<float>(static_cast<double>(x) - log_total_);
  }

 private:
  // Logits per block of DrawFromAll: 96 sums for a vocabulary of 49k, and 512 weights to compute again.
  static constexpr int64_t kDrawBlock = 512;

  uint64_t Total() {
    if (total_ == 0) total_ = kernels_.weight_sum(logits_, size_, best_, inverse_temperature_);
    return total_;
  }

  // The first token whose running weight over all tokens exceeds random · total / 2^64.
  int32_t DrawFromAll(uint64_t random) {
    std::vector<uint64_t>& sums = scratch_.weights;
    sums.clear();
    for (int64_t begin = 0; begin < size_; begin += kDrawBlock) {
      const int64_t count = std::min(kDrawBlock, size_ - begin);
      sums.push_back(kernels_.weight_sum(logits_ + begin, count, best_, inverse_temperature_));
      total_ += sums.back();
    }
    uint64_t left = MultiplyHigh(random, total_);
    size_t block = 0;
    for (; left >= sums[block]; ++block) left -= sums[block];
    const int64_t begin = static_cast<int64_t>(block) * kDrawBlock;
    const int64_t count = std::min(kDrawBlock, size_ - begin);
    uint64_t weights[kDrawBlock];
    kernels_.weights(logits_ + begin, count, best_, inverse_temperature_, weights);
    int64_t i = 0;
    for (; left >= weights[i]; ++i) left -= weights[i];
    return static_cast<int32_t>(begin + i);
  }

  // The same over the tokens of scratch.order, in id order, that weigh at least `least`.
  int32_t DrawFromOrder(double least, uint64_t random) {
    std::vector<uint64_t>& order = scratch_.order;
    WeighOrder();
    std::vector<uint64_t>& weights = scratch_.weights;
    uint64_t sum = 0;
    for (uint64_t& weight : weights) {
      if (static_cast<double>(weight) < least) weight = 0;
      sum += weight;
    }
    uint64_t left = MultiplyHigh(random, sum);
    size_t i = 0;
    for (; left >= weights[i]; ++i) left -= weights[i];
    return KeyId(order[i]);
  }

  // scratch.order = keys of all tokens whose logit is at least `threshold` and finite, in id order.
  void GatherAtLeast(float threshold) {
    threshold = std::max(threshold, -kFloatMax);
    std::vector<uint64_t>& order = scratch_.order;
    size_t found = 0;
    for (size_t block = 0; block < scratch_.block_max.size(); ++block) {
      if (scratch_.block_max[block] < threshold) continue;
      const int64_t begin = static_cast<int64_t>(block) * kSampleBlock;
      const int64_t end = std::min(begin + kSampleBlock, size_);
      if (order.size() < found + kSampleBlock) order.resize(2 * found + kSampleBlock);
      for (int64_t i = begin; i < end; ++i) {  // without a branch: in a flat distribution it would be a coin's toss
        order[found] = OrderKey(logits_[i], static_cast<int32_t>(i));
        found += logits_[i] >= threshold;
      }
    }
    order.resize(found);
  }

  // scratch.order = a superset of the `count` best tokens, in id order. The count-th largest block maximum bounds it from
  // below: that many blocks hold a logit as large. For 50 of 49k tokens it lets through about 52.
  void GatherBest(int64_t count) {
    float threshold = -kInfinity;
    if (count <= std::ssize(scratch_.block_max)) {
      std::vector<float>& maxima = scratch_.logits;
      maxima = scratch_.block_max;
      std::nth_element(maxima.begin(), maxima.begin() + (count - 1), maxima.end(), std::greater<>());
      threshold = maxima[static_cast<size_t>(count - 1)];
    }
    GatherAtLeast(threshold);
  }

  // scratch.order = the tokens that top_k and top_p keep, in id order. Both sets are the first so many of the order of tokens,
  // so their intersection is the shorter one.
  void KeepBest(const RowParams& params) {
    const int64_t k = params.top_k > 0 ? std::min(params.top_k, size_) : size_;
    uint64_t last = 0;
    if (params.top_p < 1.0) {
      // At least 1: the best token is kept however small top_p is.
      const uint64_t mass = std::max(uint64_t{1}, static_cast<uint64_t>(params.top_p * static_cast<double>(Total())));
      // The few best tokens usually hold the mass, a tenth of the vocabulary nearly always; only a flat distribution needs all.
      bool reached = false;
      int64_t head = 0;
      for (const int64_t next : {int64_t{256}, static_cast<int64_t>(scratch_.block_max.size()), k}) {
        if (reached || head == k) break;
        head = std::min(std::max(head, next), k);
        GatherBest(head);
        reached = WeighOrder() >= mass;
      }
      if (reached) last = KeyAt(mass);
    } else {
      GatherBest(k);
    }
    if (std::cmp_greater(scratch_.order.size(), k)) {
      scratch_.weights.assign(scratch_.order.size(), 1);
      last = std::max(last, KeyAt(static_cast<uint64_t>(k)));
    }
    std::erase_if(scratch_.order, [last](uint64_t key) { return key < last; });
  }

  // scratch.weights = weights of scratch.order; returns their sum.
  uint64_t WeighOrder() {
    const std::vector<uint64_t>& order = scratch_.order;
    scratch_.logits.resize(order.size());
    scratch_.weights.resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) scratch_.logits[i] = KeyLogit(order[i]);
    return kernels_.weights(scratch_.logits.data(), std::ssize(order), best_, inverse_temperature_, scratch_.weights.data());
  }

  // The key at which the tokens of scratch.order, best first, reach the sum `wanted` > 0 of scratch.weights; all together do.
  // Narrows the range that holds it by the logit's bits, 11 at a time: linear, where sorting is not. Uses up the weights.
  uint64_t KeyAt(uint64_t wanted) {
    std::vector<uint64_t>& keys = scratch_.selected;
    std::vector<uint64_t>& weights = scratch_.weights;
    keys = scratch_.order;
    size_t count = keys.size();
    uint64_t before = 0;  // weight of all keys above the range
    for (const int shift : {53, 42, 32}) {
      const uint64_t digits = shift == 32 ? 1u << 10 : 1u << 11;
      uint64_t sums[1 << 11] = {};
      for (size_t i = 0; i < count; ++i) sums[keys[i] >> shift & (digits - 1)] += weights[i];
      uint64_t digit = digits - 1;
      for (; digit > 0 && before + sums[digit] < wanted; --digit) before += sums[digit];
      size_t left = 0;
      for (size_t i = 0; i < count; ++i) {
        keys[left] = keys[i];
        weights[left] = weights[i];
        left += (keys[i] >> shift & (digits - 1)) == digit;
      }
      count = left;
    }
    for (size_t i = 0; i < count; ++i) {  // equal logits, in id order
      before += weights[i];
      if (before >= wanted) return keys[i];
    }
    Check(false, "the weights of the candidates reach what is wanted");
    return 0;
  }

  const SampleKernels& kernels_;
  SampleScratch& scratch_;
  const float* logits_;
  int64_t size_;
  float best_ = -kInfinity;
  float inverse_temperature_ = 1.0f;
  uint64_t total_ = 0;     // 0: not computed yet
  double log_total_ = -1;  // -1: not computed yet; the total is at least 1, so never negative
};

}  // namespace

void RowSampler::Set(RowParams params, int64_t vocab_size) {
  const auto check_ids = [vocab_size](const char* what, const std::vector<int32_t>& ids) {
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size) Raise(what, ": token id ", id, " is outside the vocabulary of ", vocab_size);
    }
  };
  check_ids("bias_ids", params.bias_ids);
  check_ids("suppress_ids", params.suppress_ids);
  check_ids("generated", params.generated);
  check_ids("logprob_ids", params.logprob_ids);
  const auto check_range = [](const char* what, double value, double low, double high) {
    if (!(value >= low && value <= high)) Raise(what, " ", value, " is not in ", low, " .. ", high);  // NaN is not
  };
  constexpr double kHuge = std::numeric_limits<double>::max();
  constexpr double kTiny = std::numeric_limits<double>::denorm_min();
  check_range("temperature", params.temperature, 0, kHuge);
  check_range("top_p", params.top_p, 0, 1);
  check_range("min_p", params.min_p, 0, 1);
  check_range("frequency_penalty", params.frequency_penalty, -kHuge, kHuge);
  check_range("presence_penalty", params.presence_penalty, -kHuge, kHuge);
  check_range("repetition_penalty", params.repetition_penalty, kTiny, kHuge);
  for (const double bias : params.bias_values) check_range("bias_values", bias, -kHuge, kHuge);
  if (params.bias_ids.size() != params.bias_values.size()) {
    Raise("bias_ids has ", params.bias_ids.size(), " entries and bias_values ", params.bias_values.size());
  }
  params_ = std::move(params);
  penalised_ = params_.frequency_penalty != 0 || params_.presence_penalty != 0 || params_.repetition_penalty != 1;
  counts_.clear();
  num_generated_ = 0;
  last_token_ = kNoToken;
  for (const int32_t token : params_.generated) Observe(token);
}

void RowSampler::Observe(int32_t token) {
  if (penalised_) ++counts_[token];
  ++num_generated_;
  last_token_ = token;
}

bool RowSampler::EditsLogits(const uint32_t* mask) const {
  return !counts_.empty() || !params_.bias_ids.empty() || num_generated_ < params_.suppress_until || mask;
}

void RowSampler::EditLogits(float* logits, int64_t vocab_size, const uint32_t* mask) const {
  const float repetition = static_cast<float>(params_.repetition_penalty);
  for (const auto& [token, count] : counts_) {
    const float z = logits[token] - static_cast<float>(params_.frequency_penalty * count + params_.presence_penalty);
    logits[token] = std::min(z > 0.0f ? z / repetition : z * repetition, kFloatMax);
  }
  for (size_t i = 0; i < params_.bias_ids.size(); ++i) {
    float& z = logits[params_.bias_ids[i]];
    const double bias = std::clamp(params_.bias_values[i], static_cast<double>(-kFloatMax), static_cast<double>(kFloatMax));
    z = std::min(z + static_cast<float>(bias), kFloatMax);
  }
  if (num_generated_ < params_.suppress_until) {
    for (const int32_t id : params_.suppress_ids) logits[id] = -kInfinity;
  }
  if (!mask) return;
  for (int64_t begin = 0; begin < vocab_size; begin += 32) {
    const uint32_t word = mask[begin / 32];
    if (word == ~0u) continue;
    const int64_t end = std::min(begin + 32, vocab_size);
    for (int64_t i = begin; i < end; ++i) logits[i] = word >> (i - begin) & 1u ? logits[i] : -kInfinity;
  }
}

SampledToken RowSampler::Sample(const SampleKernels& kernels, SampleScratch& scratch, float* logits, int64_t vocab_size,
                                const uint32_t* mask) {
  scratch.top.clear();
  scratch.chosen.clear();
  SampledToken token{kNoToken, kNaN};
  Distribution distribution(kernels, scratch, logits, vocab_size);
  if (!distribution.Scan()) return token;
  if (EditsLogits(mask)) {
    EditLogits(logits, vocab_size, mask);
    distribution.Scan();
  }
  if (distribution.empty()) return token;
  if (params_.temperature < kGreedyTemperature) {
    token.id = distribution.ArgMax();
  } else {
    distribution.SetTemperature(params_.temperature);
    token.id = distribution.Draw(params_, Random64(params_.seed, static_cast<uint64_t>(num_generated_)));
  }
  if (params_.top_logprobs >= 0) {
    token.logprob = distribution.Logprob(token.id);
    distribution.Top(params_.top_logprobs);
    for (const int32_t id : params_.logprob_ids) scratch.chosen.push_back(distribution.Logprob(id));
  }
  Observe(token.id);
  return token;
}

float ScoreLogits(const SampleKernels& kernels, SampleScratch& scratch, const float* logits, int64_t vocab_size,
                  int32_t target, int32_t top_n, std::span<const int32_t> chosen) {
  scratch.top.clear();
  scratch.chosen.clear();
  Distribution distribution(kernels, scratch, logits, vocab_size);
  if (!distribution.Scan() || distribution.empty()) return kNaN;
  distribution.Top(top_n);
  for (const int32_t id : chosen) scratch.chosen.push_back(distribution.Logprob(id));
  return distribution.Logprob(target);
}

}  // namespace ramet
