#include "runtime/cpu_features.h"

#include "core/status.h"

namespace ramet {
namespace {

struct Feature {
  const char* name;
  bool present;
};

std::vector<Feature> Probe() {
#if defined(__x86_64__)
  // The builtin reads cpuid and, for AVX and AVX-512, whether the operating system saves the registers (xgetbv).
  __builtin_cpu_init();
  return {
      {"avx2", __builtin_cpu_supports("avx2") != 0},         {"fma", __builtin_cpu_supports("fma") != 0},
      {"f16c", __builtin_cpu_supports("f16c") != 0},         {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", __builtin_cpu_supports("avx512bw") != 0}, {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
      {"avx512dq", __builtin_cpu_supports("avx512dq") != 0}, {"avx512vnni", __builtin_cpu_supports("avx512vnni") != 0},
  };
#else
  return {};
#endif
}

bool Has(const std::vector<Feature>& features, std::initializer_list<const char*> names) {
  for (const std::string name : names) {
    bool found = false;
    for (const Feature& feature : features) found |= feature.present && name == feature.name;
    if (!found) return false;
  }
  return true;
}

}  // namespace

std::vector<std::string> CpuFeatures() {
  std::vector<std::string> names;
  for (const Feature& feature : Probe()) {
    if (feature.present) names.emplace_back(feature.name);
  }
  return names;
}

std::vector<const KernelTable*> RunnableTiers() {
  const std::vector<Feature> features = Probe();
  std::vector<const KernelTable*> tiers{&kScalarKernels};
#if defined(__x86_64__)
  if (Has(features, {"avx2", "fma", "f16c"})) {
    tiers.push_back(&kAvx2Kernels);
    if (Has(features, {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"})) tiers.push_back(&kAvx512Kernels);
  }
#endif
  return tiers;
}

const KernelTable& ChooseTier(const std::string& name) {
  const std::vector<const KernelTable*> tiers = RunnableTiers();
  if (name.empty()) return *tiers.back();
  std::string names;
  for (const KernelTable* tier : tiers) {
    if (name == tier->name) return *tier;
    names += std::string(names.empty() ? "" : ", ") + tier->name;
  }
  Raise("tier \"", name, "\" is unknown or cannot run on this machine; it can run: ", names);
}

}  // namespace ramet
