// Splits `linear` over rows and panels, and quantises activations before.
#include "ops/linear.h"

#include <algorithm>

#include "core/status.h"

namespace ramet {
namespace {

// Up to this many rows every worker quantises all of them into scratch of its own: 4 rows of 576 take some 0.3 µs, about what a
// barrier costs. From there on rows are shared out and a barrier follows.
constexpr int64_t kPrivateRows = 4;

// Activations that a worker goes through for each panel: half of a 1 MiB L2, which leaves room for panels streaming by.
constexpr int64_t kChunkBytes = 512 << 10;

int64_t ScratchBlocks(int64_t rows, int64_t k) { return ActivationBlocks(rows, k / 32); }

bool AnyQuantised(const LinearArgs& args) {
  for (int i = 0; i < args.num_outputs; ++i) {
    if (GetFormatInfo(args.outputs[i].weight->format).quantised) return true;
  }
  return false;
}

// Returns the quantised rows.
const ActivationBlock* QuantizeRows(const LinearArgs& args, int64_t k, Worker& worker) {
  const MatMulKernels& kernels = args.kernels->matmul;
  auto* scratch = reinterpret_cast<ActivationBlock*>(args.scratch);
  if (args.rows <= kPrivateRows) {
    ActivationBlock* mine = scratch + worker.index() * ScratchBlocks(args.rows, k);
    kernels.quantize_activations(args.x, args.ldx, k, 0, args.rows, args.rows, mine);
    return mine;
  }
  const auto [begin, end] = worker.Split(args.rows, kTileRows);
  if (begin < end) kernels.quantize_activations(args.x, args.ldx, k, begin, end - begin, args.rows, scratch);
  worker.Barrier();
  return scratch;
}

// Rows [row, row + rows) times panels [begin, end) of one output; row is a multiple of kTileRows.
void Multiply(const LinearArgs& args, const LinearOutput& output, const ActivationBlock* activations, int64_t row, int64_t rows,
              int64_t begin, int64_t end) {
  const PackedMatrix& weight = *output.weight;
  const int64_t column = begin * kPanelOutputs;
  MatMulArgs call;
  call.panels = weight.bytes.data() + begin * weight.panel_bytes;
  call.panel_bytes = weight.panel_bytes;
  call.outputs = std::min(end * kPanelOutputs, weight.n) - column;
  call.k = weight.k;
  call.rows = rows;
  call.activations = activations ? activations + row * (weight.k / 32) : nullptr;
  call.x = args.x + row * args.ldx;
  call.ldx = args.ldx;
  call.y = output.y + row * output.ldy + column;
  call.ldy = output.ldy;
  call.bias = output.bias ? output.bias + column : nullptr;
  call.accumulate = output.accumulate;
  args.kernels->matmul.matmul[static_cast<int>(weight.format)](call);
}

}  // namespace

size_t LinearScratchBytes(int64_t rows, int64_t k, int workers) {
  const int64_t private_blocks = workers * ScratchBlocks(std::min(rows, kPrivateRows), k);
  return static_cast<size_t>(std::max(private_blocks, ScratchBlocks(rows, k))) * sizeof(ActivationBlock);
}

void Linear(const LinearArgs& args, Worker& worker) {
  if (args.rows == 0 || args.num_outputs == 0) return;
  const int64_t k = args.outputs[0].weight->k;
  int64_t panels = 0;
  for (int i = 0; i < args.num_outputs; ++i) {
    Check(args.outputs[i].weight->k == k, "matrices that share x have the same k");
    panels += args.outputs[i].weight->panels();
  }
  const ActivationBlock* activations = AnyQuantised(args) ? QuantizeRows(args, k, worker) : nullptr;

  // Panels are shared out; when there are few for the team (some 12 % of imbalance or more), rows are cut in two or more too.
  const int64_t workers = worker.count();
  int64_t row_groups = 1;
  while (panels * row_groups < 8 * workers && args.rows / (row_groups + 1) >= 4 * kTileRows) ++row_groups;
  const int64_t group_rows = ((args.rows + row_groups - 1) / row_groups + kTileRows - 1) / kTileRows * kTileRows;
  const int64_t row_bytes = activations ? k / 32 * static_cast<int64_t>(sizeof(ActivationBlock)) : k * 4;
  const int64_t chunk_rows = std::max(kTileRows, kChunkBytes / std::max<int64_t>(row_bytes, 1) / kTileRows * kTileRows);

  // Units of work: row group after row group, and in each all panels of all outputs.
  const auto [begin, end] = worker.Split(panels * row_groups);
  for (int64_t unit = begin; unit < end;) {
    const int64_t group = unit / panels;
    const int64_t first = unit % panels, last = std::min(first + end - unit, panels);
    const int64_t group_end = std::min((group + 1) * group_rows, args.rows);
    for (int64_t row = group * group_rows; row < group_end; row += chunk_rows) {
      int64_t base = 0;
      for (int i = 0; i < args.num_outputs; ++i) {
        const int64_t count = args.outputs[i].weight->panels();
        const int64_t from = std::max(first - base, int64_t{0}), to = std::min(last - base, count);
        if (from < to) Multiply(args, args.outputs[i], activations, row, std::min(chunk_rows, group_end - row), from, to);
        base += count;
      }
    }
    unit += last - first;
  }
}

}  // namespace ramet
