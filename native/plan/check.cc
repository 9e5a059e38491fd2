#include "plan/check.h"

#include <numeric>
#include <sstream>

#include "core/status.h"

namespace ramet {
namespace {

class Checker {
 public:
  Checker(const Plan& plan, const Op& op) : plan_(plan), op_(op) {}

  const ValueSpec& In(size_t i) const { return plan_.values[static_cast<size_t>(op_.inputs[i])]; }
  const ValueSpec& Out(size_t i) const { return plan_.values[static_cast<size_t>(op_.outputs[i])]; }
  const std::vector<int64_t>& Weight(size_t i) const { return plan_.weights[static_cast<size_t>(op_.weights[i])].shape; }

  void Require(bool holds, const char* rule) const {
    if (holds) return;
    std::ostringstream shapes;
    for (const int i : op_.inputs) Describe(shapes, i);
    shapes << " ->";
    for (const int i : op_.outputs) Describe(shapes, i);
    for (const int i : op_.weights) {
      const WeightSpec& weight = plan_.weights[static_cast<size_t>(i)];
      shapes << ", " << weight.name << " [";
      for (size_t d = 0; d < weight.shape.size(); ++d) shapes << (d ? ", " : "") << weight.shape[d];
      shapes << "]";
    }
    Raise(OpKindName(op_.kind), " ", op_.name, ": ", rule, " (", shapes.str(), ")");
  }

  void Counts(size_t inputs, size_t outputs, size_t min_weights, size_t max_weights) const {
    Require(op_.inputs.size() == inputs, "wrong number of inputs");
    Require(op_.outputs.size() == outputs, "wrong number of outputs");
    Require(op_.weights.size() >= min_weights && op_.weights.size() <= max_weights, "wrong number of weights");
  }

  void Vector(size_t i, int64_t n, const char* rule) const { Require(Weight(i) == std::vector<int64_t>{n}, rule); }

 private:
  void Describe(std::ostringstream& out, int i) const {
    const ValueSpec& value = plan_.values[static_cast<size_t>(i)];
    out << " " << value.name << (value.rows == Rows::kTokens ? " [tokens, " : " [logits, ") << value.width << "]";
  }

  const Plan& plan_;
  const Op& op_;
};

void CheckAttention(const Plan& plan, const Op& op, const Checker& check) {
  check.Counts(3, 1, 0, 1);
  check.Require(static_cast<size_t>(op.stream) < plan.streams.size(), "there is no such stream");
  const KvStream& stream = plan.streams[static_cast<size_t>(op.stream)];
  check.Require(op.heads % stream.kv_heads == 0, "heads must be a multiple of the stream's kv_heads");
  check.Require(check.In(0).width == op.heads * stream.head_dim && check.In(1).width == stream.kv_heads * stream.head_dim &&
                    check.In(2).width == stream.kv_heads * stream.v_dim && check.Out(0).width == op.heads * stream.v_dim,
                "q, k, v and the result must be as wide as the stream says");
  check.Require(check.In(0).rows == Rows::kTokens, "inputs must have a row per token");
  if (!op.weights.empty()) check.Vector(0, op.heads, "sinks must have one float per head");
  check.Require(op.causal || stream.window == 0, "attention in both directions has no window");
}

void CheckRope(const Plan& plan, const Op& op, const Checker& check) {
  check.Counts(2, 1, 0, 0);
  check.Require(op.inputs[1] == kPositionsValue, "the second input must be positions");
  check.Require(check.In(0).width == op.heads * op.head_dim, "x must be heads * head_dim wide");
  check.Require(op.rotary_dim % 2 == 0 && op.rotary_dim <= op.head_dim, "rotary_dim must be even and at most head_dim");
  const auto table = plan.tables.find(op.table);
  check.Require(table != plan.tables.end() && table->second.size() == static_cast<size_t>(op.rotary_dim / 2),
                "its table must exist and have rotary_dim / 2 numbers");
  check.Require(check.In(0).width == check.Out(0).width, "the result must be as wide as x");
}

void CheckShapes(const Plan& plan, const Op& op, const Checker& check) {
  const auto total = [&check](const std::vector<int>& ids, auto part) {
    int64_t sum = 0;
    for (size_t i = 0; i < ids.size(); ++i) sum += (check.*part)(i).width;
    return sum;
  };
  switch (op.kind) {
    case OpKind::kEmbed:
      check.Counts(1, 1, 1, 1);
      check.Require(op.inputs[0] == kTokensValue || (op.inputs[0] == kTokenTypesValue && plan.has_token_types()),
                    "the input must be tokens or token_types");
      check.Require(check.Weight(0).size() == 2 && check.Out(0).width == check.Weight(0)[1],
                    "the table must be [vocab, width]");
      break;
    case OpKind::kLinear:
      check.Counts(1, 1, 1, 2);
      check.Require(
          check.Weight(0).size() == 2 && check.Weight(0)[1] == check.In(0).width && check.Weight(0)[0] == check.Out(0).width,
          "the weight must be [width of the result, width of x]");
      if (op.weights.size() == 2) check.Vector(1, check.Out(0).width, "the bias must be as long as the result is wide");
      break;
    case OpKind::kRmsNorm:
      check.Counts(1, 1, 1, 1);
      check.Require(check.Weight(0).size() == 1 && check.In(0).width % check.Weight(0)[0] == 0,
                    "the width of x must be a multiple of the weight's length");
      check.Require(check.In(0).width == check.Out(0).width, "the result must be as wide as x");
      break;
    case OpKind::kLayerNorm:
      check.Counts(1, 1, 2, 2);
      check.Vector(0, check.In(0).width, "the weight must be as long as x is wide");
      check.Vector(1, check.In(0).width, "the bias must be as long as x is wide");
      check.Require(check.In(0).width == check.Out(0).width, "the result must be as wide as x");
      break;
    case OpKind::kAdd:
    case OpKind::kMul:
    case OpKind::kGatedActivation:
      check.Counts(2, 1, 0, 0);
      check.Require(check.In(0).width == check.In(1).width && check.In(0).width == check.Out(0).width,
                    "inputs and result must be equally wide");
      break;
    case OpKind::kScale:
    case OpKind::kSoftCap:
    case OpKind::kActivation:
    case OpKind::kGatherRows:
      check.Counts(1, 1, 0, 0);
      check.Require(check.In(0).width == check.Out(0).width, "the result must be as wide as x");
      break;
    case OpKind::kRope: CheckRope(plan, op, check); break;
    case OpKind::kSplit:
      check.Counts(1, op.sizes.size(), 0, 0);
      check.Require(!op.sizes.empty() && total(op.outputs, &Checker::Out) == check.In(0).width,
                    "sizes must add up to the width of x");
      for (size_t i = 0; i < op.sizes.size(); ++i)
        check.Require(check.Out(i).width == op.sizes[i], "results must have the sizes");
      break;
    case OpKind::kConcat:
      check.Counts(op.inputs.size(), 1, 0, 0);
      check.Require(op.inputs.size() >= 2 && total(op.inputs, &Checker::In) == check.Out(0).width,
                    "the widths must add up to the result's");
      break;
    case OpKind::kAttention: CheckAttention(plan, op, check); break;
    case OpKind::kEmbedPositions:
      check.Counts(1, 1, 1, 1);
      check.Require(op.inputs[0] == kPositionsValue, "the input must be positions");
      check.Require(check.Weight(0).size() == 2 && check.Out(0).width == check.Weight(0)[1],
                    "the table must be [positions, width]");
      check.Require(op.first_row < check.Weight(0)[0], "the offset must be a row of the table");
      break;
    case OpKind::kPool:
    case OpKind::kL2Norm:
      check.Counts(1, 1, 0, 0);
      check.Require(check.In(0).width == check.Out(0).width, "the result must be as wide as x");
      break;
  }
}

}  // namespace

void CheckOp(const Plan& plan, const Op& op, std::vector<bool>& computed) {
  const Checker check(plan, op);
  for (const int input : op.inputs) check.Require(computed[static_cast<size_t>(input)], "an input is not computed before it");
  CheckShapes(plan, op, check);
  const auto takes_integers = [&op](size_t i) {
    return op.kind == OpKind::kEmbed || op.kind == OpKind::kEmbedPositions || (op.kind == OpKind::kRope && i == 1);
  };
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    check.Require((check.In(i).type == ElementType::kI32) == takes_integers(i), "an input has the wrong element type");
    check.Require(check.In(i).rows == check.In(0).rows, "inputs must have the same rows");
  }
  const bool gathers = op.kind == OpKind::kGatherRows || op.kind == OpKind::kPool;
  const Rows rows = gathers ? Rows::kLogits : check.In(0).rows;
  if (gathers) check.Require(check.In(0).rows == Rows::kTokens, "x must have a row per token");
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const size_t output = static_cast<size_t>(op.outputs[i]);
    check.Require(!computed[output], "a result is computed twice");
    check.Require(check.Out(i).type == ElementType::kF32 && check.Out(i).rows == rows, "a result has the wrong rows or type");
    computed[output] = true;
  }
}

}  // namespace ramet
