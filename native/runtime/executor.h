// Runs a plan step by step: holds packed weights, the cache of keys and values, each row's sampling state and the team of
// threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mapped_bytes.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/sample.h"
#include "plan/plan.h"
#include "runtime/kv_cache.h"
#include "runtime/lower.h"
#include "runtime/packed_weights.h"
#include "runtime/step_context.h"
#include "runtime/step_inputs.h"
#include "runtime/thread_pool.h"

namespace ramet {

struct ExecutorOptions {
  KvLayout kv;
  int64_t max_step_tokens = 0;
  int threads = 0;   // 0: as many as processors this process may use
  std::string tier;  // "": the fastest that runs here
};

// Mirrors StepOutput. id_logprobs[i] and score_id_logprobs[i] are empty where the row asked for none.
struct StepResult {
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  int64_t top = 0;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
  std::vector<std::vector<float>> id_logprobs;
  std::vector<float> score_logprobs;
  std::vector<int32_t> score_top_ids;
  std::vector<float> score_top_logprobs;
  std::vector<std::vector<float>> score_id_logprobs;
  int64_t embedding_size = 0;     // of plans that embed, else 0
  std::vector<float> embeddings;  // [S, embedding_size]
  std::vector<float> logits;      // [L, V] if asked
};

struct SegmentTiming {
  std::string label;  // kinds of operations
  std::string name;   // of the first one
  int64_t calls = 0;
  int64_t nanoseconds = 0;
};

struct MemoryUse {
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_page = 0;
  int64_t kv_bytes = 0;     // of the whole pool; untouched pages take no memory
  int64_t arena_bytes = 0;  // activations of the largest step
};

class Executor {
 public:
  // Packs the weights. Raises on a plan, weights or sizes that do not fit together.
  Executor(std::string_view plan_json, const std::vector<NamedWeight>& weights, const ExecutorOptions& options);

  // Raises, before any token is computed, on inputs that break StepBatch's rules; the step has then had no effect beyond
  // new_rows and page_updates, and later steps run.
  StepResult Step(const StepInputs& inputs);

  int64_t vocab_size() const { return plan_.vocab_size(); }
  int64_t embedding_size() const { return plan_.embeds ? plan_.values[static_cast<size_t>(plan_.logits)].width : 0; }
  bool whole_rows() const { return limits_.whole_rows; }
  int threads() const { return pool_.size(); }
  const char* tier() const { return kernels_.name; }
  MemoryUse memory() const;

  // Timing slots: off at first; turning them on clears them.
  void EnableTimings(bool on);
  const std::vector<SegmentTiming>& timings() const { return timings_; }

 private:
  struct LogitsRow;
  struct StepState;

  void ApplyRowUpdates(const StepInputs& inputs);
  StepState Prepare(const StepInputs& inputs, StepResult& result) const;
  void ListLogitsRows(const StepInputs& inputs, StepState& state, StepResult& result) const;
  void RunWorker(const StepInputs& inputs, const StepState& state, StepResult& result, Worker& worker);
  // False: the worker has left the step.
  bool RunSegment(size_t index, const StepContext& context, const StepState& state, Worker& worker);
  void RunLinear(const Node& node, Rows rows, const StepContext& context, Worker& worker) const;
  void RunAttention(size_t segment, const StepContext& context, const StepState& state, Worker& worker);
  void FinishRow(const StepInputs& inputs, const StepState& state, const LogitsRow& row, float* logits, StepResult& result,
                 SampleScratch& scratch);

  Plan plan_;
  Program program_;
  const KernelTable& kernels_;
  ThreadPool pool_;
  KvCache cache_;
  StepLimits limits_;
  PackedWeights weights_;
  std::vector<RowSampler> samplers_;
  std::vector<bool> row_known_;                // rows that were new once: only they may sample
  std::vector<SampleScratch> sample_scratch_;  // by worker
  std::vector<std::atomic<int64_t>> next_;     // by segment: attention's work counters
  std::unique_ptr<AttentionScratch> attention_scratch_;
  MappedBytes linear_scratch_;
  MappedBytes token_arena_;
  MappedBytes logits_arena_;
  bool timing_ = false;
  std::vector<SegmentTiming> timings_;  // by segment, and one for sampling
};

}  // namespace ramet
