// Keys and values of all tokens of all rows, in pages, and each row's list of pages.
//
// A page holds, for each stream, for each kv head keys as strips [page_size / w][head_dim][w] and then for each kv head values
// as [page_size][v_dim]. w = gcd(page_size, 16) token slots: with pages of 16 or more, 16 keys lie as the kernel reads them.
// All streams share one mapping, page by page, so that few tokens touch few huge pages.
#pragma once

#include <cstdint>
#include <vector>

#include "core/mapped_bytes.h"
#include "kernels/kernels.h"
#include "plan/plan.h"

namespace ramet {

struct KvLayout {
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t max_rows = 0;
  int64_t max_row_tokens = 0;
  KvType type = KvType::kF16;
};

class KvCache {
 public:
  KvCache(const std::vector<KvStream>& streams, const KvLayout& layout);

  const KvLayout& layout() const { return layout_; }
  int64_t strip_width() const { return strip_width_; }
  int64_t pages_per_row() const { return pages_per_row_; }
  int64_t bytes_per_page() const { return page_bytes_; }  // over all streams
  int64_t bytes_mapped() const { return static_cast<int64_t>(bytes_.size() + pages_.size()); }

  // The page at `index` of a row's list, or -1. A row's list is all -1 until set.
  int64_t Page(int64_t row, int64_t index) const { return int64_t{Row(row)[index]} - 1; }
  void SetPage(int64_t row, int64_t index, int64_t page) { Row(row)[index] = static_cast<int32_t>(page + 1); }

  // Copies the first `slots` token slots of a page to another, in all streams. They may be the same page.
  void CopyPage(int64_t from, int64_t to, int64_t slots);

  // Keys of head `head` in `page`: slot s, element d at ((s / w) · head_dim + d) · w + s % w.
  uint8_t* Keys(size_t stream, int64_t page, int64_t head) const {
    const Stream& s = streams_[stream];
    return bytes_.data() + page * page_bytes_ + s.keys_offset + head * s.head_keys_bytes;
  }
  // Values of head `head` in `page`: slot s at s · v_dim.
  uint8_t* Values(size_t stream, int64_t page, int64_t head) const {
    const Stream& s = streams_[stream];
    return bytes_.data() + page * page_bytes_ + s.values_offset + head * s.head_values_bytes;
  }

  const KvStream& spec(size_t stream) const { return streams_[stream].spec; }

  // Converts one token's keys [kv_heads · head_dim] and values [kv_heads · v_dim] into its slot. The page must exist.
  void Store(size_t stream, const KernelTable& kernels, int64_t row, int64_t position, const float* keys,
             const float* values) const;

 private:
  struct Stream {
    KvStream spec;
    int64_t head_keys_bytes = 0;
    int64_t head_values_bytes = 0;
    int64_t keys_offset = 0;  // in a page
    int64_t values_offset = 0;
  };

  int32_t* Row(int64_t row) const { return reinterpret_cast<int32_t*>(pages_.data()) + row * pages_per_row_; }

  KvLayout layout_;
  int64_t strip_width_ = 0;
  int64_t pages_per_row_ = 0;
  int64_t page_bytes_ = 0;
  std::vector<Stream> streams_;
  MappedBytes bytes_;
  MappedBytes pages_;  // [max_rows, pages_per_row] int32: page + 1, so that fresh zeros mean none
};

}  // namespace ramet
