#include "runtime/packed_weights.h"

#include <map>
#include <sstream>

#include "core/status.h"
#include "formats/format.h"

namespace ramet {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  for (size_t i = 0; i < shape.size(); ++i) text << (i ? ", " : "[") << shape[i];
  text << "]";
  return text.str();
}

Format FormatOf(const std::string& name, const std::string& weight) {
  Format format;
  if (!ParseFormat(name, &format)) Raise("weight ", weight, ": unknown format \"", name, "\"");
  return format;
}

std::vector<float> UnpackVector(const NamedWeight& weight, Format format) {
  const int64_t n = weight.shape[0];
  std::vector<float> file(static_cast<size_t>(n));
  DequantizeRow(format, weight.bytes.data(), n, file.data());
  if (weight.row_order.empty()) return file;
  std::vector<float> ordered(file.size());
  for (size_t i = 0; i < ordered.size(); ++i) {
    const int32_t from = weight.row_order[i];
    if (from < 0 || from >= n) Raise("weight ", weight.name, ": its row order names row ", from, " of ", n);
    ordered[i] = file[static_cast<size_t>(from)];
  }
  return ordered;
}

PackedMatrix Pack(const NamedWeight& weight, Format format, ThreadPool& pool) {
  WeightSource source;
  source.format = format;
  source.n = weight.shape[0];
  source.k = weight.shape[1];
  source.bytes = weight.bytes.data();
  if (!weight.row_order.empty()) source.row_order = weight.row_order.data();
  if (!weight.target_format.empty() && weight.target_format != weight.format) {
    source.target = FormatOf(weight.target_format, weight.name);
  }
  return PackMatrix(source, pool);
}

void CheckWeight(const NamedWeight& weight, const WeightSpec& spec, Format format) {
  if (weight.shape != spec.shape) {
    Raise("weight ", weight.name, ": is ", ShapeText(weight.shape), " but the plan wants ", ShapeText(spec.shape));
  }
  const int64_t block = GetFormatInfo(format).block_elements;
  if (weight.shape.back() % block != 0) {
    Raise("weight ", weight.name, " ", ShapeText(weight.shape), ": rows of ", weight.format, " are multiples of ", block);
  }
  const size_t rows = weight.shape.size() == 2 ? static_cast<size_t>(weight.shape[0]) : 1;
  const size_t wanted = rows * FileBytes(format, weight.shape.back());
  if (weight.bytes.size() != wanted) {
    Raise("weight ", weight.name, " ", ShapeText(weight.shape), ": has ", weight.bytes.size(), " bytes where ", weight.format,
          " needs ", wanted);
  }
  if (!weight.row_order.empty() && weight.row_order.size() != static_cast<size_t>(weight.shape[0])) {
    Raise("weight ", weight.name, " ", ShapeText(weight.shape), ": its row order has ", weight.row_order.size(), " entries");
  }
}

}  // namespace

int64_t PackedWeights::bytes() const {
  size_t sum = 0;
  for (const PackedMatrix& matrix : matrices) sum += matrix.bytes.size();
  for (const std::vector<float>& vector : vectors) sum += vector.size() * sizeof(float);
  return static_cast<int64_t>(sum);
}

PackedWeights PackWeights(const Plan& plan, const std::vector<NamedWeight>& weights, ThreadPool& pool) {
  std::map<std::string, const NamedWeight*> by_name;
  for (const NamedWeight& weight : weights) {
    if (!by_name.emplace(weight.name, &weight).second) Raise("weight ", weight.name, ": given twice");
  }
  std::string missing;
  std::map<std::string, const NamedWeight*> left_over = by_name;
  for (const WeightSpec& spec : plan.weights) {
    if (!by_name.contains(spec.name)) missing += (missing.empty() ? "" : ", ") + spec.name;
    left_over.erase(spec.name);
  }
  if (!missing.empty()) Raise("weights that the plan wants are missing: ", missing);
  if (!left_over.empty()) {
    std::string names;
    for (const auto& [name, weight] : left_over) names += (names.empty() ? "" : ", ") + name;
    Raise("weights that the plan does not want are left over: ", names);
  }
  PackedWeights packed;
  packed.matrices.resize(plan.weights.size());
  packed.vectors.resize(plan.weights.size());
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    const NamedWeight& weight = *by_name.at(plan.weights[i].name);
    const Format format = FormatOf(weight.format, weight.name);
    CheckWeight(weight, plan.weights[i], format);
    if (weight.shape.size() == 2) {
      packed.matrices[i] = Pack(weight, format, pool);
    } else {
      packed.vectors[i] = UnpackVector(weight, format);
    }
  }
  return packed;
}

}  // namespace ramet
