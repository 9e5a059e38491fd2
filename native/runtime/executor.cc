#include "runtime/executor.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>

#include "core/status.h"
#include "ops/rowwise.h"
#include "runtime/cpu_features.h"

namespace ramet {

// One row of logits, either to be scored or to be sampled from.
struct Executor::LogitsRow {
  int32_t token = 0;    // flat index
  int32_t score = -1;   // index among score_tokens, if it is scored
  int32_t entry = -1;   // index among rows, if it samples
  int32_t sample = -1;  // index among the sampled entries
};

// What a step needs beside its inputs.
struct Executor::StepState {
  std::vector<StepEntry> entries;
  std::vector<int32_t> token_ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> token_rows;
  std::vector<int32_t> token_types;
  std::map<int64_t, std::vector<QueryTile>> tiles;  // by TileTokens
  std::vector<LogitsRow> logits;
  std::vector<int32_t> gather;         // token of each of `logits`
  std::vector<const uint32_t*> masks;  // by entry, null where it has none
};

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Processors that this process may use.
int DefaultThreads() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int CheckedThreads(int threads) {
  if (threads < 0 || threads > 1024) Raise("threads must be in 0 to 1024, not ", threads);
  return threads == 0 ? DefaultThreads() : threads;
}

KvLayout CheckedLayout(const ExecutorOptions& options, const Plan& plan) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const auto check = [](const char* name, int64_t value) {
    if (value < 1 || value >= kMax) Raise("layout: ", name, " must be in 1 to ", kMax - 1, ", not ", value);
  };
  check("num_pages", options.kv.num_pages);
  check("page_size", options.kv.page_size);
  check("max_rows", options.kv.max_rows);
  check("max_row_tokens", options.kv.max_row_tokens);
  check("max_step_tokens", options.max_step_tokens);
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::kEmbedPositions) continue;
    const int64_t most = plan.weights[static_cast<size_t>(op.weights[0])].shape[0] - op.first_row;
    if (options.kv.max_row_tokens > most) {
      Raise("layout: max_row_tokens must be at most ", most, ", what ", op.name, " holds, not ", options.kv.max_row_tokens);
    }
  }
  return options.kv;
}

StepLimits LimitsOf(const Plan& plan, int64_t max_step_tokens) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  StepLimits limits;
  limits.max_step_tokens = max_step_tokens;
  limits.num_embeddings = kMax;
  limits.num_token_types = kMax;
  limits.whole_rows = plan.whole_rows();
  limits.embeds = plan.embeds;
  limits.vocab_size = plan.vocab_size();
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::kEmbed) continue;
    int64_t& limit = op.inputs[0] == kTokenTypesValue ? limits.num_token_types : limits.num_embeddings;
    limit = std::min(limit, plan.weights[static_cast<size_t>(op.weights[0])].shape[0]);
  }
  for (const KvStream& stream : plan.streams) limits.window = std::max(limits.window, stream.window);
  for (const KvStream& stream : plan.streams) limits.window = stream.window == 0 ? 0 : limits.window;
  return limits;
}

// Most query heads that attend to each stream.
std::vector<int64_t> HeadsOf(const Plan& plan) {
  std::vector<int64_t> heads;
  for (const KvStream& stream : plan.streams) heads.push_back(stream.kv_heads);
  for (const Op& op : plan.ops) {
    if (op.kind == OpKind::kAttention)
      heads[static_cast<size_t>(op.stream)] = std::max(heads[static_cast<size_t>(op.stream)], op.heads);
  }
  return heads;
}

int64_t GroupOf(const Plan& plan, const Op& op) { return op.heads / plan.streams[static_cast<size_t>(op.stream)].kv_heads; }

// Most scratch that any linear of the plan wants.
size_t LinearBytes(const Program& program, const Plan& plan, int64_t max_step_tokens, int workers) {
  size_t bytes = 0;
  for (const Segment& segment : program.segments) {
    for (const Node& node : segment.nodes) {
      if (node.kind != NodeKind::kLinear) continue;
      const int64_t rows = segment.rows == Rows::kTokens ? max_step_tokens : kLogitsChunk;
      bytes = std::max(bytes, LinearScratchBytes(rows, plan.values[static_cast<size_t>(node.inputs[0])].width, workers));
    }
  }
  return bytes;
}

int64_t Nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Executor::Executor(std::string_view plan_json, const std::vector<NamedWeight>& weights, const ExecutorOptions& options)
    : plan_(ParsePlan(plan_json)),
      program_(Lower(plan_)),
      kernels_(ChooseTier(options.tier)),
      pool_(CheckedThreads(options.threads)),
      cache_(plan_.streams, CheckedLayout(options, plan_)),
      limits_(LimitsOf(plan_, options.max_step_tokens)),
      weights_(PackWeights(plan_, weights, pool_)),
      samplers_(static_cast<size_t>(options.kv.max_rows)),
      row_known_(static_cast<size_t>(options.kv.max_rows), false),
      sample_scratch_(static_cast<size_t>(pool_.size())),
      next_(program_.segments.size()),
      attention_scratch_(std::make_unique<AttentionScratch>(plan_.streams, HeadsOf(plan_), pool_.size())),
      linear_scratch_(LinearBytes(program_, plan_, options.max_step_tokens, pool_.size())),
      token_arena_(static_cast<size_t>(program_.token_floats * options.max_step_tokens) * sizeof(float)),
      logits_arena_(static_cast<size_t>(program_.logits_floats * kLogitsChunk) * sizeof(float)) {
  for (const Segment& segment : program_.segments) timings_.push_back({segment.label, segment.nodes[0].op->name, 0, 0});
  timings_.push_back({"sample", "sample", 0, 0});
}

MemoryUse Executor::memory() const {
  return {weights_.bytes(), cache_.bytes_per_page(), cache_.bytes_mapped(),
          static_cast<int64_t>(token_arena_.size() + logits_arena_.size() + linear_scratch_.size())};
}

void Executor::EnableTimings(bool on) {
  timing_ = on;
  for (SegmentTiming& timing : timings_) timing.calls = timing.nanoseconds = 0;
}

StepResult Executor::Step(const StepInputs& inputs) {
  CheckStep(inputs, limits_, cache_.layout(), row_known_);
  ApplyRowUpdates(inputs);
  CheckPages(inputs, limits_, cache_);
  for (size_t i = 0; i < inputs.page_copies.size(); i += 3) {
    cache_.CopyPage(inputs.page_copies[i], inputs.page_copies[i + 1], inputs.page_copies[i + 2]);
  }
  StepResult result;
  const StepState state = Prepare(inputs, result);
  if (!state.token_ids.empty()) {
    for (std::atomic<int64_t>& next : next_) next.store(0, std::memory_order_relaxed);
    pool_.Run([&](Worker& worker) { RunWorker(inputs, state, result, worker); });
  }
  return result;
}

void Executor::ApplyRowUpdates(const StepInputs& inputs) {
  const int64_t pages_per_row = cache_.pages_per_row();
  for (const auto& [row, params] : inputs.new_rows) {
    samplers_[static_cast<size_t>(row)].Set(params, vocab_size());
    row_known_[static_cast<size_t>(row)] = true;
    for (int64_t i = 0; i < pages_per_row; ++i) {
      if (cache_.Page(row, i) >= 0) cache_.SetPage(row, i, -1);  // reads alone leave untouched memory untouched
    }
  }
  for (size_t i = 0; i < inputs.page_updates.size(); i += 3) {
    cache_.SetPage(inputs.page_updates[i], inputs.page_updates[i + 1], inputs.page_updates[i + 2]);
  }
}

Executor::StepState Executor::Prepare(const StepInputs& inputs, StepResult& result) const {
  StepState state;
  const size_t tokens = inputs.token_ids.size();
  state.token_ids.assign(inputs.token_ids.begin(), inputs.token_ids.end());
  state.positions.resize(tokens);
  state.token_rows.resize(tokens);
  state.token_types.assign(inputs.token_types.begin(), inputs.token_types.end());
  state.token_types.resize(tokens, 0);
  size_t at = 0;
  for (size_t i = 0; i < inputs.rows.size(); ++i) {
    state.entries.push_back({inputs.rows[i], inputs.query_lens[i], inputs.starts[i], static_cast<int64_t>(at)});
    for (int32_t q = 0; q < inputs.query_lens[i]; ++q, ++at) {
      state.positions[at] = inputs.starts[i] + q;
      state.token_rows[at] = inputs.rows[i];
      if (state.token_ids[at] != kLastSampled) continue;
      // A row that could draw nothing is ended by whoever reads that; until then any token will do.
      state.token_ids[at] = std::max(0, samplers_[static_cast<size_t>(inputs.rows[i])].last_token());
    }
  }
  for (const Op& op : plan_.ops) {
    if (op.kind != OpKind::kAttention) continue;
    const int64_t tile_tokens = TileTokens(GroupOf(plan_, op));
    if (!state.tiles.contains(tile_tokens)) state.tiles[tile_tokens] = MakeTiles(state.entries, tile_tokens);
  }
  ListLogitsRows(inputs, state, result);
  return state;
}

// Sizes the results and lists the rows of logits that are wanted, by token.
void Executor::ListLogitsRows(const StepInputs& inputs, StepState& state, StepResult& result) const {
  int32_t samples = 0;
  std::vector<LogitsRow> sampled;
  for (size_t i = 0; i < inputs.rows.size(); ++i) {
    if (!inputs.samples[i]) continue;
    const StepEntry& entry = state.entries[i];
    sampled.push_back({static_cast<int32_t>(entry.first_token + entry.query_len - 1), -1, static_cast<int32_t>(i), samples++});
    result.top = std::max<int64_t>(result.top, samplers_[static_cast<size_t>(entry.row)].params().top_logprobs);
  }
  size_t s = 0;
  for (size_t i = 0; i <= inputs.score_tokens.size(); ++i) {
    const int32_t token = i < inputs.score_tokens.size() ? inputs.score_tokens[i] : std::numeric_limits<int32_t>::max();
    while (s < sampled.size() && sampled[s].token < token) state.logits.push_back(sampled[s++]);
    if (i == inputs.score_tokens.size()) break;
    state.logits.push_back({token, static_cast<int32_t>(i), -1, -1});
  }
  for (const LogitsRow& row : state.logits) state.gather.push_back(row.token);
  state.masks.assign(inputs.rows.size(), nullptr);
  const int64_t words = (vocab_size() + 31) / 32;
  for (size_t m = 0; m < inputs.mask_entries.size(); ++m) {
    state.masks[static_cast<size_t>(inputs.mask_entries[m])] = inputs.masks.data() + static_cast<int64_t>(m) * words;
  }

  const size_t scores = inputs.score_tokens.size();
  const size_t count = static_cast<size_t>(samples);
  result.token_ids.assign(count, kNoToken);
  result.logprobs.assign(count, kNaN);
  result.top_ids.assign(count * static_cast<size_t>(result.top), -1);
  result.top_logprobs.assign(count * static_cast<size_t>(result.top), kNaN);
  result.id_logprobs.resize(count);
  result.embedding_size = embedding_size();
  result.embeddings.assign(count * static_cast<size_t>(result.embedding_size), kNaN);
  result.score_logprobs.assign(scores, kNaN);
  result.score_top_ids.assign(scores * static_cast<size_t>(inputs.score_top), -1);
  result.score_top_logprobs.assign(scores * static_cast<size_t>(inputs.score_top), kNaN);
  result.score_id_logprobs.resize(scores);
  if (inputs.keep_logits) result.logits.assign(scores * static_cast<size_t>(vocab_size()), 0.0f);
}

void Executor::RunWorker(const StepInputs& inputs, const StepState& state, StepResult& result, Worker& worker) {
  StepContext context;
  context.kernels = &kernels_;
  context.plan = &plan_;
  context.program = &program_;
  context.matrices = &weights_.matrices;
  context.vectors = &weights_.vectors;
  context.cache = &cache_;
  context.num_tokens = static_cast<int64_t>(state.token_ids.size());
  context.token_ids = state.token_ids.data();
  context.positions = state.positions.data();
  context.token_types = state.token_types.data();
  context.rows = state.token_rows.data();
  context.token_arena = reinterpret_cast<float*>(token_arena_.data());
  context.logits_arena = reinterpret_cast<float*>(logits_arena_.data());
  for (size_t s = 0; s < program_.first_logits_segment; ++s) {
    if (!RunSegment(s, context, state, worker)) return;
  }

  const int64_t rows = static_cast<int64_t>(state.logits.size());
  for (int64_t begin = 0; begin < rows; begin += kLogitsChunk) {
    context.num_logits = std::min(kLogitsChunk, rows - begin);
    context.gather = state.gather.data() + begin;
    for (size_t s = program_.first_logits_segment; s < program_.segments.size(); ++s) {
      if (!RunSegment(s, context, state, worker)) return;
    }
    const int64_t since = timing_ ? Nanoseconds() : 0;
    float* logits = context.Base(plan_.logits, Rows::kLogits);
    for (int64_t r = worker.index(); r < context.num_logits; r += worker.count()) {
      FinishRow(inputs, state, state.logits[static_cast<size_t>(begin + r)], logits + r * context.Stride(plan_.logits), result,
                sample_scratch_[static_cast<size_t>(worker.index())]);
    }
    if (!worker.Regroup()) return;
    if (timing_ && worker.index() == 0) {
      timings_.back().nanoseconds += Nanoseconds() - since;
      ++timings_.back().calls;
    }
  }
}

bool Executor::RunSegment(size_t index, const StepContext& context, const StepState& state, Worker& worker) {
  const Segment& segment = program_.segments[index];
  const bool timed = timing_ && worker.index() == 0;
  const int64_t since = timed ? Nanoseconds() : 0;
  if (segment.row_by_row) {
    RunRowByRow(segment, context, worker);
  } else if (segment.nodes[0].kind == NodeKind::kLinear) {
    RunLinear(segment.nodes[0], segment.rows, context, worker);
  } else {
    RunAttention(index, context, state, worker);
  }
  if (!worker.Regroup()) return false;
  if (timed) {
    timings_[index].nanoseconds += Nanoseconds() - since;
    ++timings_[index].calls;
  }
  return true;
}

void Executor::RunLinear(const Node& node, Rows rows, const StepContext& context, Worker& worker) const {
  LinearArgs args;
  args.kernels = &kernels_;
  args.x = context.Base(node.inputs[0], rows);
  args.ldx = context.Stride(node.inputs[0]);
  args.rows = context.NumRows(rows);
  args.num_outputs = static_cast<int>(node.parts.size());
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const LinearPart& part = node.parts[i];
    LinearOutput& output = args.outputs[i];
    output.weight = &context.Matrix(part.weight);
    output.bias = part.bias < 0 ? nullptr : context.Vector(part.bias);
    output.y = context.Base(part.output, rows);
    output.ldy = context.Stride(part.output);
    output.accumulate = part.accumulate;
  }
  args.scratch = linear_scratch_.data();
  Linear(args, worker);
}

void Executor::RunAttention(size_t segment, const StepContext& context, const StepState& state, Worker& worker) {
  const Node& node = program_.segments[segment].nodes[0];
  const Op& op = *node.op;
  AttentionArgs args;
  args.kernels = &kernels_;
  args.cache = &cache_;
  args.stream = static_cast<size_t>(op.stream);
  args.heads = op.heads;
  args.scale = op.scale;
  args.cap = op.cap;
  args.causal = op.causal;
  args.sinks = op.weights.empty() ? nullptr : context.Vector(op.weights[0]);
  args.q = context.Base(node.inputs[0], Rows::kTokens);
  args.ldq = context.Stride(node.inputs[0]);
  args.out = context.Base(node.outputs[0], Rows::kTokens);
  args.ldo = context.Stride(node.outputs[0]);
  args.tiles = &state.tiles.at(TileTokens(GroupOf(plan_, op)));
  args.scratch = attention_scratch_.get();
  args.next = &next_[segment];
  Attention(args, worker);
}

void Executor::FinishRow(const StepInputs& inputs, const StepState& state, const LogitsRow& row, float* logits,
                         StepResult& result, SampleScratch& scratch) {
  if (plan_.embeds) {
    const size_t size = static_cast<size_t>(result.embedding_size);
    std::memcpy(result.embeddings.data() + static_cast<size_t>(row.sample) * size, logits, size * sizeof(float));
    return;
  }
  const auto put_top = [&scratch](int64_t width, size_t at, std::vector<int32_t>& ids, std::vector<float>& logprobs) {
    const size_t n = std::min(scratch.top.size(), static_cast<size_t>(width));
    for (size_t j = 0; j < n; ++j) {
      ids[at * static_cast<size_t>(width) + j] = scratch.top[j].id;
      logprobs[at * static_cast<size_t>(width) + j] = scratch.top[j].logprob;
    }
  };
  if (row.score >= 0) {
    const size_t i = static_cast<size_t>(row.score);
    if (inputs.keep_logits) {
      const size_t vocab = static_cast<size_t>(vocab_size());
      std::memcpy(result.logits.data() + i * vocab, logits, vocab * sizeof(float));
    }
    const int32_t owner = state.token_rows[static_cast<size_t>(row.token)];
    const std::vector<int32_t>& chosen = samplers_[static_cast<size_t>(owner)].params().logprob_ids;
    result.score_logprobs[i] = ScoreLogits(kernels_.sample, scratch, logits, vocab_size(), inputs.score_targets[i],
                                           static_cast<int32_t>(inputs.score_top), chosen);
    result.score_id_logprobs[i] = scratch.chosen;
    put_top(inputs.score_top, i, result.score_top_ids, result.score_top_logprobs);
  }
  if (row.entry >= 0) {
    const size_t i = static_cast<size_t>(row.sample);
    RowSampler& sampler = samplers_[static_cast<size_t>(inputs.rows[static_cast<size_t>(row.entry)])];
    const SampledToken token =
        sampler.Sample(kernels_.sample, scratch, logits, vocab_size(), state.masks[static_cast<size_t>(row.entry)]);
    result.token_ids[i] = token.id;
    result.logprobs[i] = token.logprob;
    put_top(result.top, i, result.top_ids, result.top_logprobs);
    if (!sampler.params().logprob_ids.empty()) result.id_logprobs[i] = scratch.chosen;
  }
}

}  // namespace ramet
