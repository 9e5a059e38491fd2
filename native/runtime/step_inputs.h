// One step as the caller asks for it, and the checks that let the rest of the library trust it.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/sample.h"
#include "runtime/kv_cache.h"

namespace ramet {

constexpr int32_t kLastSampled = -1;  // as a token id: what the row sampled last

// Mirrors StepBatch of ramet/executor/base.py: same names, orders and meanings.
struct StepInputs {
  std::span<const int32_t> rows;
  std::span<const int32_t> query_lens;
  std::span<const int32_t> starts;
  std::span<const int32_t> token_ids;
  std::span<const int32_t> token_types;  // empty: all 0
  std::span<const bool> samples;
  std::span<const int32_t> page_updates;  // [U, 3]
  std::span<const int32_t> page_copies;   // [C, 3]
  std::vector<std::pair<int64_t, RowParams>> new_rows;
  std::span<const int32_t> score_tokens;
  std::span<const int32_t> score_targets;
  int64_t score_top = 0;
  std::span<const int32_t> mask_entries;
  std::span<const uint32_t> masks;  // [M, ceil(V / 32)]
  bool keep_logits = false;         // also return the logits of scored tokens, [L, V]
};

struct StepLimits {
  int64_t max_step_tokens = 0;
  int64_t num_embeddings = 0;  // token ids are below this
  int64_t num_token_types = 0;
  bool whole_rows = false;  // every row comes whole, from position 0
  bool embeds = false;      // nothing is drawn or scored
  int64_t vocab_size = 0;
  int64_t window = 0;  // the longest of all streams' windows; 0: some stream sees all positions
};

// Raises unless every number is in range and the columns fit together. `row_known` says which rows have parameters.
void CheckStep(const StepInputs& inputs, const StepLimits& limits, const KvLayout& layout, const std::vector<bool>& row_known);

// Raises unless every position that the step writes or may read has a page. Page updates must have been applied.
void CheckPages(const StepInputs& inputs, const StepLimits& limits, const KvCache& cache);

}  // namespace ramet
