// AVX-512 F, BW, VL, DQ and VNNI. Compiled with flags of its own: see "the linkage trap" in tier_scalar.cc.
#include "kernels/tier.inl"

namespace ramet {
constinit const KernelTable kAvx512Kernels = {"avx512", kRowwiseKernels, kAttendKernels, kMatMulKernels, kSampleKernels};
}  // namespace ramet
