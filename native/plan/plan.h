// A plan as the executor reads it: what `ramet.plan.serialize.to_json` wrote, re-checked.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/rowwise_kernels.h"

namespace ramet {

enum class Rows : uint8_t { kTokens, kLogits };
enum class ElementType : uint8_t { kF32, kI32 };

struct ValueSpec {
  std::string name;
  Rows rows = Rows::kTokens;
  int64_t width = 0;
  ElementType type = ElementType::kF32;
};

struct WeightSpec {
  std::string name;
  std::vector<int64_t> shape;  // [out, in] or [n]
};

struct KvStream {
  std::string name;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t v_dim = 0;
  int64_t window = 0;  // 0: all positions
};

enum class OpKind : uint8_t {
  kEmbed, kLinear, kRmsNorm, kLayerNorm, kAdd, kMul, kScale, kSoftCap, kActivation, kGatedActivation, kRope, kSplit, kConcat,
  kAttention, kGatherRows, kEmbedPositions, kPool, kL2Norm
};

// Which of a row's tokens `pool` takes: the first, the wanted one, or the mean of all from the first to it.
enum class PoolMethod : uint8_t { kCls, kLast, kMean };

// One operation. Attributes that its kind does not have keep their defaults.
struct Op {
  OpKind kind = OpKind::kAdd;
  std::string name;
  std::vector<int> inputs;   // indices of values
  std::vector<int> outputs;
  std::vector<int> weights;  // indices of weights
  float eps = 0;
  float offset = 0;
  float factor = 1;
  float cap = 0;    // soft_cap's cap, attention's soft_cap
  float scale = 1;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  int stream = 0;
  std::string table;
  RopeStyle style = RopeStyle::kHalf;
  Activation function = Activation::kSilu;
  std::vector<int64_t> sizes;
  bool causal = true;        // attention: a token sees only positions up to its own
  int64_t first_row = 0;     // embed_positions: the table's row of position 0
  PoolMethod method = PoolMethod::kLast;
};

// Values 0 and 1 are the inputs `tokens` and `positions`; a plan may have `token_types` as value 2.
struct Plan {
  std::string name;
  std::vector<ValueSpec> values;
  std::vector<WeightSpec> weights;
  std::vector<KvStream> streams;
  std::map<std::string, std::vector<double>> tables;
  std::vector<Op> ops;
  int logits = 0;       // the value named "logits" (or "embedding") among the outputs; its rows are kLogits
  bool embeds = false;  // the output is "embedding": a vector per row that asks for one, and nothing is drawn

  // Token ids are below this: rows of the head, or of the tokens' table where there is no head.
  int64_t vocab_size() const;

  // Must every row come whole, from position 0, in one step? So it is if some token depends on later ones.
  bool whole_rows() const;

  bool has_token_types() const;
};

constexpr int kTokensValue = 0;
constexpr int kPositionsValue = 1;
constexpr int kTokenTypesValue = 2;

std::string_view OpKindName(OpKind kind);

// Reads and checks a plan, so that lowering and operations need check no shape. Raises with the operation's name and shapes.
Plan ParsePlan(std::string_view json);

}  // namespace ramet
