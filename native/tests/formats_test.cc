// Formats against the gguf package (by hash, golden_formats.py), packing and unpacking, and what packing refuses.
#include "formats/format.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/status.h"
#include "kernels/kernels.h"
#include "ops/linear.h"
#include "tests/random_weights.h"

namespace ramet {
namespace {

int failures = 0;

void Expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

uint64_t Fnv1a(const void* data, size_t size) {
  uint64_t value = 0xcbf29ce484222325u;
  for (size_t i = 0; i < size; ++i) value = (value ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
  return value;
}

struct Golden {
  Format format;
  uint64_t dequantised;  // 2048 weights of RandomWeights(format, 2048, 11 + index of format)
  uint64_t quantised;    // RandomFloats(2048, 77) in this format, if we can make it
};

constexpr Golden kGolden[] = {
    {Format::kF32, 0xb782ffbeeb7db1f9u, 0x0000000000000000u},
    {Format::kF16, 0x3fe56290b441aeaau, 0x0000000000000000u},
    {Format::kBF16, 0x5b831431710dd71cu, 0x0000000000000000u},
    {Format::kQ4_0, 0xc9a17331701a1484u, 0x211a7276759b1580u},
    {Format::kQ4_1, 0x92b62f6d30142c43u, 0x02a572d115e9f2cfu},
    {Format::kQ5_0, 0x7bb10be6bb15c0b2u, 0x66f070c84a17c5d4u},
    {Format::kQ5_1, 0x530735f86c36ddfdu, 0xdbc3ea3211ab09acu},
    {Format::kQ8_0, 0x0a929b32beea655eu, 0xbe06ba95ab2eca72u},
    {Format::kQ2_K, 0x70b32b1b0981b6e4u, 0x0000000000000000u},
    {Format::kQ3_K, 0x945cfa265b04f320u, 0x0000000000000000u},
    {Format::kQ4_K, 0xe2bc256761f3bfbcu, 0x0000000000000000u},
    {Format::kQ5_K, 0x10e7e417cc80eaf5u, 0x0000000000000000u},
    {Format::kQ6_K, 0x3a0d6ef1b0d3d128u, 0x0000000000000000u},
};

void TestGolden() {
  for (const Golden& golden : kGolden) {
    const std::string name(GetFormatInfo(golden.format).name);
    const int64_t elements = 2048;
    const std::vector<uint8_t> file = RandomWeights(golden.format, elements, 11 + static_cast<uint32_t>(golden.format));
    std::vector<float> values(static_cast<size_t>(elements));
    DequantizeRow(golden.format, file.data(), elements, values.data());
    Expect(Fnv1a(values.data(), values.size() * 4) == golden.dequantised, name + ": values differ from the gguf package's");
    const std::vector<float> floats = RandomFloats(elements, 77);
    std::vector<uint8_t> made(FileBytes(golden.format, elements));
    const bool possible = QuantizeRow(golden.format, floats.data(), elements, made.data());
    Expect(possible == (golden.quantised != 0), name + ": wrong answer whether it can be made");
    if (possible) Expect(Fnv1a(made.data(), made.size()) == golden.quantised, name + ": bytes differ from the gguf package's");
  }
}

// Every row unpacked equals the row dequantised, whatever the shape, order and threads.
void TestUnpack(ThreadPool& pool) {
  for (int f = 0; f < kNumFormats; ++f) {
    const Format format = static_cast<Format>(f);
    const FormatInfo& info = GetFormatInfo(format);
    for (const int64_t n : {1, 16, 37}) {
      for (const int64_t blocks : {1, 3}) {
        const int64_t k = blocks * info.block_elements;
        const std::vector<uint8_t> file = RandomWeights(format, n * k, static_cast<uint32_t>(31 + f));
        std::vector<int32_t> order;
        for (int32_t r = 0; r < n; ++r) order.push_back(static_cast<int32_t>(n) - 1 - r);
        for (const bool reorder : {false, true}) {
          const PackedMatrix packed = PackMatrix(
              {.format = format, .n = n, .k = k, .bytes = file.data(), .row_order = reorder ? order.data() : nullptr}, pool);
          std::vector<float> got(static_cast<size_t>(k)), want(static_cast<size_t>(k));
          for (int64_t r = 0; r < n; ++r) {
            UnpackRow(packed, r, got.data());
            const int64_t file_row = reorder ? order[static_cast<size_t>(r)] : r;
            DequantizeRow(format, file.data() + FileBytes(format, k) * static_cast<size_t>(file_row), k, want.data());
            Expect(std::memcmp(got.data(), want.data(), got.size() * 4) == 0,
                   std::string(info.name) + " n=" + std::to_string(n) + ": row " + std::to_string(r) + " changed by packing");
          }
        }
      }
    }
  }
}

// A weight requantised at load equals a file with the requantised bytes.
void TestRequantise(ThreadPool& pool) {
  const int64_t n = 19, k = 96;
  for (const Format from : {Format::kF32, Format::kF16, Format::kBF16}) {
    const std::vector<uint8_t> file = RandomWeights(from, n * k, 3);
    for (const Format to : {Format::kQ4_0, Format::kQ4_1, Format::kQ5_0, Format::kQ5_1, Format::kQ8_0}) {
      std::vector<float> values(static_cast<size_t>(n * k));
      DequantizeRow(from, file.data(), n * k, values.data());
      std::vector<uint8_t> quantised(FileBytes(to, n * k));
      QuantizeRow(to, values.data(), n * k, quantised.data());
      const PackedMatrix a = PackMatrix({.format = from, .n = n, .k = k, .bytes = file.data(), .target = to}, pool);
      const PackedMatrix b = PackMatrix({.format = to, .n = n, .k = k, .bytes = quantised.data()}, pool);
      Expect(a.bytes.size() == b.bytes.size() && std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0,
             std::string(GetFormatInfo(from).name) + " to " + std::string(GetFormatInfo(to).name) + " differs from the file's way");
    }
  }
}

void TestHalf() {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = HalfToFloat(static_cast<uint16_t>(half));
    const bool nan = (half & 0x7fff) > 0x7c00;
    Expect(nan ? std::isnan(value) : FloatToHalf(value) == half, "half " + std::to_string(half) + " does not come back");
    if (!nan && (half & 0x7fff) < 0x7c00) {
      const int exponent = static_cast<int>(half >> 10 & 31), fraction = static_cast<int>(half & 1023);
      const float want = exponent ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25)
                                  : std::ldexp(static_cast<float>(fraction), -24);
      Expect(std::fabs(value) == want, "half " + std::to_string(half) + " reads wrong");
    }
  }
  Expect(FloatToHalf(65519.0f) == 0x7bff && FloatToHalf(65520.0f) == 0x7c00, "the border to infinity");
  Expect(FloatToHalf(1.0f + 0x1p-11f) == 0x3c00 && FloatToHalf(1.0f + 3 * 0x1p-11f) == 0x3c02, "ties go to even");
  Expect(FloatToHalf(0x1p-25f) == 0 && FloatToHalf(0x1.8p-24f) == 2, "subnormal ties go to even");
}

void ExpectRefused(const WeightSource& source, const std::string& part, ThreadPool& pool) {
  try {
    (void)PackMatrix(source, pool);
    Expect(false, "not refused: " + part);
  } catch (const Error& error) {
    Expect(std::string(error.what()).find(part) != std::string::npos, std::string("refused with: ") + error.what());
  }
}

void TestRefusals(ThreadPool& pool) {
  const std::vector<uint8_t> bytes(4096);
  const int32_t order[2] = {0, 2};
  ExpectRefused({.format = Format::kQ4_0, .n = 2, .k = 33, .bytes = bytes.data()}, "whole blocks of 32", pool);
  ExpectRefused({.format = Format::kF32, .n = -1, .k = 32, .bytes = bytes.data()}, "shape", pool);
  ExpectRefused({.format = Format::kF32, .n = 2, .k = 32, .bytes = bytes.data(), .row_order = order}, "row 2", pool);
  ExpectRefused({.format = Format::kQ4_0, .n = 2, .k = 32, .bytes = bytes.data(), .target = Format::kQ8_0},
                "quantised already", pool);
  ExpectRefused({.format = Format::kF32, .n = 2, .k = 32, .bytes = bytes.data(), .target = Format::kQ6_K}, "not to q6_k", pool);
  ExpectRefused({.format = Format::kF32, .n = 2, .k = 40, .bytes = bytes.data(), .target = Format::kQ8_0},
                "cannot become q8_0", pool);
  Format format;
  Expect(ParseFormat("q5_k", &format) && format == Format::kQ5_K && !ParseFormat("q7_0", &format), "names of formats");
}

}  // namespace
}  // namespace ramet

int main() {
  using namespace ramet;
  ThreadPool pool(2);
  TestGolden();
  TestUnpack(pool);
  TestRequantise(pool);
  TestHalf();
  TestRefusals(pool);
  return failures ? 1 : 0;
}
