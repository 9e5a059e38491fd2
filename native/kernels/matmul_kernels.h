// Inner loops of `linear`, one set per instruction tier; `KernelTable` has it as its member `matmul`.
//
// A weight matrix is packed into panels of 16 output rows, one output in each SIMD lane, all k of a panel contiguous
// (kernels/panel.h). An output element is reduced over k in one chain of fused multiply-adds in block order, whatever the
// number of rows, so one row gives the same bits as a thousand.
#pragma once

#include <cstdint>

namespace ramet {

constexpr int64_t kPanelOutputs = 16;

// Rows of x are taken in tiles of 8; a shorter last tile is padded to 1, 2, 4 or 8.
constexpr int64_t kTileRows = 8;

static constexpr int64_t PaddedTileRows(int64_t rows) { return rows >= 5 ? 8 : rows >= 3 ? 4 : rows; }

// 32 activations of one row, quantised: x ≈ scale · codes.
struct ActivationBlock {
  int8_t codes[32];
  float scale;         // max|x| / 127
  float scaled_sum;    // scale · (sum of codes): meets the minimum of q4_1, q5_1, q4_k, q5_k
  int32_t sums[2];     // sums of codes 0..15 and 16..31: meet zero points and minimums per 16 elements
};
static_assert(sizeof(ActivationBlock) == 48);

// Blocks that `rows` rows of `blocks_per_row` blocks occupy: tile by tile, within a tile [block][padded row].
static constexpr int64_t ActivationBlocks(int64_t rows, int64_t blocks_per_row) {
  const int64_t tail = rows % kTileRows;
  return (rows - tail + (tail ? PaddedTileRows(tail) : 0)) * blocks_per_row;
}

struct MatMulArgs {
  const uint8_t* panels;       // first panel
  int64_t panel_bytes;         // distance between panels
  int64_t outputs;             // outputs from the first panel on; only the last panel may be partly filled
  int64_t k;                   // reduction length, a multiple of the format's block
  int64_t rows;                // >= 1
  const ActivationBlock* activations;  // quantised formats: `rows` rows as ActivationBlocks lays them, 64-byte aligned
  const float* x;              // f32, f16, bf16: row r starts at x + r * ldx
  int64_t ldx;
  float* y;                    // output (r, j) at y + r * ldy + j
  int64_t ldy;
  const float* bias;           // null, or `outputs` floats added at the end
  bool accumulate;             // y += result instead of y = result
};

struct MatMulKernels {
  // Quantises rows [first_row, first_row + rows) of a matrix of total_rows; first_row is a multiple of kTileRows. Padding rows
  // of the last tile become zero. Non-finite activations give non-finite scales, hence NaN outputs for their row only.
  void (*quantize_activations)(const float* x, int64_t ldx, int64_t k, int64_t first_row, int64_t rows, int64_t total_rows,
                               ActivationBlock* activations);

  // y = x · panelsᵀ (+ bias) for a weight in format i of enum Format.
  void (*matmul[13])(const MatMulArgs& args);
};

}  // namespace ramet
