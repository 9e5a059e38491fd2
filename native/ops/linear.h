// The operation `linear`: packing of weights at load, x · wᵀ at each step, and single rows for `embed`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "formats/aligned_bytes.h"
#include "formats/format.h"
#include "kernels/kernels.h"
#include "runtime/thread_pool.h"

namespace ramet {

// A weight as a file holds it. Nothing here is owned.
struct WeightSource {
  Format format = Format::kF32;
  int64_t n = 0;                          // outputs (rows of the file's matrix)
  int64_t k = 0;                          // inputs; a multiple of the format's block_elements
  const uint8_t* bytes = nullptr;         // n rows of FileBytes(format, k) bytes; any alignment
  const int32_t* row_order = nullptr;     // null, or n entries: packed row r is file row row_order[r]
  std::optional<Format> target = {};      // requantise f32, f16 or bf16 to q4_0, q4_1, q5_0, q5_1 or q8_0
};

// A weight as kernels read it: ceil(n / 16) panels (kernels/panel.h). Move-only.
struct PackedMatrix {
  Format format = Format::kF32;
  int64_t n = 0;
  int64_t k = 0;
  int64_t panel_bytes = 0;
  AlignedBytes bytes;

  int64_t panels() const { return (n + kPanelOutputs - 1) / kPanelOutputs; }
};

// Packs on all threads of the pool; must not be called from inside it. Raises on shapes that the format cannot hold, on a
// row order that leaves the matrix and on a target that cannot be made.
PackedMatrix PackMatrix(const WeightSource& source, ThreadPool& pool);

// Row `row` (0 <= row < n) as k floats: exactly the values that the packed file bytes (or the requantised ones) stand for.
void UnpackRow(const PackedMatrix& matrix, int64_t row, float* out);

struct LinearOutput {
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;  // null or n floats
  float* y = nullptr;           // [rows, ldy], the first n columns are written
  int64_t ldy = 0;
  bool accumulate = false;      // y += instead of y =; a residual added here needs no pass of its own
};

struct LinearArgs {
  const KernelTable* kernels = nullptr;
  const float* x = nullptr;  // [rows, ldx], k floats used of each row
  int64_t ldx = 0;
  int64_t rows = 0;          // 0 is allowed and does nothing
  LinearOutput outputs[3];   // matrices that share x (q, k, v or gate, up); all have the same k
  int num_outputs = 0;
  uint8_t* scratch = nullptr;  // LinearScratchBytes, 64-byte aligned, the same for all workers
};

// Scratch for quantised activations, enough for any number of rows up to `rows`. Ops that a barrier separates may share it.
size_t LinearScratchBytes(int64_t rows, int64_t k, int workers);

// Every worker of the team calls this with the same arguments. No barrier at the end: outputs are complete, and scratch and x free
// again, after the caller's next barrier. Whether it has one inside depends only on arguments, so all workers agree.
void Linear(const LinearArgs& args, Worker& worker);

}  // namespace ramet
