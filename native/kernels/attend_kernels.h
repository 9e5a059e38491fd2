// Inner loops of attention, one set per instruction tier; `KernelTable` has it as its member `attend`.
//
// Attention walks a row's positions in blocks of kAttendBlock aligned to position 0. For one query and one block:
//   s[j] = q · k[j]                           one chain of fused multiply-adds over the head, positions in lanes
//   m = max s, p[j] = exp(s[j] - m), l = Σ p  positions that the query may not see have p = 0
//   o = Σ p[j] · v[j]                         one chain of fused multiply-adds over positions, the head in lanes
// and blocks are merged in order. None of this depends on how many queries, threads or pages take part, so neither do bits.
//
// Keys come in strips of 16 positions, [dim][16], so that no score needs a sum across lanes; values in rows of dim.
#pragma once

#include <cstdint>

namespace ramet {

constexpr int64_t kAttendBlock = 128;  // positions; the softmax and the merge around it cost about a fifth of decode here
constexpr int64_t kStrip = 16;         // positions

enum class KvType : uint8_t { kF32, kF16, kBF16 };
constexpr int kNumKvTypes = 3;
constexpr int64_t KvTypeBytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

struct AttendKernels {
  // out[0, n) = x converted, to nearest even. Finite floats beyond float16 become infinite.
  void (*store[kNumKvTypes])(const float* x, int64_t n, void* out);

  // out[0, n) = x as floats, exactly.
  void (*load[kNumKvTypes])(const void* x, int64_t n, float* out);

  // scores[i · kAttendBlock + j] = dot of q + i · ldq with position j of the strips, over dim, for i < queries and
  // j < num_strips · kStrip <= kAttendBlock.
  void (*scores[kNumKvTypes])(const float* q, int64_t queries, int64_t ldq, const void* const* strips, int64_t num_strips,
                              int64_t dim, float* scores);

  // Turns one query's scores into weights p in place: s · scale, soft-capped if cap > 0. [first, last) is what the query sees,
  // not empty; all other places of the kAttendBlock become 0. Writes the maximum and the sum of p.
  void (*softmax)(float* scores, int64_t first, int64_t last, float scale, float cap, float* max, float* sum);

  // out[i · ldo + d] = Σ_j p[i · kAttendBlock + j] · values[j][d], for i < queries, d < dim, j < positions in order.
  void (*weigh[kNumKvTypes])(const float* p, int64_t queries, const void* const* values, int64_t positions, int64_t dim,
                             float* out, int64_t ldo);

  // Merges a block's (max, sum, out) into the running ones, which start as -inf, 0 and zeros.
  void (*merge)(float block_max, float block_sum, const float* block_out, int64_t dim, float* max, float* sum, float* out);

  // y = out / sum, with exp(sink - max) added to the sum first if sink is not null.
  void (*finish)(float max, float sum, const float* sink, const float* out, int64_t dim, float* y);
};

}  // namespace ramet
