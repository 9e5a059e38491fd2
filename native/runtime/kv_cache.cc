#include "runtime/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/status.h"

namespace ramet {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 46;  // beyond any machine; keeps products of layout numbers far from overflow

}  // namespace

KvCache::KvCache(const std::vector<KvStream>& streams, const KvLayout& layout)
    : layout_(layout), strip_width_(std::gcd(layout.page_size, kStrip)) {
  pages_per_row_ = (layout.max_row_tokens + layout.page_size - 1) / layout.page_size;
  if (pages_per_row_ > kMaxBytes / 4 / layout.max_rows) Raise("layout: max_rows * max_row_tokens is too large");
  pages_ = MappedBytes(static_cast<size_t>(layout.max_rows * pages_per_row_) * sizeof(int32_t));
  const int64_t bytes = KvTypeBytes(layout.type);
  for (const KvStream& spec : streams) {
    Stream stream;
    stream.spec = spec;
    stream.head_keys_bytes = layout.page_size * spec.head_dim * bytes;
    stream.head_values_bytes = layout.page_size * spec.v_dim * bytes;
    stream.keys_offset = page_bytes_;
    stream.values_offset = stream.keys_offset + spec.kv_heads * stream.head_keys_bytes;
    page_bytes_ = stream.values_offset + spec.kv_heads * stream.head_values_bytes;
    if (page_bytes_ > kMaxBytes / layout.num_pages) {
      Raise("layout: ", layout.num_pages, " pages of ", page_bytes_, " bytes are too many");
    }
    streams_.push_back(std::move(stream));
  }
  bytes_ = MappedBytes(static_cast<size_t>(layout.num_pages * page_bytes_), MappedBytes::Pages::kHuge);
}

void KvCache::CopyPage(int64_t from, int64_t to, int64_t slots) {
  if (from == to || slots == 0) return;
  const int64_t element = KvTypeBytes(layout_.type);
  const int64_t w = strip_width_;
  for (size_t i = 0; i < streams_.size(); ++i) {
    const KvStream& spec = streams_[i].spec;
    const int64_t strip_bytes = spec.head_dim * w * element;
    for (int64_t head = 0; head < spec.kv_heads; ++head) {
      const uint8_t* source = Keys(i, from, head);
      uint8_t* target = Keys(i, to, head);
      const int64_t whole_bytes = slots / w * strip_bytes;
      std::memcpy(target, source, static_cast<size_t>(whole_bytes));
      const size_t rest_bytes = static_cast<size_t>(slots % w * element);
      for (int64_t d = 0; rest_bytes && d < spec.head_dim; ++d) {
        const int64_t at = whole_bytes + d * w * element;
        std::memcpy(target + at, source + at, rest_bytes);
      }
      std::memcpy(Values(i, to, head), Values(i, from, head), static_cast<size_t>(slots * spec.v_dim * element));
    }
  }
}

void KvCache::Store(size_t stream, const KernelTable& kernels, int64_t row, int64_t position, const float* keys,
                    const float* values) const {
  const KvStream& spec = streams_[stream].spec;
  const int64_t page = Page(row, position / layout_.page_size);
  const int64_t slot = position % layout_.page_size;
  const int64_t element = KvTypeBytes(layout_.type);
  const int64_t w = strip_width_;
  const auto convert = kernels.attend.store[static_cast<int>(layout_.type)];
  for (int64_t head = 0; head < spec.kv_heads; ++head) {
    uint8_t* key = Keys(stream, page, head) + (slot / w * spec.head_dim * w + slot % w) * element;
    constexpr int64_t kPiece = 64;
    for (int64_t d = 0; d < spec.head_dim; d += kPiece) {
      const int64_t n = std::min(kPiece, spec.head_dim - d);
      alignas(64) uint8_t converted[kPiece * 4];
      convert(keys + head * spec.head_dim + d, n, converted);
      if (element == 2) {
        for (int64_t i = 0; i < n; ++i) std::memcpy(key + (d + i) * w * 2, converted + i * 2, 2);
      } else {
        for (int64_t i = 0; i < n; ++i) std::memcpy(key + (d + i) * w * 4, converted + i * 4, 4);
      }
    }
    convert(values + head * spec.v_dim, spec.v_dim, Values(stream, page, head) + slot * spec.v_dim * element);
  }
}

}  // namespace ramet
