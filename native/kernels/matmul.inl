// Bodies of MatMulKernels, compiled once per tier.
//
// Loop order: panel, tile of rows, k. A panel (5.8 kB for q4_1 at k = 576) stays in L1 while tiles of activations (6.9 kB)
// stream past it from L2; ops/linear.cc cuts rows so that all tiles together fit L2. Sums never leave registers.
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "kernels/matmul_kernels.h"
#include "kernels/panel.h"

namespace ramet {
namespace {
namespace matmul {

#include "kernels/dot_simd.h"
#include "kernels/quant.inl"

// y[row][column ...] from one part's sums.
inline void Store(const MatMulArgs& args, int64_t row, int64_t column, Floats sums) {
  float* y = args.y + row * args.ldy + column;
  const int64_t count = args.outputs - column;
  if (count >= kLanes) {
    if (args.bias) sums = Add(sums, LoadFloats(args.bias + column));
    if (args.accumulate) sums = Add(LoadFloats(y), sums);
    StoreFloats(y, sums);
    return;
  }
  float lanes[kLanes];
  StoreFloats(lanes, sums);
  for (int64_t i = 0; i < count; ++i) {
    float value = lanes[i];
    if (args.bias) value += args.bias[column + i];
    y[i] = args.accumulate ? y[i] + value : value;
  }
}

// The 8 groups of a block as unsigned codes; `codes` points at the part's first byte of the block's low bits.
template <Format kFormat>
inline void UnpackCodes(const uint8_t* codes, Bytes* w) {
  constexpr PanelLayout kLayout = kPanelLayouts[static_cast<int>(kFormat)];
  constexpr int kLow = kLayout.low_bits, kHigh = kLayout.high_bits;
  if constexpr (kLow == 8) {
    RAMET_UNROLL
    for (int g = 0; g < 8; ++g) w[g] = LoadBytes(codes + 64 * g);
  } else if constexpr (kLow == 4) {
    RAMET_UNROLL
    for (int v = 0; v < 4; ++v) {
      const Bytes both = LoadBytes(codes + 64 * v);
      w[v] = AndBytes(both, 15);
      w[v + 4] = AndBytes(ShiftRight<4>(both), 15);
    }
  } else {
    RAMET_UNROLL
    for (int v = 0; v < 2; ++v) {
      const Bytes four = LoadBytes(codes + 64 * v);
      w[4 * v] = AndBytes(four, 3);
      w[4 * v + 1] = AndBytes(ShiftRight<2>(four), 3);
      w[4 * v + 2] = AndBytes(ShiftRight<4>(four), 3);
      w[4 * v + 3] = AndBytes(ShiftRight<6>(four), 3);
    }
  }
  const uint8_t* high = codes + 64 * kLow;
  if constexpr (kHigh == 1) {
    const Bytes bits = LoadBytes(high);
    constexpr uint8_t kBit = 1 << kLow;
    w[0] = OrBytes(w[0], AndBytes(ShiftLeft<kLow>(bits), kBit));
    w[1] = OrBytes(w[1], AndBytes(ShiftLeft<kLow - 1>(bits), kBit));
    w[2] = OrBytes(w[2], AndBytes(kLow == 4 ? ShiftLeft<kLow == 4 ? 2 : 0>(bits) : bits, kBit));
    w[3] = OrBytes(w[3], AndBytes(kLow == 4 ? ShiftLeft<1>(bits) : ShiftRight<1>(bits), kBit));
    w[4] = OrBytes(w[4], AndBytes(ShiftRight<4 - kLow>(bits), kBit));
    w[5] = OrBytes(w[5], AndBytes(ShiftRight<5 - kLow>(bits), kBit));
    w[6] = OrBytes(w[6], AndBytes(ShiftRight<6 - kLow>(bits), kBit));
    w[7] = OrBytes(w[7], AndBytes(ShiftRight<7 - kLow>(bits), kBit));
  } else if constexpr (kHigh == 2) {
    RAMET_UNROLL
    for (int v = 0; v < 2; ++v) {
      const Bytes four = LoadBytes(high + 64 * v);
      w[4 * v] = OrBytes(w[4 * v], AndBytes(ShiftLeft<4>(four), 0x30));
      w[4 * v + 1] = OrBytes(w[4 * v + 1], AndBytes(ShiftLeft<2>(four), 0x30));
      w[4 * v + 2] = OrBytes(w[4 * v + 2], AndBytes(four, 0x30));
      w[4 * v + 3] = OrBytes(w[4 * v + 3], AndBytes(ShiftRight<2>(four), 0x30));
    }
  }
}

// Adds 32 elements of k to the sums of kRows rows. `d` and `dmin` are the super-block's scales where the format has them.
//
// AVX-512, kRows = 8, q4_1: 8 registers of codes, 8 of sums, 2 of scales, the rest for integer sums in flight. Per row: 8 vpdpbusd,
// 1 multiply, 2 fused multiply-adds on the two multiply pipes = 5.5 cycles for 512 multiply-adds; convert and add go elsewhere, and
// 10 broadcast loads take 5 cycles. The two chains of 4 vpdpbusd (4 cycles each) of 8 rows are independent, so latency is hidden.
template <Format kFormat, int kRows>
inline void AddBlock(const uint8_t* block, int part, Floats d, Floats dmin, const ActivationBlock* a, Floats* sums) {
  constexpr PanelLayout kLayout = kPanelLayouts[static_cast<int>(kFormat)];
  constexpr int kMaxCode = (1 << (kLayout.low_bits + kLayout.high_bits)) - 1;
  constexpr int kZero = kLayout.zero;
  Bytes w[8];
  UnpackCodes<kFormat>(block + part * 4 * kLanes, w);
  const uint8_t* scales = block + 64 * (kLayout.low_bits + kLayout.high_bits);

  if constexpr (kLayout.kind == ScaleKind::kScale) {
    const Floats scale = LoadHalfs(scales + part * 2 * kLanes);
    RAMET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Floats dot = ToFloats(Dot32<kMaxCode, kZero>(w, a[r].codes, a[r].sums));
      sums[r] = MulAdd(Mul(dot, scale), Splat(a[r].scale), sums[r]);
    }
  } else if constexpr (kLayout.kind == ScaleKind::kScaleMin || kLayout.kind == ScaleKind::kSuper32Min) {
    Floats scale, min;
    if constexpr (kLayout.kind == ScaleKind::kScaleMin) {
      scale = LoadHalfs(scales + part * 2 * kLanes);
      min = LoadHalfs(scales + 32 + part * 2 * kLanes);
    } else {
      scale = Mul(d, ToFloats(LoadUnsigned8(scales + part * kLanes)));
      min = Mul(dmin, ToFloats(LoadUnsigned8(scales + 16 + part * kLanes)));  // dmin is negated
    }
    RAMET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Floats dot = ToFloats(Dot32<kMaxCode, 0>(w, a[r].codes, a[r].sums));
      sums[r] = MulAdd(Mul(dot, scale), Splat(a[r].scale), sums[r]);
      sums[r] = MulAdd(min, Splat(a[r].scaled_sum), sums[r]);
    }
  } else if constexpr (kLayout.kind == ScaleKind::kSuper16) {
    // |dot| <= 32 · 127 · 16, times 128, twice: 17 M, far inside 32 bits.
    const Ints s0 = LoadSigned8(scales + part * kLanes), s1 = LoadSigned8(scales + 16 + part * kLanes);
    RAMET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Ints dot0 = Dot16<kMaxCode, kZero>(w, a[r].codes, a[r].sums[0]);
      const Ints dot1 = Dot16<kMaxCode, kZero>(w + 4, a[r].codes + 16, a[r].sums[1]);
      const Floats dot = ToFloats(AddInts(MulInts(dot0, s0), MulInts(dot1, s1)));
      sums[r] = MulAdd(Mul(dot, d), Splat(a[r].scale), sums[r]);
    }
  } else {
    static_assert(kLayout.kind == ScaleKind::kSuper16Min);
    const Ints sm0 = LoadUnsigned8(scales + part * kLanes), sm1 = LoadUnsigned8(scales + 16 + part * kLanes);
    const Ints s0 = LowNibbles(sm0), s1 = LowNibbles(sm1);
    const Ints m0 = HighNibbles(sm0), m1 = HighNibbles(sm1);
    RAMET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Ints dot0 = Dot16<kMaxCode, 0>(w, a[r].codes, 0);
      const Ints dot1 = Dot16<kMaxCode, 0>(w + 4, a[r].codes + 16, 0);
      const Floats dot = ToFloats(AddInts(MulInts(dot0, s0), MulInts(dot1, s1)));
      const Floats min = ToFloats(AddInts(MulInts(m0, SplatInt(a[r].sums[0])), MulInts(m1, SplatInt(a[r].sums[1]))));
      sums[r] = MulAdd(MulAdd(min, dmin, Mul(dot, d)), Splat(a[r].scale), sums[r]);  // dmin is negated
    }
  }
}

// How far ahead of few rows a weight is asked for. Left to the hardware's prefetcher, one thread reads q4_1 at 34 to 38 GB/s and
// q8_0 at 33; with 8 kB 41 and 41, two threads reach 72 GB/s (Zen 5). From 8 rows on arithmetic takes longer than memory, if memory
// works meanwhile: the tiles of a panel share out asking for the next panel (one thread, weights out of memory: 32 rows of q4_1 510
// to 675 GOP/s, of q8_0 406 to 660; 8 rows 517 to 628 and 274 to 600).
constexpr int kPrefetchBytes = 8192;

// The same for f16 and bf16, whose few rows read four panels side by side: 33 GB/s instead of 28. f32 asks for a line with every
// load already (47 GB/s) and would lose 4.
constexpr int kPrefetchPerStream = 2048;

// One panel and one tile of rows: rows row .. row + valid, padded to kRows in `a`.
template <Format kFormat, int kRows>
inline void QuantTile(const MatMulArgs& args, const uint8_t* panel, const ActivationBlock* a, int64_t row, int64_t valid,
                      int64_t column) {
  constexpr PanelLayout kLayout = kPanelLayouts[static_cast<int>(kFormat)];
  constexpr int kBlocks = kLayout.elements / 32;
  constexpr int kBlockBytes = 64 * (kLayout.low_bits + kLayout.high_bits) + kLayout.scale_bytes;
  const int64_t ahead = args.panel_bytes + 64 * (row / kTileRows), ahead_step = 64 * ((args.rows + kTileRows - 1) / kTileRows);
  for (int part = 0; part < kParts; ++part) {
    Floats sums[kRows];
    RAMET_UNROLL
    for (int r = 0; r < kRows; ++r) sums[r] = ZeroFloats();
    const uint8_t* p = panel;
    const ActivationBlock* ap = a;
    for (int64_t left = args.k; left > 0; left -= kLayout.elements) {
      Floats d = ZeroFloats(), dmin = ZeroFloats();
      if constexpr (kLayout.header_bytes > 0) d = LoadHalfs(p + part * 2 * kLanes);
      if constexpr (kLayout.header_bytes > 32) dmin = Mul(LoadHalfs(p + 32 + part * 2 * kLanes), Splat(-1.0f));
      p += kLayout.header_bytes;
      for (int b = 0; b < kBlocks; ++b) {
        if constexpr (kRows <= 4) {
          for (int line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(p + kPrefetchBytes + line);
        } else {
          for (int64_t line = ahead; line < args.panel_bytes + kBlockBytes; line += ahead_step) __builtin_prefetch(p + line);
        }
        AddBlock<kFormat, kRows>(p, part, d, dmin, ap, sums);
        p += kBlockBytes;
        ap += kRows;
      }
    }
    RAMET_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (r < valid) Store(args, row + r, column + part * kLanes, sums[r]);
    }
  }
}

template <Format kFormat>
inline void QuantMatMul(const MatMulArgs& args) {
  const int64_t blocks = args.k / 32;
  const uint8_t* panel = args.panels;
  for (int64_t column = 0; column < args.outputs; column += kPanelOutputs, panel += args.panel_bytes) {
    for (int64_t row = 0; row < args.rows; row += kTileRows) {
      const int64_t valid = args.rows - row < kTileRows ? args.rows - row : kTileRows;
      const ActivationBlock* a = args.activations + row * blocks;
      switch (PaddedTileRows(valid)) {
        case 1: QuantTile<kFormat, 1>(args, panel, a, row, valid, column); break;
        case 2: QuantTile<kFormat, 2>(args, panel, a, row, valid, column); break;
        case 4: QuantTile<kFormat, 4>(args, panel, a, row, valid, column); break;
        default: QuantTile<kFormat, 8>(args, panel, a, row, valid, column); break;
      }
    }
  }
}

template <Format kFormat>
inline Floats LoadWeights(const uint8_t* panel, int64_t index) {
  if constexpr (kFormat == Format::kF32) {
    return LoadFloats(reinterpret_cast<const float*>(panel) + index);
  } else if constexpr (kFormat == Format::kF16) {
    return LoadHalfs(panel + 2 * index);
  } else {
    return LoadBfloats(panel + 2 * index);
  }
}

// kPanels panels and a tile of rows, activations in f32. An element's sum is one chain of fused multiply-adds (4 cycles each),
// so kPanels · kRows = 8 chains are needed to keep two multiply pipes busy: few rows take several panels at once. Many rows do
// where registers allow, so that a broadcast activation serves several multiply-adds.
template <Format kFormat, int kRows, int kPanels>
inline void FloatTile(const MatMulArgs& args, const uint8_t* panel, int64_t row, int64_t valid, int64_t column) {
  constexpr int kStep = 2 * kPanelLayouts[static_cast<int>(kFormat)].low_bits;  // bytes of a panel for one k
  // As in QuantTile, the row tiles share out asking for the panels that come next.
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows, ahead_step = kPanels * kStep / tiles;
  const uint8_t* ahead = panel + kPanels * args.panel_bytes + row / kTileRows * ahead_step * args.k;
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = args.x + (row + (r < valid ? r : 0)) * args.ldx;
  for (int part = 0; part < kParts; ++part) {
    Floats sums[kPanels][kRows];
    RAMET_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      RAMET_UNROLL
      for (int r = 0; r < kRows; ++r) sums[p][r] = ZeroFloats();
    }
    for (int64_t i = 0; i < args.k; ++i) {
      if constexpr (kRows == kTileRows) {
        __builtin_prefetch(ahead);
        ahead += ahead_step;
      }
      Floats w[kPanels];
      RAMET_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* weights = panel + p * args.panel_bytes;
        if constexpr (kRows <= 4 && kStep == 32) __builtin_prefetch(weights + i * kStep + kPrefetchPerStream);
        w[p] = LoadWeights<kFormat>(weights, i * kPanelOutputs + part * kLanes);
      }
      RAMET_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Floats activation = Splat(x[r][i]);
        RAMET_UNROLL
        for (int p = 0; p < kPanels; ++p) sums[p][r] = MulAdd(w[p], activation, sums[p][r]);
      }
    }
    RAMET_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      RAMET_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (r < valid) Store(args, row + r, column + p * kPanelOutputs + part * kLanes, sums[p][r]);
      }
    }
  }
}

template <Format kFormat, int kPanels>
inline void FloatPanels(const MatMulArgs& args, const uint8_t* panel, int64_t column) {
  for (int64_t row = 0; row < args.rows; row += kTileRows) {
    const int64_t valid = args.rows - row < kTileRows ? args.rows - row : kTileRows;
    switch (PaddedTileRows(valid)) {
      case 1: FloatTile<kFormat, 1, kPanels>(args, panel, row, valid, column); break;
      case 2: FloatTile<kFormat, 2, kPanels>(args, panel, row, valid, column); break;
      case 4: FloatTile<kFormat, 4, kPanels>(args, panel, row, valid, column); break;
      default:
        if constexpr (kPanels <= kManyRowsPanels) FloatTile<kFormat, 8, kPanels>(args, panel, row, valid, column);
    }
  }
}

template <Format kFormat>
inline void FloatMatMul(const MatMulArgs& args) {
  const uint8_t* panel = args.panels;
  int64_t column = 0;
  const auto take = [&]<int kPanels>() {
    for (; column + (kPanels - 1) * kPanelOutputs < args.outputs; column += kPanels * kPanelOutputs) {
      FloatPanels<kFormat, kPanels>(args, panel, column);
      panel += kPanels * args.panel_bytes;
    }
  };
  if (args.rows <= 4) {
    take.template operator()<4>();
  } else {
    take.template operator()<kManyRowsPanels>();
  }
  for (; column < args.outputs; column += kPanelOutputs, panel += args.panel_bytes) FloatPanels<kFormat, 1>(args, panel, column);
}

}  // namespace matmul

constexpr MatMulKernels kMatMulKernels = {
    matmul::QuantizeActivations,
    {
        matmul::FloatMatMul<Format::kF32>, matmul::FloatMatMul<Format::kF16>, matmul::FloatMatMul<Format::kBF16>,
        matmul::QuantMatMul<Format::kQ4_0>, matmul::QuantMatMul<Format::kQ4_1>, matmul::QuantMatMul<Format::kQ5_0>,
        matmul::QuantMatMul<Format::kQ5_1>, matmul::QuantMatMul<Format::kQ8_0>, matmul::QuantMatMul<Format::kQ2_K>,
        matmul::QuantMatMul<Format::kQ3_K>, matmul::QuantMatMul<Format::kQ4_K>, matmul::QuantMatMul<Format::kQ5_K>,
        matmul::QuantMatMul<Format::kQ6_K>,
    },
};

}  // namespace
}  // namespace ramet
