// The operation `attention`, after keys and values of this step have been stored: ragged queries over paged keys.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/mapped_bytes.h"
#include "runtime/kv_cache.h"
#include "runtime/thread_pool.h"

namespace ramet {

// One entry of a step: `query_len` tokens of `row`, from position `start` on; flat token indices begin at `first_token`.
struct StepEntry {
  int64_t row = 0;
  int64_t query_len = 0;
  int64_t start = 0;
  int64_t first_token = 0;
};

// Consecutive queries of an entry that walk the keys together.
struct QueryTile {
  StepEntry entry;
  int64_t first = 0;  // of the entry's queries
  int64_t count = 0;
};

// Queries of a tile times query heads per kv head: enough that converting a block of keys is a small part (48 multiply-adds per
// converted float), few enough that scores, keys and values of a block stay in a 256 KiB cache.
constexpr int64_t kMaxTileRows = 48;
constexpr int64_t TileTokens(int64_t heads_per_kv_head) {
  return heads_per_kv_head >= kMaxTileRows ? 1 : kMaxTileRows / heads_per_kv_head;
}

// Tiles of at most `tile_tokens` queries, those with most keys first so that threads end together.
std::vector<QueryTile> MakeTiles(const std::vector<StepEntry>& entries, int64_t tile_tokens);

// Memory of attention, for the life of an executor; grows on first use only.
class AttentionScratch {
 public:
  // `heads[i]` query heads attend to stream i.
  AttentionScratch(const std::vector<KvStream>& streams, const std::vector<int64_t>& heads, int workers);

  float* Of(int worker) const { return reinterpret_cast<float*>(bytes_.data()) + worker * floats_per_worker_; }
  float* partials() const { return reinterpret_cast<float*>(bytes_.data()) + workers_ * floats_per_worker_; }

 private:
  int64_t workers_;
  int64_t floats_per_worker_;
  MappedBytes bytes_;
};

struct AttentionArgs {
  const KernelTable* kernels = nullptr;
  const KvCache* cache = nullptr;
  size_t stream = 0;
  int64_t heads = 0;
  float scale = 1;
  float cap = 0;
  bool causal = true;            // else every query sees its whole row
  const float* sinks = nullptr;  // null or [heads]
  const float* q = nullptr;      // [tokens, ldq]
  int64_t ldq = 0;
  float* out = nullptr;  // [tokens, ldo]
  int64_t ldo = 0;
  const std::vector<QueryTile>* tiles = nullptr;
  const AttentionScratch* scratch = nullptr;
  std::atomic<int64_t>* next = nullptr;  // 0 at the start; for this call only
};

// All workers call this with the same arguments. `out` is complete after the caller's next barrier.
void Attention(const AttentionArgs& args, Worker& worker);

}  // namespace ramet
