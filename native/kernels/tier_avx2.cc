// AVX2 + FMA + F16C. Compiled with flags of its own: see "the linkage trap" in tier_scalar.cc.
#include "kernels/tier.inl"

namespace ramet {
constinit const KernelTable kAvx2Kernels = {"avx2", kRowwiseKernels, kAttendKernels, kMatMulKernels, kSampleKernels};
}  // namespace ramet
