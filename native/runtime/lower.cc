#include "runtime/lower.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/status.h"

namespace ramet {
namespace {

constexpr int64_t kLineFloats = 16;

// Rows start on cache lines and an odd number of lines apart: at an even distance, such as the 3,072 lines of a vocabulary of
// 49,152, the places that many rows are written to side by side all fall into one set of the caches.
int64_t StrideOf(int64_t width) { return ((width + kLineFloats - 1) / kLineFloats | 1) * kLineFloats; }

bool RowByRow(NodeKind kind) { return kind < NodeKind::kLinear; }

NodeKind KindOf(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed: return NodeKind::kEmbed;
    case OpKind::kLinear: return NodeKind::kLinear;
    case OpKind::kRmsNorm: return NodeKind::kRmsNorm;
    case OpKind::kLayerNorm: return NodeKind::kLayerNorm;
    case OpKind::kAdd: return NodeKind::kAdd;
    case OpKind::kMul: return NodeKind::kMul;
    case OpKind::kScale: return NodeKind::kScale;
    case OpKind::kSoftCap: return NodeKind::kSoftCap;
    case OpKind::kActivation: return NodeKind::kActivation;
    case OpKind::kGatedActivation: return NodeKind::kGatedActivation;
    case OpKind::kRope: return NodeKind::kRope;
    case OpKind::kSplit: return NodeKind::kSplit;
    case OpKind::kConcat: return NodeKind::kConcat;
    case OpKind::kAttention: return NodeKind::kAttend;
    case OpKind::kGatherRows: return NodeKind::kGatherRows;
    case OpKind::kEmbedPositions: return NodeKind::kEmbedPositions;
    case OpKind::kPool: return NodeKind::kPool;
    case OpKind::kL2Norm: return NodeKind::kL2Norm;
  }
  return NodeKind::kAdd;
}

const char* LabelOf(NodeKind kind) {
  constexpr const char* kLabels[] = {
      "embed",       "rms_norm",         "layer_norm",  "add",     "mul",    "scale",  "soft_cap",
      "activation",  "gated_activation", "rope_angles", "rope",    "split",  "concat", "store_kv",
      "gather_rows", "embed_positions",  "pool",        "l2_norm", "linear", "attend"};
  return kLabels[static_cast<size_t>(kind)];
}

// May the result take the place of input 0? The kernel reads an element (rope: a pair) before it writes it.
bool InPlace(NodeKind kind) {
  switch (kind) {
    case NodeKind::kRmsNorm:
    case NodeKind::kLayerNorm:
    case NodeKind::kL2Norm:
    case NodeKind::kAdd:
    case NodeKind::kMul:
    case NodeKind::kScale:
    case NodeKind::kSoftCap:
    case NodeKind::kActivation:
    case NodeKind::kGatedActivation:
    case NodeKind::kRope: return true;
    default: return false;
  }
}

class Lowering {
 public:
  explicit Lowering(const Plan& plan) : plan_(plan) {
    for (const ValueSpec& value : plan.values) {
      widths_.push_back(value.width);
      rows_.push_back(value.rows);
    }
    alias_.resize(widths_.size());
    for (size_t v = 0; v < alias_.size(); ++v) alias_[v] = static_cast<int>(v);
  }

  Program Run() {
    FindUses();
    EmitNodes(Rows::kTokens);
    FormSegments(Rows::kTokens);
    program_.first_logits_segment = program_.segments.size();
    EmitNodes(Rows::kLogits);
    FormSegments(Rows::kLogits);
    PlaceValues();
    return std::move(program_);
  }

 private:
  Rows RowsOf(const Op& op) const { return rows_[static_cast<size_t>(op.outputs[0])]; }

  void FindUses() {
    uses_.assign(widths_.size(), 0);
    last_use_.assign(widths_.size(), 0);
    for (size_t i = 0; i < plan_.ops.size(); ++i) {
      for (const int input : plan_.ops[i].inputs) {
        ++uses_[static_cast<size_t>(input)];
        // Operations on logits rows run after all others, wherever the plan has them.
        const size_t when = RowsOf(plan_.ops[i]) == Rows::kLogits ? plan_.ops.size() : i;
        last_use_[static_cast<size_t>(input)] = std::max(last_use_[static_cast<size_t>(input)], when);
      }
    }
    ++uses_[static_cast<size_t>(plan_.logits)];
    last_use_[static_cast<size_t>(plan_.logits)] = plan_.ops.size();
  }

  void EmitNodes(Rows rows) {
    nodes_.clear();
    std::vector<bool> done(plan_.ops.size(), false);
    for (size_t i = 0; i < plan_.ops.size(); ++i) {
      const Op& op = plan_.ops[i];
      if (done[i] || RowsOf(op) != rows) continue;
      switch (op.kind) {
        case OpKind::kLinear: EmitLinear(i, done); break;
        case OpKind::kAttention:
          nodes_.push_back({NodeKind::kStoreKv, &op, {op.inputs[1], op.inputs[2]}, {}, {}});
          nodes_.push_back({NodeKind::kAttend, &op, {op.inputs[0]}, op.outputs, {}});
          break;
        case OpKind::kRope: nodes_.push_back({NodeKind::kRope, &op, {op.inputs[0], AnglesOf(op)}, op.outputs, {}}); break;
        default: nodes_.push_back({KindOf(op.kind), &op, op.inputs, op.outputs, {}});
      }
    }
  }

  // Cosines and sines depend on table and factor only: computed once a step, before the first rope that needs them.
  int AnglesOf(const Op& op) {
    const auto key = std::make_pair(op.table, op.factor);
    const auto found = angles_.find(key);
    if (found != angles_.end()) return found->second;
    const int value = static_cast<int>(widths_.size());
    widths_.push_back(op.rotary_dim);
    rows_.push_back(Rows::kTokens);
    alias_.push_back(value);
    angles_[key] = value;
    nodes_.push_back({NodeKind::kRopeAngles, &op, {}, {value}, {}});
    return value;
  }

  void EmitLinear(size_t i, std::vector<bool>& done) {
    const Op& op = plan_.ops[i];
    Node node{NodeKind::kLinear, &op, op.inputs, {}, {}};
    for (size_t j = i; j < plan_.ops.size() && node.parts.size() < 3; ++j) {
      const Op& other = plan_.ops[j];
      if (other.kind != OpKind::kLinear || other.inputs != op.inputs) continue;
      done[j] = true;
      node.parts.push_back({other.weights[0], other.weights.size() > 1 ? other.weights[1] : -1, other.outputs[0], false});
      node.outputs.push_back(other.outputs[0]);
    }
    if (node.parts.size() == 1) FuseResidual(i, node, done);
    nodes_.push_back(std::move(node));
  }

  // x + linear(h), both over tokens, straight after the linear, with nothing left to read x: the linear adds its result to x.
  void FuseResidual(size_t i, Node& node, std::vector<bool>& done) {
    if (i + 1 >= plan_.ops.size()) return;
    const Op& add = plan_.ops[i + 1];
    const int y = node.outputs[0];
    if (add.kind != OpKind::kAdd || RowsOf(add) != Rows::kTokens || uses_[static_cast<size_t>(y)] != 1) return;
    if (add.inputs[0] != y && add.inputs[1] != y) return;
    const int x = add.inputs[0] == y ? add.inputs[1] : add.inputs[0];
    if (last_use_[static_cast<size_t>(x)] != i + 1 || x == node.inputs[0]) return;
    done[i + 1] = true;
    node.parts[0].output = add.outputs[0];
    node.parts[0].accumulate = true;
    node.inputs.push_back(x);
    node.outputs[0] = add.outputs[0];
    alias_[static_cast<size_t>(add.outputs[0])] = x;
  }

  void FormSegments(Rows rows) {
    for (Node& node : nodes_) {
      const bool row_by_row = RowByRow(node.kind);
      const size_t first = rows == Rows::kTokens ? 0 : program_.first_logits_segment;
      const bool join = row_by_row && program_.segments.size() > first && program_.segments.back().row_by_row;
      if (!join) program_.segments.push_back({rows, row_by_row, {}, ""});
      Segment& segment = program_.segments.back();
      const std::string label = LabelOf(node.kind);
      if (!segment.label.ends_with(label)) segment.label += (segment.label.empty() ? "" : "+") + label;
      segment.nodes.push_back(std::move(node));
    }
  }

  int Root(int value) const {
    while (alias_[static_cast<size_t>(value)] != value) value = alias_[static_cast<size_t>(value)];
    return value;
  }

  // Results that may overwrite an input that nobody reads later do.
  void ShareInPlace() {
    std::map<int, int> readers_left;
    for (const Segment& segment : program_.segments) {
      for (const Node& node : segment.nodes) {
        for (const int input : node.inputs) ++readers_left[input];
      }
    }
    ++readers_left[plan_.logits];
    for (const Segment& segment : program_.segments) {
      for (const Node& node : segment.nodes) {
        for (const int input : node.inputs) --readers_left[input];
        if (!InPlace(node.kind)) continue;
        const int x = node.inputs[0];
        const int y = node.outputs[0];
        const bool same = rows_[static_cast<size_t>(x)] == rows_[static_cast<size_t>(y)] &&
                          widths_[static_cast<size_t>(x)] == widths_[static_cast<size_t>(y)];
        if (same && readers_left[x] == 0) alias_[static_cast<size_t>(y)] = x;
      }
    }
  }

  // First fit over lifetimes counted in segments: inside a row-by-row segment workers are at different operations, so a place
  // must not serve two values of one segment.
  void PlaceValues() {
    ShareInPlace();
    struct Life {
      int value;
      size_t begin;
      size_t end;
    };
    std::map<int, Life> lives;
    const auto touch = [&](int value, size_t segment) {
      if (value < static_cast<int>(plan_.values.size()) && plan_.values[static_cast<size_t>(value)].type == ElementType::kI32)
        return;
      const int root = Root(value);
      Life& life = lives.try_emplace(root, Life{root, segment, segment}).first->second;
      life.end = std::max(life.end, segment);
    };
    for (size_t s = 0; s < program_.segments.size(); ++s) {
      for (const Node& node : program_.segments[s].nodes) {
        for (const int output : node.outputs) touch(output, s);
        for (const int input : node.inputs) {
          // Logits segments run many times, once a chunk: what they read of the tokens must outlive them all.
          const bool kept = program_.segments[s].rows == Rows::kLogits && rows_[static_cast<size_t>(input)] == Rows::kTokens;
          touch(input, kept ? program_.segments.size() : s);
        }
      }
    }
    touch(plan_.logits, program_.segments.size());

    program_.places.assign(widths_.size(), {});
    std::vector<Life> order;
    for (const auto& [root, life] : lives) order.push_back(life);
    std::sort(order.begin(), order.end(),
              [](const Life& a, const Life& b) { return a.begin != b.begin ? a.begin < b.begin : a.value < b.value; });
    std::vector<Life> placed;
    for (const Life& life : order) {
      const size_t v = static_cast<size_t>(life.value);
      const int64_t width = StrideOf(widths_[v]);
      std::vector<std::pair<int64_t, int64_t>> taken;
      for (const Life& other : placed) {
        const size_t o = static_cast<size_t>(other.value);
        if (rows_[o] == rows_[v] && other.begin <= life.end && life.begin <= other.end) {
          taken.emplace_back(program_.places[o].offset, program_.places[o].offset + program_.places[o].stride);
        }
      }
      std::sort(taken.begin(), taken.end());
      int64_t offset = 0;
      for (const auto& [from, to] : taken) {
        if (offset + width <= from) break;
        offset = std::max(offset, to);
      }
      program_.places[v] = {offset, width};
      placed.push_back(life);
      int64_t& total = rows_[v] == Rows::kTokens ? program_.token_floats : program_.logits_floats;
      total = std::max(total, offset + width);
    }
    for (size_t v = 0; v < widths_.size(); ++v)
      program_.places[v] = program_.places[static_cast<size_t>(Root(static_cast<int>(v)))];
  }

  const Plan& plan_;
  Program program_;
  std::vector<int64_t> widths_;
  std::vector<Rows> rows_;
  std::vector<int> alias_;  // value -> the value whose place it has
  std::vector<int> uses_;
  std::vector<size_t> last_use_;  // index of the op
  std::vector<Node> nodes_;
  std::map<std::pair<std::string, float>, int> angles_;
};

}  // namespace

Program Lower(const Plan& plan) { return Lowering(plan).Run(); }

}  // namespace ramet
