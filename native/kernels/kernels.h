// The inner loops, one table per instruction tier. A table is chosen once, when an executor is made.
//
// Kernels are total: any length >= 0, any alignment unless said otherwise; they do not allocate, throw or touch globals.
// Splitting over threads and checking belong to ops/.
#pragma once

#include "kernels/attend_kernels.h"
#include "kernels/matmul_kernels.h"
#include "kernels/rowwise_kernels.h"
#include "kernels/sample_kernels.h"

namespace ramet {

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512": what `ramet doctor` and benchmarks show
  RowwiseKernels rowwise;
  AttendKernels attend;
  MatMulKernels matmul;
  SampleKernels sample;
};

extern const KernelTable kScalarKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

}  // namespace ramet
