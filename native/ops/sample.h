// Sampling: from a row's logits to its next token, as `ramet/executor/sampling.py` defines it, bit for bit.
//
// The executor owns one `RowSampler` per row and calls `Sample` once for each row that draws. Rows share nothing, so they may
// be split over threads in any way and a row's tokens do not depend on its neighbours. Scratch memory is per thread.
//
//   samplers[row].Set(std::move(params));                       // a request takes the row
//   SampledToken token = samplers[row].Sample(kernels, scratch[worker], logits, vocab_size, mask);
//   ... token.id, token.logprob; scratch[worker].top: the best tokens; scratch[worker].chosen
//
// A row whose logits are scored (`ScoreLogits`) and sampled must be scored first: sampling edits the logits in place.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/sample_kernels.h"

namespace ramet {

constexpr int32_t kNoToken = -1;

// Mirrors `RowParams` of ramet/executor/base.py; meanings and ranges are written there.
struct RowParams {
  double temperature = 0.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  uint64_t seed = 0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<int32_t> bias_ids;
  std::vector<double> bias_values;
  std::vector<int32_t> suppress_ids;
  int64_t suppress_until = 0;
  std::vector<int32_t> generated;
  int32_t top_logprobs = -1;
  std::vector<int32_t> logprob_ids;
};

struct TokenLogprob {
  int32_t id;
  float logprob;
};

// Working memory of one thread, reused from row to row; at most about 30 bytes per vocabulary entry.
struct SampleScratch {
  std::vector<TokenLogprob> top;  // result: the best tokens, best first; fewer than asked when fewer have a chance
  std::vector<float> chosen;      // result: logprob of each of the row's logprob_ids

  std::vector<float> block_max;    // of the row's logits
  std::vector<float> logits;       // of the tokens in `order`
  std::vector<uint64_t> order;     // candidates, as keys that fall along the order of tokens
  std::vector<uint64_t> selected;  // candidates while they are being reordered
  std::vector<uint64_t> weights;   // of the tokens in `order`
};

struct SampledToken {
  int32_t id = kNoToken;
  float logprob = 0.0f;  // NaN unless the row asked for logprobs and a token was drawn
};

// The state of one row between steps.
class RowSampler {
 public:
  // Starts a request in this row, forgetting the one before. Raises on an id outside [0, vocab_size) and
  // on bias lists of unequal length.
  void Set(RowParams params, int64_t vocab_size);

  // Draws the next token and counts it as generated. `logits` has vocab_size floats and is edited in place; `mask` is null or
  // has a bit per token, set where the grammar allows it. kNoToken, and nothing counted, if a logit is NaN or +inf or if no
  // token is left to draw.
  SampledToken Sample(const SampleKernels& kernels, SampleScratch& scratch, float* logits, int64_t vocab_size,
                      const uint32_t* mask);

  // The token drawn last, or the last of `params.generated`; kNoToken before the first.
  int32_t last_token() const { return last_token_; }
  int64_t num_generated() const { return num_generated_; }
  const RowParams& params() const { return params_; }

 private:
  void Observe(int32_t token);
  bool EditsLogits(const uint32_t* mask) const;
  void EditLogits(float* logits, int64_t vocab_size, const uint32_t* mask) const;

  RowParams params_;
  bool penalised_ = false;
  std::unordered_map<int32_t, int32_t> counts_;  // of generated tokens, if penalised
  int64_t num_generated_ = 0;
  int32_t last_token_ = kNoToken;
};

// Log-softmax of plain logits: returns the logprob of `target`, and writes the `top_n` best tokens to scratch.top and the
// logprobs of `chosen` to scratch.chosen. NaN, and empty lists, if a logit is NaN or +inf or none is finite.
float ScoreLogits(const SampleKernels& kernels, SampleScratch& scratch, const float* logits, int64_t vocab_size, int32_t target,
                  int32_t top_n, std::span<const int32_t> chosen = {});

}  // namespace ramet
