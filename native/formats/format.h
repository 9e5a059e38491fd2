// Weight formats: what bytes of a file mean. Layouts are those of GGUF (f32, f16, bf16 also of safetensors), little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ramet {

enum class Format : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K };
constexpr int kNumFormats = 13;

struct FormatInfo {
  std::string_view name;     // as plans and weights spell it: "q4_1"
  int64_t block_elements;    // elements that share a block: 1, 32 or 256
  int64_t block_bytes;       // bytes of such a block in the file
  bool quantised;            // activations are quantised to 8 bits for it
};

const FormatInfo& GetFormatInfo(Format format);

// False if no format has this name.
bool ParseFormat(std::string_view name, Format* format);

// Bytes of `elements` consecutive weights in a file; `elements` is a multiple of block_elements.
size_t FileBytes(Format format, int64_t elements);

// Exact values of `elements` consecutive weights, equal bit for bit to the gguf package's dequantisation.
void DequantizeRow(Format format, const uint8_t* file_row, int64_t elements, float* out);

// Rounds floats to q4_0, q4_1, q5_0, q5_1 or q8_0 file blocks, as the gguf package does. False for another format.
bool QuantizeRow(Format format, const float* values, int64_t elements, uint8_t* file_row);

float HalfToFloat(uint16_t half);
uint16_t FloatToHalf(float value);  // round to nearest even

}  // namespace ramet
