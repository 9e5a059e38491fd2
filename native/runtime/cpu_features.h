// Which instruction tiers this machine can run: what the processor has and the operating system saves.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace ramet {

// Names of the features that tiers ask about and this machine has: "avx2", "fma", "avx512vnni", …
std::vector<std::string> CpuFeatures();

// Tables that this machine can run, slowest first; "scalar" is always there.
std::vector<const KernelTable*> RunnableTiers();

// The named tier, or the fastest for "". Raises if it is unknown or cannot run here.
const KernelTable& ChooseTier(const std::string& name);

}  // namespace ramet
