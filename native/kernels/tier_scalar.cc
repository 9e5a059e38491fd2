// Plain C++ for any processor.
//
// The linkage trap: a function with external linkage that a tier file emits (an inline or template of the standard library,
// say) may be the copy that the linker keeps for the whole program, and it holds instructions that only this tier may use. So
// tier files and what they include have everything in anonymous namespaces and use no standard templates;
// tests/unit/executor/test_native_linkage.py builds them at -O0 and looks.
#include "kernels/tier.inl"

namespace ramet {
constinit const KernelTable kScalarKernels = {"scalar", kRowwiseKernels, kAttendKernels, kMatMulKernels, kSampleKernels};
}  // namespace ramet
