// A plan's weights, found by name and packed: matrices as `linear` reads them, vectors as floats.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "plan/plan.h"
#include "runtime/thread_pool.h"

namespace ramet {

// A weight as the caller holds it; read while packing, not after.
struct NamedWeight {
  std::string name;
  std::string format;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;
  std::span<const int32_t> row_order;  // empty, or an entry per row: where in `bytes` the row is
  std::string target_format;           // empty: keep
};

struct PackedWeights {
  std::vector<PackedMatrix> matrices;       // by index in the plan; empty where the weight is a vector
  std::vector<std::vector<float>> vectors;  // by index in the plan; empty where the weight is a matrix

  int64_t bytes() const;
};

// Raises with the names on weights that are missing, left over or unlike what the plan says.
PackedWeights PackWeights(const Plan& plan, const std::vector<NamedWeight>& weights, ThreadPool& pool);

}  // namespace ramet
