#include "ops/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace ramet {
namespace {

constexpr int64_t kBlockStrips = kAttendBlock / kStrip;
constexpr int64_t kPartialFloats = int64_t{4} << 20;

// From this many queries on, keys and values of a block are converted to float32 once, not at every use.
constexpr int64_t kConvertFrom = 7;

constexpr int64_t RoundUp16(int64_t n) { return (n + 15) / 16 * 16; }

int64_t TileRows(int64_t heads_per_kv_head) { return TileTokens(heads_per_kv_head) * heads_per_kv_head; }

// Running softmax of a tile: one (max, sum, out) per row. A row is one query token and one query head.
struct State {
  float* max;
  float* sum;
  float* out;  // [rows, v_dim]
};

// A worker's memory, cut up for one stream.
struct Scratch {
  Scratch(float* base, const KvStream& stream, int64_t rows) {
    const auto take = [this, base](int64_t n) {
      float* p = base ? base + floats : nullptr;
      floats += RoundUp16(n);
      return p;
    };
    q = take(rows * stream.head_dim);
    gathered = take(kAttendBlock * stream.head_dim);
    keys = take(kAttendBlock * stream.head_dim);
    values = take(kAttendBlock * stream.v_dim);
    scores = take(rows * kAttendBlock);
    for (State* state : {&block, &total}) *state = {take(rows), take(rows), take(rows * stream.v_dim)};
  }

  float* q;         // [rows, head_dim]
  float* gathered;  // strips [kBlockStrips][head_dim][16] in the cache's type, from pages smaller than a strip
  float* keys;      // the same as floats
  float* values;    // [kAttendBlock, v_dim]
  float* scores;    // [rows, kAttendBlock]
  State block;
  State total;
  int64_t floats = 0;  // taken in all; from a null base only this means something
};

// The work of one tile on one kv head.
class Unit {
 public:
  Unit(const AttentionArgs& args, int64_t index, Scratch& scratch)
      : args_(args),
        spec_(args.cache->spec(args.stream)),
        scratch_(scratch),
        type_(static_cast<int>(args.cache->layout().type)) {
    tile_ = &(*args.tiles)[static_cast<size_t>(index / spec_.kv_heads)];
    head_ = index % spec_.kv_heads;
    group_ = args.heads / spec_.kv_heads;
    rows_ = tile_->count * group_;
    first_position_ = tile_->entry.start + tile_->first;
    end_ = args.causal ? first_position_ + tile_->count : tile_->entry.start + tile_->entry.query_len;
    begin_ = spec_.window ? std::max<int64_t>(0, first_position_ - spec_.window + 1) : 0;
  }

  int64_t rows() const { return rows_; }
  int64_t first_block() const { return begin_ / kAttendBlock; }
  int64_t last_block() const { return (end_ - 1) / kAttendBlock; }

  // Finds the queries; copies them together unless they already are.
  void LoadQueries() {
    const float* q = args_.q + (tile_->entry.first_token + tile_->first) * args_.ldq + head_ * group_ * spec_.head_dim;
    if (tile_->count == 1) {
      q_ = q;
      return;
    }
    const int64_t floats = group_ * spec_.head_dim;
    for (int64_t t = 0; t < tile_->count; ++t) {
      std::memcpy(scratch_.q + t * floats, q + t * args_.ldq, static_cast<size_t>(floats) * sizeof(float));
    }
    q_ = scratch_.q;
  }

  // (max, sum, out) of every row over one block of positions. sum is 0 where a row sees none of it.
  void ComputeBlock(int64_t block, const State& state) {
    const AttendKernels& kernels = args_.kernels->attend;
    const int64_t origin = block * kAttendBlock;
    const int64_t first = std::max(begin_ - origin, int64_t{0});
    const int64_t last = std::min(end_ - origin, kAttendBlock);
    const int type = FindKeysAndValues(origin, first, last);
    const int64_t first_strip = first / kStrip;
    const int64_t num_strips = (last + kStrip - 1) / kStrip - first_strip;
    kernels.scores[type](q_, rows_, spec_.head_dim, strips_ + first_strip, num_strips, spec_.head_dim,
                         scratch_.scores + first_strip * kStrip);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t position = first_position_ + row / group_;
      const int64_t from = std::max(spec_.window ? position - spec_.window + 1 - origin : 0, int64_t{0});
      const int64_t to = std::min((args_.causal ? position + 1 : end_) - origin, kAttendBlock);
      float* scores = scratch_.scores + row * kAttendBlock;
      if (from < to) {
        kernels.softmax(scores, from, to, args_.scale, args_.cap, &state.max[row], &state.sum[row]);
      } else {
        std::fill_n(scores, kAttendBlock, 0.0f);
        state.max[row] = -std::numeric_limits<float>::infinity();
        state.sum[row] = 0;
      }
    }
    PrefetchKeys(origin + kAttendBlock);
    kernels.weigh[type](scratch_.scores + first, rows_, values_ + first, last - first, spec_.v_dim, state.out, spec_.v_dim);
  }

  // Decode reads far more than caches hold, in runs of 2 KiB that are over before the processor's own prefetching is up to
  // speed: asking for a block's values before its scores, and for the next block's keys before its values are weighed, takes
  // 25 % off attention at 2,048 tokens. Inlined always: GCC drops calls of functions that do nothing but prefetch.
  [[gnu::always_inline]] inline void PrefetchKeys(int64_t origin) const {
    const KvCache& cache = *args_.cache;
    if (cache.strip_width() != kStrip) return;
    const int64_t page_size = cache.layout().page_size;
    const int64_t token_bytes = spec_.head_dim * KvTypeBytes(cache.layout().type);
    const int64_t end = std::min(origin + kAttendBlock, end_);
    for (int64_t position = std::max(origin, begin_ / kStrip * kStrip); position < end; position += kStrip) {
      const int64_t page = cache.Page(tile_->entry.row, position / page_size);
      Prefetch(cache.Keys(args_.stream, page, head_) + position % page_size * token_bytes, kStrip * token_bytes);
    }
  }

  void Begin(int64_t row, const State& total) const {
    total.max[row] = -std::numeric_limits<float>::infinity();
    total.sum[row] = 0;
    std::fill_n(total.out + row * spec_.v_dim, spec_.v_dim, 0.0f);
  }

  void MergeRow(int64_t row, const State& block, const State& total) const {
    if (block.sum[row] == 0) return;  // the row sees nothing there; else its largest weight is 1
    args_.kernels->attend.merge(block.max[row], block.sum[row], block.out + row * spec_.v_dim, spec_.v_dim, &total.max[row],
                                &total.sum[row], total.out + row * spec_.v_dim);
  }

  void FinishRow(int64_t row, const State& total) const {
    const int64_t head = head_ * group_ + row % group_;
    float* y = args_.out + (tile_->entry.first_token + tile_->first + row / group_) * args_.ldo + head * spec_.v_dim;
    args_.kernels->attend.finish(total.max[row], total.sum[row], args_.sinks ? args_.sinks + head : nullptr,
                                 total.out + row * spec_.v_dim, spec_.v_dim, y);
  }

 private:
  // Fills strips_ and values_ for positions [origin + first, origin + last); returns the type that they are in.
  int FindKeysAndValues(int64_t origin, int64_t first, int64_t last) {
    const KvCache& cache = *args_.cache;
    const int64_t page_size = cache.layout().page_size;
    const int64_t w = cache.strip_width();
    const int64_t element = KvTypeBytes(cache.layout().type);
    const int64_t strip_bytes = spec_.head_dim * kStrip * element;
    const int64_t value_bytes = spec_.v_dim * element;
    for (int64_t at = first / w * w; at < last;) {
      const int64_t position = origin + at;
      const int64_t slot = position % page_size;
      const int64_t count = std::min(page_size - slot, last - at);
      const int64_t page = cache.Page(tile_->entry.row, position / page_size);
      const uint8_t* keys = cache.Keys(args_.stream, page, head_) + slot * spec_.head_dim * element;
      const uint8_t* values = cache.Values(args_.stream, page, head_) + slot * value_bytes;
      for (int64_t i = 0; i < count; i += w, keys += w * spec_.head_dim * element) {
        if (w == kStrip) {
          strips_[(at + i) / kStrip] = keys;
        } else {
          GatherKeys(keys, at + i, w);
        }
      }
      Prefetch(values, count * value_bytes);  // needed once scores are known
      for (int64_t i = 0; i < count; ++i) values_[at + i] = values + i * value_bytes;
      at += count;
    }
    const int64_t first_strip = first / kStrip;
    const int64_t end_strip = (last + kStrip - 1) / kStrip;
    if (w != kStrip) {
      for (int64_t s = first_strip; s < end_strip; ++s) strips_[s] = gathered() + s * strip_bytes;
    }
    if (type_ == static_cast<int>(KvType::kF32) || rows_ < kConvertFrom) return type_;
    const auto load = args_.kernels->attend.load[type_];
    for (int64_t s = first_strip; s < end_strip; ++s) {
      float* strip = scratch_.keys + s * spec_.head_dim * kStrip;
      load(strips_[s], spec_.head_dim * kStrip, strip);
      strips_[s] = strip;
    }
    for (int64_t j = first; j < last; ++j) {
      float* value = scratch_.values + j * spec_.v_dim;
      load(values_[j], spec_.v_dim, value);
      values_[j] = value;
    }
    return static_cast<int>(KvType::kF32);
  }

  uint8_t* gathered() const { return reinterpret_cast<uint8_t*>(scratch_.gathered); }

  // Puts w keys, [head_dim][w] in a page smaller than a strip, into their columns of a strip in scratch.
  void GatherKeys(const uint8_t* keys, int64_t at, int64_t w) {
    const int64_t element = KvTypeBytes(args_.cache->layout().type);
    uint8_t* column = gathered() + (at / kStrip * spec_.head_dim * kStrip + at % kStrip) * element;
    switch (w * element) {
      case 2: return CopyColumns<2>(keys, element, column);
      case 4: return CopyColumns<4>(keys, element, column);
      case 8: return CopyColumns<8>(keys, element, column);
      case 16: return CopyColumns<16>(keys, element, column);
      default: return CopyColumns<32>(keys, element, column);
    }
  }

  template <int kBytes>
  void CopyColumns(const uint8_t* keys, int64_t element, uint8_t* column) const {
    for (int64_t d = 0; d < spec_.head_dim; ++d) std::memcpy(column + d * kStrip * element, keys + d * kBytes, kBytes);
  }

  [[gnu::always_inline]] inline void Prefetch(const uint8_t* bytes, int64_t count) const {
    if (rows_ >= kConvertFrom) return;  // enough arithmetic to hide the reads
    for (int64_t i = 0; i < count; i += 64) __builtin_prefetch(bytes + i, 0, 2);
  }

  const AttentionArgs& args_;
  const KvStream& spec_;
  Scratch& scratch_;
  int type_;
  const QueryTile* tile_;
  int64_t head_;
  int64_t group_;
  int64_t rows_;
  int64_t first_position_;
  int64_t begin_;  // positions that any row of the tile sees
  int64_t end_;
  const float* q_ = nullptr;
  const void* strips_[kBlockStrips];
  const void* values_[kAttendBlock];
};

// Each worker takes whole tiles: no partial results leave it. The next one's first keys are asked for while this one is computed.
void AttendWhole(const AttentionArgs& args, int64_t units, Scratch& scratch) {
  const auto claim = [&args] { return args.next->fetch_add(1, std::memory_order_relaxed); };
  for (int64_t index = claim(), next; index < units; index = next) {
    Unit unit(args, index, scratch);
    next = claim();
    if (next < units) {
      const Unit ahead(args, next, scratch);
      ahead.PrefetchKeys(ahead.first_block() * kAttendBlock);
    }
    unit.LoadQueries();
    unit.ComputeBlock(unit.first_block(), scratch.total);
    for (int64_t block = unit.first_block() + 1; block <= unit.last_block(); ++block) {
      unit.ComputeBlock(block, scratch.block);
      for (int64_t row = 0; row < unit.rows(); ++row) unit.MergeRow(row, scratch.block, scratch.total);
    }
    for (int64_t row = 0; row < unit.rows(); ++row) unit.FinishRow(row, scratch.total);
  }
}

// Few tiles: workers share out the blocks of each, store partial results and merge them in the same order as above. Rounds of
// as many blocks as `partials` holds keep memory bounded for any context length.
void AttendSplit(const AttentionArgs& args, int64_t units, Scratch& scratch, Worker& worker) {
  const KvStream& spec = args.cache->spec(args.stream);
  const int64_t rows = TileRows(args.heads / spec.kv_heads);
  const int64_t state_floats = 2 * RoundUp16(rows) + RoundUp16(rows * spec.v_dim);
  const auto state_at = [&](int64_t i) {
    float* floats = args.scratch->partials() + i * state_floats;
    return State{floats, floats + RoundUp16(rows), floats + 2 * RoundUp16(rows)};
  };
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (int64_t i = 0; i < units; ++i) {
    const Unit unit(args, i, scratch);
    begin = std::min(begin, unit.first_block());
    end = std::max(end, unit.last_block() + 1);
  }
  const int64_t states = kPartialFloats / state_floats;
  const int64_t round = std::max<int64_t>(1, (states - units) / units);
  int64_t claimed = 0;  // all claims of earlier rounds; every worker makes one in vain per round
  for (int64_t from = begin; from < end; from += round) {
    const int64_t blocks = std::min(round, end - from);
    for (;;) {
      const int64_t claim = args.next->fetch_add(1, std::memory_order_relaxed) - claimed;
      if (claim >= units * blocks) break;
      Unit unit(args, claim / blocks, scratch);
      const int64_t block = from + claim % blocks;
      if (block < unit.first_block() || block > unit.last_block()) continue;
      unit.LoadQueries();
      unit.ComputeBlock(block, state_at(units + claim));
    }
    claimed += units * blocks + worker.count();
    worker.Barrier();
    // Rows are merged by the same worker in every round; tiles with fewer rows leave some of the numbers out.
    for (int64_t i = worker.index(); i < units * rows; i += worker.count()) {
      const Unit unit(args, i / rows, scratch);
      const int64_t row = i % rows;
      if (row >= unit.rows()) continue;
      const State total = state_at(i / rows);
      if (from == begin) unit.Begin(row, total);
      for (int64_t b = 0; b < blocks; ++b) {
        if (from + b < unit.first_block() || from + b > unit.last_block()) continue;
        unit.MergeRow(row, state_at(units + i / rows * blocks + b), total);
      }
      if (from + blocks >= end) unit.FinishRow(row, total);
    }
    worker.Barrier();
  }
}

}  // namespace

std::vector<QueryTile> MakeTiles(const std::vector<StepEntry>& entries, int64_t tile_tokens) {
  std::vector<QueryTile> tiles;
  for (const StepEntry& entry : entries) {
    for (int64_t first = 0; first < entry.query_len; first += tile_tokens) {
      tiles.push_back({entry, first, std::min(tile_tokens, entry.query_len - first)});
    }
  }
  std::sort(tiles.begin(), tiles.end(), [](const QueryTile& a, const QueryTile& b) {
    const int64_t a_end = a.entry.start + a.first + a.count;
    const int64_t b_end = b.entry.start + b.first + b.count;
    return a_end != b_end ? a_end > b_end : a.entry.first_token < b.entry.first_token;
  });
  return tiles;
}

AttentionScratch::AttentionScratch(const std::vector<KvStream>& streams, const std::vector<int64_t>& heads, int workers)
    : workers_(workers), floats_per_worker_(0) {
  for (size_t i = 0; i < streams.size(); ++i) {
    const Scratch sizes(nullptr, streams[i], TileRows(heads[i] / streams[i].kv_heads));
    floats_per_worker_ = std::max(floats_per_worker_, sizes.floats);
  }
  bytes_ = MappedBytes(static_cast<size_t>(workers * floats_per_worker_ + kPartialFloats) * sizeof(float));
}

void Attention(const AttentionArgs& args, Worker& worker) {
  const KvStream& spec = args.cache->spec(args.stream);
  const int64_t rows = TileRows(args.heads / spec.kv_heads);
  Scratch scratch(args.scratch->Of(worker.index()), spec, rows);
  const int64_t units = static_cast<int64_t>(args.tiles->size()) * spec.kv_heads;
  bool many_blocks = false;
  for (int64_t i = 0; i < units && units < 3 * worker.count(); ++i) {
    const Unit unit(args, i, scratch);
    many_blocks |= unit.last_block() > unit.first_block();
  }
  const bool fits = kPartialFloats / (2 * RoundUp16(rows) + RoundUp16(rows * spec.v_dim)) >= 2 * units;
  if (worker.count() > 1 && many_blocks && fits) {
    AttendSplit(args, units, scratch, worker);
  } else {
    AttendWhole(args, units, scratch);
  }
}

}  // namespace ramet
