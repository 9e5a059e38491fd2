// What operations see of the step at hand.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "ops/linear.h"
#include "runtime/kv_cache.h"
#include "runtime/lower.h"

namespace ramet {

struct StepContext {
  const KernelTable* kernels = nullptr;
  const Plan* plan = nullptr;
  const Program* program = nullptr;
  const std::vector<PackedMatrix>* matrices = nullptr;       // by weight; empty where the weight is a vector
  const std::vector<std::vector<float>>* vectors = nullptr;  // by weight; empty where the weight is a matrix
  const KvCache* cache = nullptr;

  int64_t num_tokens = 0;
  const int32_t* token_ids = nullptr;    // [num_tokens]
  const int32_t* positions = nullptr;    // [num_tokens]
  const int32_t* token_types = nullptr;  // [num_tokens]
  const int32_t* rows = nullptr;         // [num_tokens] the row each token belongs to
  float* token_arena = nullptr;

  int64_t num_logits = 0;           // of the chunk at hand
  const int32_t* gather = nullptr;  // [num_logits] flat token indices
  float* logits_arena = nullptr;

  int64_t NumRows(Rows kind) const { return kind == Rows::kTokens ? num_tokens : num_logits; }

  int64_t Stride(int value) const { return program->places[static_cast<size_t>(value)].stride; }

  // The first row of a value; `kind` is the value's.
  float* Base(int value, Rows kind) const {
    const Place& place = program->places[static_cast<size_t>(value)];
    return kind == Rows::kTokens ? token_arena + place.offset * num_tokens : logits_arena + place.offset * num_logits;
  }

  const float* Vector(int weight) const { return (*vectors)[static_cast<size_t>(weight)].data(); }
  const PackedMatrix& Matrix(int weight) const { return (*matrices)[static_cast<size_t>(weight)]; }
};

}  // namespace ramet
