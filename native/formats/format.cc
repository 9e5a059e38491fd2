#include "formats/format.h"

#include <cmath>
#include <cstring>

#include "formats/block.h"

namespace ramet {
namespace {

constexpr FormatInfo kFormats[kNumFormats] = {
    {"f32", 1, 4, false},       {"f16", 1, 2, false},       {"bf16", 1, 2, false},     {"q4_0", 32, 18, true},
    {"q4_1", 32, 20, true},     {"q5_0", 32, 22, true},     {"q5_1", 32, 24, true},    {"q8_0", 32, 34, true},
    {"q2_k", 256, 84, true},    {"q3_k", 256, 110, true},   {"q4_k", 256, 144, true},  {"q5_k", 256, 176, true},
    {"q6_k", 256, 210, true},
};

float FloatOfBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

}  // namespace

const FormatInfo& GetFormatInfo(Format format) { return kFormats[static_cast<int>(format)]; }

bool ParseFormat(std::string_view name, Format* format) {
  for (int i = 0; i < kNumFormats; ++i) {
    if (kFormats[i].name == name) {
      *format = static_cast<Format>(i);
      return true;
    }
  }
  return false;
}

size_t FileBytes(Format format, int64_t elements) {
  const FormatInfo& info = GetFormatInfo(format);
  return static_cast<size_t>(elements / info.block_elements * info.block_bytes);
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) return FloatOfBits(sign | 0x70000000u | magnitude);  // infinity, NaN
  return FloatOfBits(sign | magnitude) * FloatOfBits(0x77800000u);                   // · 2^112: exact, subnormals too
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 leaves, in the low bits of the sum, the value in units of 2^-24, rounded half to even.
    return static_cast<uint16_t>(sign | (BitsOfFloat(FloatOfBits(magnitude) + 0.5f) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

void DequantizeRow(Format format, const uint8_t* file_row, int64_t elements, float* out) {
  const FormatInfo& info = GetFormatInfo(format);
  if (!info.quantised) {
    for (int64_t i = 0; i < elements; ++i) out[i] = LoadElement(format, file_row, i);
    return;
  }
  Block block;
  for (int64_t i = 0; i < elements; i += info.block_elements, file_row += info.block_bytes) {
    ReadBlock(format, file_row, &block);
    DequantizeBlock(block, static_cast<int>(info.block_elements), out + i);
  }
}

}  // namespace ramet
