// Rounding of floats to the 32-element block formats. Operations and their order are those of the gguf package.
#include <cmath>
#include <cstring>

#include "formats/format.h"

namespace ramet {
namespace {

void Store16(uint16_t value, uint8_t* out) {
  out[0] = static_cast<uint8_t>(value);
  out[1] = static_cast<uint8_t>(value >> 8);
}

// trunc(value) held to [0, most]; a NaN becomes 0.
uint8_t Code(float value, int most) {
  if (!(value > 0.0f)) return 0;
  return value >= static_cast<float>(most) ? static_cast<uint8_t>(most) : static_cast<uint8_t>(value);
}

float Inverse(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

// Writes codes of 4 or 5 bits as they lie behind the scales: the fifth bits (if any), then nibbles j and j + 16 in byte j.
void WriteCodes(const uint8_t* codes, bool fifth, uint8_t* out) {
  if (fifth) {
    for (int i = 0; i < 4; ++i) {
      int bits = 0;
      for (int j = 0; j < 8; ++j) bits |= (codes[8 * i + j] >> 4) << j;
      *out++ = static_cast<uint8_t>(bits);
    }
  }
  for (int j = 0; j < 16; ++j) out[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
}

// q4_0, q5_0: the value of largest magnitude maps to the most negative code.
void QuantizeSymmetric(const float* x, int bits, uint8_t* out) {
  float extreme = x[0];
  for (int i = 1; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const int half = 1 << (bits - 1);
  const float d = extreme / static_cast<float>(-half), inverse = Inverse(d);
  uint8_t codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = Code(x[i] * inverse + (static_cast<float>(half) + 0.5f), 2 * half - 1);
  Store16(FloatToHalf(d), out);
  WriteCodes(codes, bits == 5, out + 2);
}

// q4_1, q5_1: the range from least to greatest.
void QuantizeRange(const float* x, int bits, uint8_t* out) {
  float least = x[0], greatest = x[0];
  for (int i = 1; i < 32; ++i) {
    least = x[i] < least ? x[i] : least;
    greatest = x[i] > greatest ? x[i] : greatest;
  }
  const int most = (1 << bits) - 1;
  const float d = (greatest - least) / static_cast<float>(most), inverse = Inverse(d);
  uint8_t codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = Code((x[i] - least) * inverse + 0.5f, most);
  Store16(FloatToHalf(d), out);
  Store16(FloatToHalf(least), out + 2);
  WriteCodes(codes, bits == 5, out + 4);
}

// q8_0: rounds half away from zero.
void QuantizeQ8(const float* x, uint8_t* out) {
  float max = 0.0f;
  for (int i = 0; i < 32; ++i) max = std::fabs(x[i]) > max ? std::fabs(x[i]) : max;
  const float d = max / 127.0f, inverse = Inverse(d);
  Store16(FloatToHalf(d), out);
  for (int i = 0; i < 32; ++i) {
    const float scaled = x[i] * inverse;
    const uint8_t magnitude = Code(std::fabs(scaled) + 0.5f, 127);
    out[2 + i] = static_cast<uint8_t>(scaled < 0.0f ? -magnitude : magnitude);
  }
}

}  // namespace

bool QuantizeRow(Format format, const float* values, int64_t elements, uint8_t* file_row) {
  const int64_t block_bytes = GetFormatInfo(format).block_bytes;
  for (int64_t i = 0; i < elements; i += 32, file_row += block_bytes) {
    switch (format) {
      case Format::kQ4_0: QuantizeSymmetric(values + i, 4, file_row); break;
      case Format::kQ5_0: QuantizeSymmetric(values + i, 5, file_row); break;
      case Format::kQ4_1: QuantizeRange(values + i, 4, file_row); break;
      case Format::kQ5_1: QuantizeRange(values + i, 5, file_row); break;
      case Format::kQ8_0: QuantizeQ8(values + i, file_row); break;
      default: return false;
    }
  }
  return true;
}

}  // namespace ramet
