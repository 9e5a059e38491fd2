// How a weight lies in memory once packed. One layout for all tiers.
//
// A panel holds 16 outputs (rows of the weight) over all of k. Unquantised formats: [k][16] elements. Quantised ones: for each
// super-block (32 elements of k, or 256 for K-quants) a header, then for each 32 elements of k:
//
//   low    64 · low_bits bytes    the codes' low bits
//   high   64 · high_bits bytes   the bits above them
//   scales                        per lane, see ScaleKind
//
// Codes are unsigned (a zero point is subtracted from the integer sum instead). Four codes that neighbour in k make a "group";
// group g (0..7) of lane l meets the dot-product instructions as bytes 4l .. 4l+3 of one 64-byte vector. In memory:
//
//   8 low bits   vector g holds group g
//   4 low bits   vector v (0..3): low nibbles group v, high nibbles group v + 4   (the nibble order of GGUF's 32-element blocks)
//   2 low bits   vector v (0..1): bits 2j, 2j+1 hold group 4v + j
//   1 high bit   one vector: bit g belongs to group g
//   2 high bits  vector v (0..1): bits 2j, 2j+1 belong to group 4v + j
#pragma once

#include <cstdint>

#include "formats/format.h"

namespace ramet {

enum class ScaleKind : uint8_t {
  kNone,
  kScale,          // f16 d[16];                            w = d · (code - zero)
  kScaleMin,       // f16 d[16], f16 m[16];                 w = d · code + m
  kSuper32Min,     // u8 s[16], u8 m[16];                   w = (d · s) · code - dmin · m       header f16 d[16], f16 dmin[16]
  kSuper16,        // i8 s[2][16], one per 16 elements;     w = (d · s) · (code - zero)         header f16 d[16]
  kSuper16Min,     // u8 (s | m << 4)[2][16];               w = (d · s) · code - dmin · m       header f16 d[16], f16 dmin[16]
};

struct PanelLayout {
  int elements;      // of k in a super-block
  int low_bits;
  int high_bits;
  int zero;          // zero point of codes
  int header_bytes;  // of a super-block
  int scale_bytes;   // of 32 elements
  ScaleKind kind;

  constexpr int low_bytes() const { return 64 * low_bits; }
  constexpr int high_bytes() const { return 64 * high_bits; }
  constexpr int block_bytes() const { return low_bytes() + high_bytes() + scale_bytes; }
  constexpr int super_bytes() const {
    return kind == ScaleKind::kNone ? 2 * low_bits : header_bytes + elements / 32 * block_bytes();
  }
};

// Indexed by Format. Bits per weight are the file's, but for 0.125 more in q3_k, q4_k and q5_k: their scales take whole bytes.
constexpr PanelLayout kPanelLayouts[kNumFormats] = {
    {1, 32, 0, 0, 0, 0, ScaleKind::kNone},            // f32
    {1, 16, 0, 0, 0, 0, ScaleKind::kNone},            // f16
    {1, 16, 0, 0, 0, 0, ScaleKind::kNone},            // bf16
    {32, 4, 0, 8, 0, 32, ScaleKind::kScale},          // q4_0
    {32, 4, 0, 0, 0, 64, ScaleKind::kScaleMin},       // q4_1
    {32, 4, 1, 16, 0, 32, ScaleKind::kScale},         // q5_0
    {32, 4, 1, 0, 0, 64, ScaleKind::kScaleMin},       // q5_1
    {32, 8, 0, 128, 0, 32, ScaleKind::kScale},        // q8_0
    {256, 2, 0, 0, 64, 32, ScaleKind::kSuper16Min},   // q2_k
    {256, 2, 1, 4, 32, 32, ScaleKind::kSuper16},      // q3_k
    {256, 4, 0, 0, 64, 32, ScaleKind::kSuper32Min},   // q4_k
    {256, 4, 1, 0, 64, 32, ScaleKind::kSuper32Min},   // q5_k
    {256, 4, 2, 32, 32, 32, ScaleKind::kSuper16},     // q6_k
};

static constexpr const PanelLayout& LayoutOf(Format format) { return kPanelLayouts[static_cast<int>(format)]; }

}  // namespace ramet
