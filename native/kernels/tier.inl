// The bodies of all kernels, for the tier whose flags this is compiled with. Each .inl defines, in an anonymous namespace,
// functions and a constexpr table of them: kRowwiseKernels, kAttendKernels, kMatMulKernels, kSampleKernels.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd.h"

#include "kernels/math.inl"
#include "kernels/rowwise.inl"
#include "kernels/attend.inl"
#include "kernels/matmul.inl"
#include "kernels/sample.inl"
