// Lowering: from a plan to what this executor runs. Fusions here are private to it.
//
//   - linears that read the same value become one node (activations are quantised once),
//   - a residual add after a linear becomes accumulation into the residual,
//   - attention splits into storing keys and values (row by row) and attending,
//   - neighbouring operations that act on rows one by one form a segment: each worker takes its rows through all of them while
//     they are in cache, with no barrier in between,
//   - operations on `logits` rows come last and run over chunks of kLogitsChunk rows, so that [rows, vocab] stays small,
//   - values get places in one arena by when they are first written and last read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ramet {

constexpr int64_t kLogitsChunk = 64;

enum class NodeKind : uint8_t {
  kEmbed, kRmsNorm, kLayerNorm, kAdd, kMul, kScale, kSoftCap, kActivation, kGatedActivation, kRopeAngles, kRope, kSplit, kConcat,
  kStoreKv, kGatherRows, kEmbedPositions, kPool, kL2Norm,  // up to here row by row
  kLinear, kAttend
};

// One matrix of a linear node.
struct LinearPart {
  int weight = 0;
  int bias = -1;  // weight index, or -1
  int output = 0;
  bool accumulate = false;
};

struct Node {
  NodeKind kind = NodeKind::kAdd;
  const Op* op = nullptr;  // attributes and name; of kRopeAngles: a rope that uses them
  std::vector<int> inputs;
  std::vector<int> outputs;
  std::vector<LinearPart> parts;  // kLinear only
};

// What runs between two barriers.
struct Segment {
  Rows rows = Rows::kTokens;
  bool row_by_row = false;
  std::vector<Node> nodes;  // exactly one unless row_by_row
  std::string label;        // of its timing slot: the kinds of its nodes
};

// A value's place in the arena: row r starts at (offset · rows + r · stride) floats, where `rows` is the number of rows of the
// run at hand, so that short steps touch little memory.
struct Place {
  int64_t offset = 0;
  int64_t stride = 0;
};

struct Program {
  std::vector<Segment> segments;  // those over tokens first
  size_t first_logits_segment = 0;
  std::vector<Place> places;      // by value, including values that lowering added
  int64_t token_floats = 0;       // arena floats per row of each kind
  int64_t logits_floats = 0;
};

// `plan` must outlive the program.
Program Lower(const Plan& plan);

}  // namespace ramet
