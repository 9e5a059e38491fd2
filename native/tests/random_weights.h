// Random file bytes and floats from a seed, for tests. golden_formats.py makes the same bytes with numpy.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "formats/format.h"

namespace ramet {

class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed) {}
  uint32_t Next() {  // 8 bits
    state_ = state_ * 1664525u + 1013904223u;
    return state_ >> 24;
  }

 private:
  uint32_t state_;
};

// Writes the f16 `half` to every scale (and added minimum) of a quantised weight.
template <typename Function>
void ForScales(Format format, std::vector<uint8_t>& bytes, Function f) {
  const FormatInfo& info = GetFormatInfo(format);
  int first = 0, count = 1;
  switch (format) {
    case Format::kQ4_1:
    case Format::kQ5_1:
    case Format::kQ4_K:
    case Format::kQ5_K: count = 2; break;
    case Format::kQ2_K: first = 80; count = 2; break;
    case Format::kQ3_K: first = 108; break;
    case Format::kQ6_K: first = 208; break;
    default: break;
  }
  const size_t step = static_cast<size_t>(info.block_bytes);
  for (size_t block = 0; block < bytes.size(); block += step) {
    for (int i = 0; i < count; ++i) f(&bytes[block + static_cast<size_t>(first + 2 * i)]);
  }
}

inline void SetScales(Format format, uint16_t half, std::vector<uint8_t>& bytes) {
  ForScales(format, bytes, [&](uint8_t* p) {
    p[0] = static_cast<uint8_t>(half);
    p[1] = static_cast<uint8_t>(half >> 8);
  });
}

// Random bytes; in every float the exponent's top bit is cleared, so that all are finite and below 2.
inline std::vector<uint8_t> RandomWeights(Format format, int64_t elements, uint32_t seed) {
  std::vector<uint8_t> bytes(FileBytes(format, elements));
  Random random(seed);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  const FormatInfo& info = GetFormatInfo(format);
  if (info.quantised) {
    ForScales(format, bytes, [](uint8_t* p) { p[1] = static_cast<uint8_t>(p[1] & 0xbf); });
  } else {
    const size_t size = static_cast<size_t>(info.block_bytes);
    for (size_t i = size - 1; i < bytes.size(); i += size) bytes[i] = static_cast<uint8_t>(bytes[i] & 0xbf);
  }
  return bytes;
}

// Multiples of 2^-15 in [-1, 1).
inline std::vector<float> RandomFloats(int64_t n, uint32_t seed) {
  std::vector<float> out(static_cast<size_t>(n));
  Random random(seed);
  for (float& value : out) {
    const uint32_t high = random.Next(), low = random.Next();
    value = static_cast<float>(static_cast<int>(high << 8 | low) - 32768) / 32768.0f;
  }
  return out;
}

}  // namespace ramet
