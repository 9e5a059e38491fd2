// Packing: file rows to panels (kernels/panel.h), and single rows back.
#include <cstring>
#include <vector>

#include "core/status.h"
#include "formats/block.h"
#include "kernels/panel.h"
#include "ops/linear.h"

namespace ramet {
namespace {

// Four codes of a group are handled as one 32-bit word; shifts never carry from byte to byte because masked first.
constexpr uint32_t Spread(uint32_t byte) { return byte * 0x01010101u; }

uint32_t LoadWord(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

void StoreWord(uint32_t word, uint8_t* p) { std::memcpy(p, &word, 4); }

void StoreHalf(uint16_t half, uint8_t* p) { std::memcpy(p, &half, 2); }

uint16_t LoadHalf(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return half;
}

// Where a group's fields of `bits` bits lie (kernels/panel.h): in which 64-byte vector, from which bit of each byte.
struct Field {
  int vector;
  int shift;
};

constexpr Field FieldOf(int bits, int group) {
  switch (bits) {
    case 8: return {group, 0};
    case 4: return {group % 4, group / 4 * 4};
    case 2: return {group / 4, group % 4 * 2};
    default: return {0, group};
  }
}

// Writes a lane's 32 codes. `block` is zero where nothing has been written.
void StoreCodes(const PanelLayout& layout, const uint8_t* codes, int64_t lane, uint8_t* block) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t word = LoadWord(codes + 4 * g);
    const Field low = FieldOf(layout.low_bits, g);
    uint8_t* at = block + 64 * low.vector + 4 * lane;
    StoreWord(LoadWord(at) | (word & Spread((1u << layout.low_bits) - 1)) << low.shift, at);
    if (layout.high_bits) {
      const Field high = FieldOf(layout.high_bits, g);
      at = block + layout.low_bytes() + 64 * high.vector + 4 * lane;
      StoreWord(LoadWord(at) | (word >> layout.low_bits & Spread((1u << layout.high_bits) - 1)) << high.shift, at);
    }
  }
}

void LoadCodes(const PanelLayout& layout, const uint8_t* block, int64_t lane, uint8_t* codes) {
  for (int g = 0; g < 8; ++g) {
    const Field low = FieldOf(layout.low_bits, g);
    uint32_t word = LoadWord(block + 64 * low.vector + 4 * lane) >> low.shift & Spread((1u << layout.low_bits) - 1);
    if (layout.high_bits) {
      const Field high = FieldOf(layout.high_bits, g);
      const uint32_t bits = LoadWord(block + layout.low_bytes() + 64 * high.vector + 4 * lane);
      word |= (bits >> high.shift & Spread((1u << layout.high_bits) - 1)) << layout.low_bits;
    }
    StoreWord(word, codes + 4 * g);
  }
}

void StoreBlock(const PanelLayout& layout, const Block& block, int64_t lane, uint8_t* super) {
  if (layout.header_bytes >= 32) StoreHalf(block.d, super + 2 * lane);
  if (layout.header_bytes == 64) StoreHalf(block.m, super + 32 + 2 * lane);
  uint8_t* packed = super + layout.header_bytes;
  for (int b = 0; b < layout.elements / 32; ++b, packed += layout.block_bytes()) {
    StoreCodes(layout, block.codes + 32 * b, lane, packed);
    uint8_t* scales = packed + layout.low_bytes() + layout.high_bytes();
    switch (layout.kind) {
      case ScaleKind::kNone: break;
      case ScaleKind::kScaleMin: StoreHalf(block.m, scales + 32 + 2 * lane); [[fallthrough]];
      case ScaleKind::kScale: StoreHalf(block.d, scales + 2 * lane); break;
      case ScaleKind::kSuper32Min:
        scales[lane] = static_cast<uint8_t>(block.scales[b]);
        scales[16 + lane] = block.mins[b];
        break;
      case ScaleKind::kSuper16:
        for (int i = 0; i < 2; ++i) scales[16 * i + lane] = static_cast<uint8_t>(block.scales[2 * b + i]);
        break;
      case ScaleKind::kSuper16Min:
        for (int i = 0; i < 2; ++i) {
          scales[16 * i + lane] = static_cast<uint8_t>(block.scales[2 * b + i] | block.mins[2 * b + i] << 4);
        }
        break;
    }
  }
}

void LoadBlock(const PanelLayout& layout, const uint8_t* super, int64_t lane, Block* block) {
  block->zero = layout.zero;
  block->minimum = Minimum::kNone;
  block->scale_elements = 0;
  if (layout.header_bytes >= 32) block->d = LoadHalf(super + 2 * lane);
  if (layout.header_bytes == 64) block->m = LoadHalf(super + 32 + 2 * lane);
  const uint8_t* packed = super + layout.header_bytes;
  for (int b = 0; b < layout.elements / 32; ++b, packed += layout.block_bytes()) {
    LoadCodes(layout, packed, lane, block->codes + 32 * b);
    const uint8_t* scales = packed + layout.low_bytes() + layout.high_bytes();
    switch (layout.kind) {
      case ScaleKind::kNone: break;
      case ScaleKind::kScaleMin:
        block->m = LoadHalf(scales + 32 + 2 * lane);
        block->minimum = Minimum::kAdded;
        [[fallthrough]];
      case ScaleKind::kScale: block->d = LoadHalf(scales + 2 * lane); break;
      case ScaleKind::kSuper32Min:
        block->scales[b] = static_cast<int8_t>(scales[lane]);
        block->mins[b] = scales[16 + lane];
        block->minimum = Minimum::kScaled;
        block->scale_elements = 32;
        break;
      case ScaleKind::kSuper16:
        for (int i = 0; i < 2; ++i) block->scales[2 * b + i] = static_cast<int8_t>(scales[16 * i + lane]);
        block->scale_elements = 16;
        break;
      case ScaleKind::kSuper16Min:
        for (int i = 0; i < 2; ++i) {
          block->scales[2 * b + i] = static_cast<int8_t>(scales[16 * i + lane] & 15);
          block->mins[2 * b + i] = scales[16 * i + lane] >> 4;
        }
        block->minimum = Minimum::kScaled;
        block->scale_elements = 16;
        break;
    }
  }
}

// One row of the file into lane `lane` of a panel that is zero there.
void PackRow(Format format, const uint8_t* file_row, int64_t k, int64_t lane, uint8_t* panel) {
  const FormatInfo& info = GetFormatInfo(format);
  if (!info.quantised) {
    const size_t size = static_cast<size_t>(info.block_bytes);
    for (int64_t i = 0; i < k; ++i) {
      std::memcpy(panel + static_cast<size_t>(i * kPanelOutputs + lane) * size, file_row + static_cast<size_t>(i) * size, size);
    }
    return;
  }
  const PanelLayout& layout = LayoutOf(format);
  Block block;
  for (int64_t i = 0; i < k; i += layout.elements) {
    ReadBlock(format, file_row, &block);
    StoreBlock(layout, block, lane, panel);
    file_row += info.block_bytes;
    panel += layout.super_bytes();
  }
}

int64_t PanelBytes(Format format, int64_t k) {
  const PanelLayout& layout = LayoutOf(format);
  return k / layout.elements * layout.super_bytes();
}

void CheckSource(const WeightSource& source, Format target) {
  const FormatInfo& from = GetFormatInfo(source.format);
  const FormatInfo& to = GetFormatInfo(target);
  if (source.n < 0 || source.k < 0) Raise("weight of shape [", source.n, ", ", source.k, "]");
  if (source.k % from.block_elements != 0) {
    Raise("a ", from.name, " row of ", source.k, " elements is not made of whole blocks of ", from.block_elements);
  }
  if (target != source.format) {
    uint8_t bytes[34];
    const float zeros[32] = {};
    if (from.quantised) Raise("a ", from.name, " weight is quantised already and cannot become ", to.name);
    if (!QuantizeRow(target, zeros, 32, bytes)) {
      Raise("weights can be quantised to q4_0, q4_1, q5_0, q5_1 or q8_0 at load, not to ", to.name);
    }
    if (source.k % to.block_elements != 0) {
      Raise("a row of ", source.k, " elements cannot become ", to.name, ", whose blocks have ", to.block_elements);
    }
  }
  if (source.row_order == nullptr) return;
  for (int64_t r = 0; r < source.n; ++r) {
    if (source.row_order[r] < 0 || source.row_order[r] >= source.n) {
      Raise("row order names row ", source.row_order[r], " of a weight with ", source.n, " rows");
    }
  }
}

}  // namespace

PackedMatrix PackMatrix(const WeightSource& source, ThreadPool& pool) {
  const Format format = source.target.value_or(source.format);
  CheckSource(source, format);
  PackedMatrix packed;
  packed.format = format;
  packed.n = source.n;
  packed.k = source.k;
  packed.panel_bytes = PanelBytes(format, source.k);
  packed.bytes = AlignedBytes(static_cast<size_t>(packed.panels() * packed.panel_bytes));

  const size_t row_bytes = FileBytes(source.format, source.k);
  const bool requantise = format != source.format;
  const size_t values = requantise ? static_cast<size_t>(source.k) : 0;
  const size_t team = static_cast<size_t>(pool.size());
  std::vector<float> floats(values * team);                       // a row of each worker: the pool's functions may not throw
  std::vector<uint8_t> requantised(FileBytes(format, static_cast<int64_t>(values)) * team);
  pool.Run([&](Worker& worker) {
    const size_t index = static_cast<size_t>(worker.index());
    float* const row_floats = floats.data() + values * index;
    uint8_t* const row_target = requantised.data() + requantised.size() / team * index;
    const auto [begin, end] = worker.Split(packed.panels());
    for (int64_t p = begin; p < end; ++p) {
      uint8_t* const panel = packed.bytes.data() + p * packed.panel_bytes;
      std::memset(panel, 0, static_cast<size_t>(packed.panel_bytes));
      for (int64_t lane = 0; lane < kPanelOutputs; ++lane) {
        const int64_t row = p * kPanelOutputs + lane;
        if (row >= packed.n) break;
        const int64_t file_row = source.row_order ? source.row_order[row] : row;
        const uint8_t* bytes = source.bytes + row_bytes * static_cast<size_t>(file_row);
        if (requantise) {
          DequantizeRow(source.format, bytes, source.k, row_floats);
          QuantizeRow(format, row_floats, source.k, row_target);
          bytes = row_target;
        }
        PackRow(format, bytes, source.k, lane, panel);
      }
    }
  });
  return packed;
}

void UnpackRow(const PackedMatrix& matrix, int64_t row, float* out) {
  const uint8_t* panel = matrix.bytes.data() + row / kPanelOutputs * matrix.panel_bytes;
  const int64_t lane = row % kPanelOutputs;
  if (!GetFormatInfo(matrix.format).quantised) {
    for (int64_t i = 0; i < matrix.k; ++i) out[i] = LoadElement(matrix.format, panel, i * kPanelOutputs + lane);
    return;
  }
  const PanelLayout& layout = LayoutOf(matrix.format);
  Block block;
  for (int64_t i = 0; i < matrix.k; i += layout.elements, panel += layout.super_bytes()) {
    LoadBlock(layout, panel, lane, &block);
    DequantizeBlock(block, layout.elements, out + i);
  }
}

}  // namespace ramet
