// One quantised block of a file (32 or 256 weights), taken apart: what packing and exact dequantisation share.
#pragma once

#include <cstdint>

#include "formats/format.h"

namespace ramet {

enum class Minimum : uint8_t {
  kNone,    // q4_0, q5_0, q8_0, q3_k, q6_k
  kAdded,   // q4_1, q5_1: + m
  kScaled,  // q2_k, q4_k, q5_k: - m · mins[i]
};

// weight = (d · scale) · (code - zero), then the minimum.
struct Block {
  uint8_t codes[256];
  uint16_t d = 0;         // f16 bits
  uint16_t m = 0;         // f16 bits
  int zero = 0;
  int scale_elements = 0;  // elements that share scales[i] and mins[i]: 16 or 32; 0: there are none
  int8_t scales[16];
  uint8_t mins[16];       // q2_k, q4_k, q5_k
  Minimum minimum = Minimum::kNone;
};

// Takes apart the file block at `bytes` (block_bytes of the format).
void ReadBlock(Format format, const uint8_t* bytes, Block* block);

// The exact values: the operations and their order are those of the gguf package, so the bits are too.
void DequantizeBlock(const Block& block, int elements, float* out);

// Element i of a row in f32, f16 or bf16.
float LoadElement(Format format, const uint8_t* row, int64_t i);

}  // namespace ramet
