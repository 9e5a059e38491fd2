// A small plan, many steps, several teams: the same bits on one thread and on many. Under ThreadSanitizer
// (RAMET_SANITIZE=thread) it shows that barriers separate whatever one worker writes and another reads.
#include "runtime/executor.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "core/status.h"
#include "tests/toy_plan.h"

namespace ramet {
namespace {

constexpr int64_t kVocab = 16;
constexpr int64_t kPageSize = 4;
constexpr int64_t kRowTokens = 300;
constexpr int64_t kPagesPerRow = kRowTokens / kPageSize;

struct Weights {
  Weights() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0.0f, 0.6f);
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      std::vector<float>& values = floats.emplace_back(static_cast<size_t>(n));
      for (float& x : values) x = normal(random);
      named.push_back({name, "f32", std::move(shape), {}, {}, ""});
    };
    add("embed", {kVocab, 8});
    add("norm", {8});
    add("wq", {8, 8});
    add("wk", {4, 8});
    add("wv", {4, 8});
    add("bias", {8});
    for (size_t i = 0; i < named.size(); ++i) {
      named[i].bytes = {reinterpret_cast<const uint8_t*>(floats[i].data()), floats[i].size() * sizeof(float)};
    }
  }

  std::vector<std::vector<float>> floats;
  std::vector<NamedWeight> named;
};

// A prefill of three rows, then decodes of all of them and one late chunk. All logits, in order.
std::vector<float> Run(int threads) {
  const Weights weights;
  ExecutorOptions options;
  options.kv = {3 * kPagesPerRow, kPageSize, 3, kRowTokens, KvType::kF16};
  options.max_step_tokens = 512;
  options.threads = threads;
  Executor executor(kToyPlan, weights.named, options);
  std::vector<float> all;
  std::vector<int32_t> lengths(3, 0);
  std::mt19937 random(9);
  for (int step = 0; step < 12; ++step) {
    std::vector<int32_t> rows{0, 1, 2}, lens, starts = lengths, tokens, updates, scored, targets;
    for (size_t r = 0; r < 3; ++r) {
      lens.push_back(step == 0 ? std::vector<int32_t>{150, 3, 260}[r] : step == 6 && r == 1 ? 140 : 1);
      for (int32_t i = 0; i < lens[r]; ++i) tokens.push_back(static_cast<int32_t>(random() % kVocab));
      lengths[r] += lens[r];
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      scored.push_back(static_cast<int32_t>(i));
      targets.push_back(3);
    }
    StepInputs inputs;
    const std::vector<uint8_t> samples{1, 0, 1};
    if (step == 0) {
      for (int32_t r = 0; r < 3; ++r) {
        inputs.new_rows.emplace_back(r, RowParams{});
        for (int32_t i = 0; i < kPagesPerRow; ++i) updates.insert(updates.end(), {r, i, i * 3 + r});
      }
    }
    inputs.rows = rows;
    inputs.query_lens = lens;
    inputs.starts = starts;
    inputs.token_ids = tokens;
    inputs.samples = {reinterpret_cast<const bool*>(samples.data()), samples.size()};
    inputs.page_updates = updates;
    inputs.score_tokens = scored;
    inputs.score_targets = targets;
    inputs.keep_logits = true;
    const StepResult result = executor.Step(inputs);
    Check(result.token_ids.size() == 2 && result.token_ids[0] >= 0, "rows that sample draw a token");
    all.insert(all.end(), result.logits.begin(), result.logits.end());
  }
  return all;
}

}  // namespace
}  // namespace ramet

int main() {
  const std::vector<float> one = ramet::Run(1);
  for (const int threads : {2, 3, 5}) {
    const std::vector<float> many = ramet::Run(threads);
    ramet::Check(one.size() == many.size() && std::memcmp(one.data(), many.data(), one.size() * sizeof(float)) == 0,
                 "bits do not depend on the number of threads");
  }
  std::puts("executor_test: ok");
  return 0;
}
