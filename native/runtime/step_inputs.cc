#include "runtime/step_inputs.h"

#include <algorithm>

#include "core/status.h"

namespace ramet {
namespace {

void Within(const char* what, std::span<const int32_t> numbers, int64_t least, int64_t limit, size_t first = 0,
            size_t step = 1) {
  for (size_t i = first; i < numbers.size(); i += step) {
    if (numbers[i] < least || numbers[i] >= limit) {
      Raise("step: ", what, " must be in ", least, " to ", limit - 1, ", not ", numbers[i], " (entry ", i / step, ")");
    }
  }
}

void Require(bool holds, const char* rule) {
  if (!holds) Raise("step: ", rule);
}

void CheckEntries(const StepInputs& in, const StepLimits& limits, const KvLayout& layout, const std::vector<bool>& row_known) {
  const size_t entries = in.rows.size();
  Require(in.query_lens.size() == entries && in.starts.size() == entries && in.samples.size() == entries,
          "rows, query_lens, starts and samples must be equally long");
  Within("rows", in.rows, 0, layout.max_rows);
  Within("query_lens", in.query_lens, 1, layout.max_row_tokens + 1);
  Within("starts", in.starts, 0, layout.max_row_tokens);
  Within("token_ids", in.token_ids, kLastSampled, limits.num_embeddings);
  std::vector<bool> seen(static_cast<size_t>(layout.max_rows), false);
  std::vector<bool> known = row_known;
  for (const auto& [row, params] : in.new_rows) {
    if (row < 0 || row >= layout.max_rows) Raise("step: new_rows must be in 0 to ", layout.max_rows - 1, ", not ", row);
    known[static_cast<size_t>(row)] = true;
  }
  int64_t tokens = 0;
  for (size_t i = 0; i < entries; ++i) {
    const size_t row = static_cast<size_t>(in.rows[i]);
    if (seen[row]) Raise("step: row ", row, " appears twice");
    seen[row] = true;
    if (int64_t{in.starts[i]} + in.query_lens[i] > layout.max_row_tokens) {
      Raise("step: row ", row, " would have ", int64_t{in.starts[i]} + in.query_lens[i], " tokens, more than max_row_tokens, ",
            layout.max_row_tokens);
    }
    const int64_t end = std::min(tokens + in.query_lens[i], static_cast<int64_t>(in.token_ids.size()));
    bool needs_params = in.samples[i];
    for (; tokens < end; ++tokens) needs_params |= in.token_ids[static_cast<size_t>(tokens)] == kLastSampled;
    if (needs_params && !known[row]) Raise("step: row ", row, " samples, or asks for what it sampled last, but was never new");
  }
  int64_t sum = 0;
  for (const int32_t length : in.query_lens) sum += length;
  Require(sum == static_cast<int64_t>(in.token_ids.size()), "query_lens must sum to the number of token_ids");
  if (limits.whole_rows) {
    for (const int32_t start : in.starts) Require(start == 0, "starts must be 0: this plan takes whole rows");
  }
  Require(in.token_types.empty() || in.token_types.size() == in.token_ids.size(), "token_types must be one per token, or none");
  Within("token_types", in.token_types, 0, limits.num_token_types);
  if (sum > limits.max_step_tokens) Raise("step: ", sum, " tokens are more than max_step_tokens, ", limits.max_step_tokens);
}

}  // namespace

void CheckStep(const StepInputs& in, const StepLimits& limits, const KvLayout& layout, const std::vector<bool>& row_known) {
  CheckEntries(in, limits, layout, row_known);
  const int64_t pages_per_row = (layout.max_row_tokens + layout.page_size - 1) / layout.page_size;
  Require(in.page_updates.size() % 3 == 0 && in.page_copies.size() % 3 == 0, "page_updates and page_copies have 3 columns");
  Within("page_updates rows", in.page_updates, 0, layout.max_rows, 0, 3);
  Within("page_updates indices", in.page_updates, 0, pages_per_row, 1, 3);
  Within("page_updates pages", in.page_updates, 0, layout.num_pages, 2, 3);
  Within("page_copies from", in.page_copies, 0, layout.num_pages, 0, 3);
  Within("page_copies to", in.page_copies, 0, layout.num_pages, 1, 3);
  Within("page_copies slots", in.page_copies, 0, layout.page_size + 1, 2, 3);
  Require(in.score_tokens.size() == in.score_targets.size(), "score_tokens and score_targets must be equally long");
  Within("score_tokens", in.score_tokens, 0, static_cast<int64_t>(in.token_ids.size()));
  Within("score_targets", in.score_targets, 0, limits.vocab_size);
  Require(!limits.embeds || (in.score_tokens.empty() && in.mask_entries.empty()), "an embedding is neither scored nor masked");
  Require(std::is_sorted(in.score_tokens.begin(), in.score_tokens.end()), "score_tokens must ascend");
  if (in.score_top < 0 || in.score_top > limits.vocab_size) {
    Raise("step: score_top must be in 0 to ", limits.vocab_size, ", not ", in.score_top);
  }
  Within("mask_entries", in.mask_entries, 0, static_cast<int64_t>(in.rows.size()));
  const size_t words = static_cast<size_t>((limits.vocab_size + 31) / 32);
  Require(in.masks.size() == in.mask_entries.size() * words, "masks must be [mask_entries, ceil(vocab_size / 32)]");
  std::vector<bool> masked(in.rows.size(), false);
  for (const int32_t entry : in.mask_entries) {
    Require(!masked[static_cast<size_t>(entry)], "an entry has two masks");
    masked[static_cast<size_t>(entry)] = true;
  }
}

void CheckPages(const StepInputs& in, const StepLimits& limits, const KvCache& cache) {
  const int64_t page_size = cache.layout().page_size;
  for (size_t i = 0; i < in.rows.size(); ++i) {
    const int64_t end = int64_t{in.starts[i]} + in.query_lens[i];
    const int64_t begin = limits.window ? std::max<int64_t>(0, in.starts[i] - limits.window + 1) : 0;
    for (int64_t page = begin / page_size; page <= (end - 1) / page_size; ++page) {
      if (cache.Page(in.rows[i], page) < 0) {
        Raise("step: row ", in.rows[i], " has no page at index ", page, " but positions up to ", end - 1);
      }
    }
  }
}

}  // namespace ramet
