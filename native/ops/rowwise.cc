#include "ops/rowwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/pool.h"

namespace ramet {
namespace {

// Rows that go through a segment together: at 1,536 floats wide, three values of 8 rows are 150 KB, inside a second-level
// cache.
constexpr int64_t kRowBlock = 8;

// One row of one node.
class RowOp {
 public:
  RowOp(const Node& node, Rows kind, const StepContext& context) : node_(node), op_(*node.op), kind_(kind), context_(context) {}

  void Run(int64_t row) const {
    const RowwiseKernels& kernels = context_.kernels->rowwise;
    switch (node_.kind) {
      case NodeKind::kEmbed: {
        const int32_t* ids = op_.inputs[0] == kTokenTypesValue ? context_.token_types : context_.token_ids;
        UnpackRow(context_.Matrix(op_.weights[0]), ids[row], Out(0, row));
        break;
      }
      case NodeKind::kEmbedPositions:
        UnpackRow(context_.Matrix(op_.weights[0]), context_.positions[row] + op_.first_row, Out(0, row));
        break;
      case NodeKind::kRmsNorm: {
        const int64_t group = context_.plan->weights[static_cast<size_t>(op_.weights[0])].shape[0];
        for (int64_t i = 0; i < Width(node_.inputs[0]); i += group) {
          kernels.rms_norm(In(0, row) + i, context_.Vector(op_.weights[0]), group, op_.eps, op_.offset, Out(0, row) + i);
        }
        break;
      }
      case NodeKind::kLayerNorm:
        kernels.layer_norm(In(0, row), context_.Vector(op_.weights[0]), context_.Vector(op_.weights[1]), Width(node_.inputs[0]),
                           op_.eps, Out(0, row));
        break;
      case NodeKind::kAdd: kernels.add(In(0, row), In(1, row), Width(node_.inputs[0]), Out(0, row)); break;
      case NodeKind::kMul: kernels.mul(In(0, row), In(1, row), Width(node_.inputs[0]), Out(0, row)); break;
      case NodeKind::kScale: kernels.scale(In(0, row), op_.factor, Width(node_.inputs[0]), Out(0, row)); break;
      case NodeKind::kSoftCap: kernels.soft_cap(In(0, row), op_.cap, Width(node_.inputs[0]), Out(0, row)); break;
      case NodeKind::kActivation:
        kernels.activation[static_cast<size_t>(op_.function)](In(0, row), Width(node_.inputs[0]), Out(0, row));
        break;
      case NodeKind::kGatedActivation:
        kernels.gated_activation[static_cast<size_t>(op_.function)](In(0, row), In(1, row), Width(node_.inputs[0]),
                                                                    Out(0, row));
        break;
      case NodeKind::kRopeAngles: Angles(row); break;
      case NodeKind::kRope: Rope(row); break;
      case NodeKind::kSplit: {
        const float* x = In(0, row);
        for (size_t i = 0; i < node_.outputs.size(); ++i) {
          x = Copy(x, Width(node_.outputs[i]), Out(i, row));
        }
        break;
      }
      case NodeKind::kConcat: {
        float* y = Out(0, row);
        for (size_t i = 0; i < node_.inputs.size(); ++i) {
          Copy(In(i, row), Width(node_.inputs[i]), y);
          y += Width(node_.inputs[i]);
        }
        break;
      }
      case NodeKind::kStoreKv:
        context_.cache->Store(static_cast<size_t>(op_.stream), *context_.kernels, context_.rows[row], context_.positions[row],
                              In(0, row), In(1, row));
        break;
      case NodeKind::kGatherRows: {
        const float* x = context_.Base(node_.inputs[0], Rows::kTokens);
        Copy(x + context_.gather[row] * context_.Stride(node_.inputs[0]), Width(node_.inputs[0]), Out(0, row));
        break;
      }
      case NodeKind::kPool: Pool(row); break;
      case NodeKind::kL2Norm: L2Norm(In(0, row), Width(node_.inputs[0]), op_.eps, Out(0, row)); break;
      case NodeKind::kLinear:
      case NodeKind::kAttend: break;  // not row by row: never here
    }
  }

 private:
  int64_t Width(int value) const { return context_.plan->values[static_cast<size_t>(value)].width; }
  const float* In(size_t i, int64_t row) const { return At(node_.inputs[i], row); }
  float* Out(size_t i, int64_t row) const { return At(node_.outputs[i], row); }
  float* At(int value, int64_t row) const { return context_.Base(value, kind_) + row * context_.Stride(value); }

  static const float* Copy(const float* x, int64_t n, float* y) {
    std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
    return x + n;
  }

  // Plans that pool over tokens get whole rows: position 0 of the wanted token's row lies `position` tokens before it.
  void Pool(int64_t row) const {
    const int64_t stride = context_.Stride(node_.inputs[0]);
    const int64_t wanted = context_.gather[row];
    const int64_t first = wanted - (op_.method == PoolMethod::kLast ? 0 : context_.positions[wanted]);
    const float* x = context_.Base(node_.inputs[0], Rows::kTokens) + first * stride;
    const int64_t rows = op_.method == PoolMethod::kMean ? wanted - first + 1 : 1;
    if (rows > 1) {
      MeanOfRows(x, rows, stride, Width(node_.inputs[0]), Out(0, row));
    } else {
      Copy(x, Width(node_.inputs[0]), Out(0, row));
    }
  }

  // Angles in float64: position times frequency, rounded to float32, would be off by whole radians far into a long context.
  void Angles(int64_t row) const {
    const std::vector<double>& frequencies = context_.plan->tables.at(op_.table);
    const size_t half = frequencies.size();
    float* y = Out(0, row);
    for (size_t i = 0; i < half; ++i) {
      const double angle = context_.positions[row] * frequencies[i];
      y[i] = static_cast<float>(std::cos(angle)) * op_.factor;
      y[half + i] = static_cast<float>(std::sin(angle)) * op_.factor;
    }
  }

  void Rope(int64_t row) const {
    const int64_t half = op_.rotary_dim / 2;
    const float* cosines = In(1, row);
    const auto rotate = context_.kernels->rowwise.rope[static_cast<size_t>(op_.style)];
    for (int64_t head = 0; head < op_.heads; ++head) {
      const int64_t at = head * op_.head_dim;
      rotate(In(0, row) + at, cosines, cosines + half, half, op_.head_dim, Out(0, row) + at);
    }
  }

  const Node& node_;
  const Op& op_;
  Rows kind_;
  const StepContext& context_;
};

}  // namespace

void RunRowByRow(const Segment& segment, const StepContext& context, Worker& worker) {
  const Worker::Range range = worker.Split(context.NumRows(segment.rows));
  for (int64_t begin = range.begin; begin < range.end; begin += kRowBlock) {
    const int64_t end = std::min(begin + kRowBlock, range.end);
    for (const Node& node : segment.nodes) {
      const RowOp op(node, segment.rows, context);
      for (int64_t row = begin; row < end; ++row) op.Run(row);
    }
  }
}

}  // namespace ramet
