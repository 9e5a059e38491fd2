#include "formats/block.h"

#include <cstring>

namespace ramet {
namespace {

uint16_t Load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// 32 nibbles of a 32-element block: byte j holds elements j and j + 16.
void ReadNibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = bytes[j] & 15;
    codes[j + 16] = bytes[j] >> 4;
  }
}

void AddFifthBits(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) codes[j] = static_cast<uint8_t>(codes[j] | (bytes[j / 8] >> (j % 8) & 1) << 4);
}

// 2-bit codes of q2_k and q3_k: in each half of 128 elements, bits 2s, 2s+1 of byte j belong to element 32 s + j.
void ReadPairs(const uint8_t* bytes, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int s = 0; s < 4; ++s) {
      for (int j = 0; j < 32; ++j) codes[128 * half + 32 * s + j] = bytes[32 * half + j] >> (2 * s) & 3;
    }
  }
}

// 4-bit codes of q4_k and q5_k: in each quarter of 64 elements, byte j holds elements j and j + 32.
void ReadNibbles64(const uint8_t* bytes, uint8_t* codes) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    for (int j = 0; j < 32; ++j) {
      codes[64 * quarter + j] = bytes[32 * quarter + j] & 15;
      codes[64 * quarter + 32 + j] = bytes[32 * quarter + j] >> 4;
    }
  }
}

// 8 scales and 8 minimums of 6 bits in 12 bytes: the first four of each whole, of the last four the upper two bits sit in the
// first eight bytes' upper bits.
void ReadScalesAndMins6(const uint8_t* bytes, Block* block) {
  for (int i = 0; i < 4; ++i) {
    block->scales[i] = static_cast<int8_t>(bytes[i] & 63);
    block->mins[i] = bytes[4 + i] & 63;
    block->scales[4 + i] = static_cast<int8_t>((bytes[8 + i] & 15) | (bytes[i] >> 6) << 4);
    block->mins[4 + i] = static_cast<uint8_t>(bytes[8 + i] >> 4 | (bytes[4 + i] >> 6) << 4);
  }
  block->scale_elements = 32;
  block->minimum = Minimum::kScaled;
}

void ReadQ3K(const uint8_t* bytes, Block* block) {
  ReadPairs(bytes + 32, block->codes);
  // A set bit in the mask means "four more": the file's code is code - 4 with it, code without.
  for (int i = 0; i < 256; ++i) {
    const int bit = bytes[i % 32] >> (i / 32) & 1;
    block->codes[i] = static_cast<uint8_t>(block->codes[i] | bit << 2);
  }
  const uint8_t* scales = bytes + 96;  // 16 scales of 6 bits: low nibbles in 8 bytes, upper pairs in 4
  for (int i = 0; i < 16; ++i) {
    const int low = scales[i % 8] >> (4 * (i / 8)) & 15;
    const int high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
    block->scales[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
  block->d = Load16(bytes + 108);
  block->zero = 4;
  block->scale_elements = 16;
}

void ReadQ6K(const uint8_t* bytes, Block* block) {
  // In each half of 128 elements: 64 bytes of nibbles (element e % 64, low nibbles for the first 64), 32 bytes of upper pairs.
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, e = i % 128;
    const int low = bytes[64 * half + e % 64] >> (4 * (e / 64)) & 15;
    const int high = bytes[128 + 32 * half + e % 32] >> (2 * (e / 32)) & 3;
    block->codes[i] = static_cast<uint8_t>(low | high << 4);
  }
  std::memcpy(block->scales, bytes + 192, 16);
  block->d = Load16(bytes + 208);
  block->zero = 32;
  block->scale_elements = 16;
}

}  // namespace

void ReadBlock(Format format, const uint8_t* bytes, Block* block) {
  block->zero = 0;
  block->scale_elements = 0;
  block->minimum = Minimum::kNone;
  block->m = 0;
  switch (format) {
    case Format::kQ4_0:
      block->d = Load16(bytes);
      block->zero = 8;
      ReadNibbles(bytes + 2, block->codes);
      break;
    case Format::kQ4_1:
      block->d = Load16(bytes);
      block->m = Load16(bytes + 2);
      block->minimum = Minimum::kAdded;
      ReadNibbles(bytes + 4, block->codes);
      break;
    case Format::kQ5_0:
      block->d = Load16(bytes);
      block->zero = 16;
      ReadNibbles(bytes + 6, block->codes);
      AddFifthBits(bytes + 2, block->codes);
      break;
    case Format::kQ5_1:
      block->d = Load16(bytes);
      block->m = Load16(bytes + 2);
      block->minimum = Minimum::kAdded;
      ReadNibbles(bytes + 8, block->codes);
      AddFifthBits(bytes + 4, block->codes);
      break;
    case Format::kQ8_0:
      block->d = Load16(bytes);
      block->zero = 128;
      for (int i = 0; i < 32; ++i) block->codes[i] = bytes[2 + i] ^ 0x80;
      break;
    case Format::kQ2_K:
      for (int i = 0; i < 16; ++i) {
        block->scales[i] = static_cast<int8_t>(bytes[i] & 15);
        block->mins[i] = bytes[i] >> 4;
      }
      ReadPairs(bytes + 16, block->codes);
      block->d = Load16(bytes + 80);
      block->m = Load16(bytes + 82);
      block->scale_elements = 16;
      block->minimum = Minimum::kScaled;
      break;
    case Format::kQ3_K:
      ReadQ3K(bytes, block);
      break;
    case Format::kQ4_K:
      block->d = Load16(bytes);
      block->m = Load16(bytes + 2);
      ReadScalesAndMins6(bytes + 4, block);
      ReadNibbles64(bytes + 16, block->codes);
      break;
    case Format::kQ5_K:
      block->d = Load16(bytes);
      block->m = Load16(bytes + 2);
      ReadScalesAndMins6(bytes + 4, block);
      ReadNibbles64(bytes + 48, block->codes);
      for (int i = 0; i < 256; ++i) {
        block->codes[i] = static_cast<uint8_t>(block->codes[i] | (bytes[16 + i % 32] >> (i / 32) & 1) << 4);
      }
      break;
    case Format::kQ6_K:
      ReadQ6K(bytes, block);
      break;
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
      break;
  }
}

void DequantizeBlock(const Block& block, int elements, float* out) {
  const float d = HalfToFloat(block.d), m = HalfToFloat(block.m);
  const int step = block.scale_elements ? block.scale_elements : elements;
  for (int first = 0; first < elements; first += step) {
    const int i = first / step;
    const float scale = block.scale_elements ? d * static_cast<float>(block.scales[i]) : d;
    const float min = block.minimum == Minimum::kScaled ? m * static_cast<float>(block.mins[i]) : -m;
    for (int e = first; e < first + step; ++e) {
      const float value = scale * static_cast<float>(block.codes[e] - block.zero);
      out[e] = block.minimum == Minimum::kNone ? value : value - min;
    }
  }
}

float LoadElement(Format format, const uint8_t* row, int64_t i) {
  if (format == Format::kF32) {
    float value;
    std::memcpy(&value, row + 4 * i, 4);
    return value;
  }
  const uint16_t half = Load16(row + 2 * i);
  if (format == Format::kF16) return HalfToFloat(half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace ramet
