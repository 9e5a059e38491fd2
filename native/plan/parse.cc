#include <cmath>
#include <initializer_list>
#include <limits>

#include "core/status.h"
#include "plan/check.h"
#include "plan/json.h"
#include "plan/plan.h"

namespace ramet {
namespace {

constexpr int64_t kMaxDim = int64_t{1} << 28;  // products of two stay far from overflow

constexpr std::string_view kOpNames[] = {"embed",  "linear",    "rms_norm",    "layer_norm",       "add",  "mul",
                                         "scale",  "soft_cap",  "activation",  "gated_activation", "rope", "split",
                                         "concat", "attention", "gather_rows", "embed_positions",  "pool", "l2_norm"};
constexpr std::string_view kActivationNames[] = {"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh"};
constexpr std::string_view kStyleNames[] = {"half", "interleaved"};
constexpr std::string_view kPoolNames[] = {"cls", "last", "mean"};

template <size_t N>
int IndexOf(const std::string_view (&names)[N], const std::string& name, const std::string& what) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<int>(i);
  }
  Raise(what, ": unknown \"", name, "\"");
}

// One object of the document: every key it has must be asked for, every key asked for must be there.
class Fields {
 public:
  Fields(const Json& object, std::string what, std::initializer_list<std::string_view> keys)
      : object_(object), what_(std::move(what)) {
    if (object.kind != Json::Kind::kObject) Raise(what_, ": not an object");
    for (const auto& [key, value] : object.members) {
      bool known = false;
      for (const std::string_view name : keys) known |= name == key;
      if (!known) Raise(what_, ": unknown key \"", key, "\"");
    }
  }

  const Json& Get(std::string_view key, Json::Kind kind) const {
    const Json* value = object_.Find(key);
    if (!value) Raise(what_, ": \"", key, "\" is missing");
    if (value->kind != kind) Raise(what_, ": \"", key, "\" is of a wrong type");
    return *value;
  }

  const std::string& Text(std::string_view key) const { return Get(key, Json::Kind::kText).text; }
  const std::vector<Json>& Array(std::string_view key) const { return Get(key, Json::Kind::kArray).items; }

  int64_t Integer(std::string_view key, int64_t min, int64_t max = kMaxDim) const {
    const int64_t value = Get(key, Json::Kind::kInteger).integer;
    if (value < min || value > max) Raise(what_, ": \"", key, "\" is ", value, ", not in ", min, " to ", max);
    return value;
  }

  float Number(std::string_view key, double min = -std::numeric_limits<double>::max()) const {
    const Json* value = object_.Find(key);
    if (!value) Raise(what_, ": \"", key, "\" is missing");
    if (value->kind != Json::Kind::kInteger && value->kind != Json::Kind::kNumber) {
      Raise(what_, ": \"", key, "\" is of a wrong type");
    }
    const float number = static_cast<float>(value->number);
    if (!std::isfinite(number) || value->number < min) Raise(what_, ": \"", key, "\" is ", value->number, ", out of range");
    return number;
  }

  std::vector<int64_t> Integers(std::string_view key, int64_t min, int64_t max) const {
    std::vector<int64_t> out;
    for (const Json& item : Array(key)) {
      if (item.kind != Json::Kind::kInteger || item.integer < min || item.integer > max) {
        Raise(what_, ": \"", key, "\" must hold whole numbers in ", min, " to ", max);
      }
      out.push_back(item.integer);
    }
    return out;
  }

  std::vector<int> Indices(std::string_view key, size_t count) const {
    std::vector<int> out;
    for (const int64_t index : Integers(key, 0, static_cast<int64_t>(count) - 1)) out.push_back(static_cast<int>(index));
    return out;
  }

  void RequireId(size_t index) const {
    if (Integer("id", 0) != static_cast<int64_t>(index)) Raise(what_, ": its id is not its place, ", index);
  }

 private:
  const Json& object_;
  std::string what_;
};

ValueSpec ParseValue(const Json& json, size_t index) {
  const Fields fields(json, "value " + std::to_string(index), {"id", "name", "rows", "width", "dtype"});
  fields.RequireId(index);
  ValueSpec value;
  value.name = fields.Text("name");
  const std::string& rows = fields.Text("rows");
  if (rows != "tokens" && rows != "logits") Raise("value ", value.name, ": unknown rows \"", rows, "\"");
  value.rows = rows == "tokens" ? Rows::kTokens : Rows::kLogits;
  value.width = fields.Integer("width", 1);
  const std::string& type = fields.Text("dtype");
  if (type != "f32" && type != "i32") Raise("value ", value.name, ": unknown dtype \"", type, "\"");
  value.type = type == "f32" ? ElementType::kF32 : ElementType::kI32;
  const bool input = index <= kPositionsValue || (index == kTokenTypesValue && value.name == "token_types");
  if (input != (value.type == ElementType::kI32) || (input && (value.rows != Rows::kTokens || value.width != 1))) {
    Raise("value ", value.name, ": values 0 and 1, and 2 if it is token_types, and only they, are i32 [tokens, 1]");
  }
  return value;
}

WeightSpec ParseWeight(const Json& json, size_t index) {
  const Fields fields(json, "weight " + std::to_string(index), {"id", "name", "shape"});
  fields.RequireId(index);
  WeightSpec weight{fields.Text("name"), fields.Integers("shape", 1, kMaxDim)};
  if (weight.shape.empty() || weight.shape.size() > 2) Raise("weight ", weight.name, ": has 1 or 2 dimensions");
  return weight;
}

KvStream ParseStream(const Json& json, size_t index) {
  const Fields fields(json, "stream " + std::to_string(index), {"id", "name", "kv_heads", "head_dim", "v_dim", "window"});
  fields.RequireId(index);
  KvStream stream;
  stream.name = fields.Text("name");
  stream.kv_heads = fields.Integer("kv_heads", 1, 1 << 16);
  stream.head_dim = fields.Integer("head_dim", 1, 1 << 16);
  stream.v_dim = fields.Integer("v_dim", 1, 1 << 16);
  stream.window = fields.Integer("window", 0, std::numeric_limits<int32_t>::max());
  return stream;
}

void ParseAttrs(const Json& json, Op& op) {
  const std::string what = std::string(OpKindName(op.kind)) + " " + op.name;
  switch (op.kind) {
    case OpKind::kRmsNorm: {
      const Fields attrs(json, what, {"eps", "offset"});
      op.eps = attrs.Number("eps", 0);
      op.offset = attrs.Number("offset");
      break;
    }
    case OpKind::kLayerNorm: op.eps = Fields(json, what, {"eps"}).Number("eps", 0); break;
    case OpKind::kScale: op.factor = Fields(json, what, {"factor"}).Number("factor"); break;
    case OpKind::kSoftCap: op.cap = Fields(json, what, {"cap"}).Number("cap", 1e-6); break;
    case OpKind::kActivation:
    case OpKind::kGatedActivation: {
      const std::string& name = Fields(json, what, {"function"}).Text("function");
      op.function = static_cast<Activation>(IndexOf(kActivationNames, name, what));
      break;
    }
    case OpKind::kRope: {
      const Fields attrs(json, what, {"heads", "head_dim", "rotary_dim", "style", "table", "factor"});
      op.heads = attrs.Integer("heads", 1);
      op.head_dim = attrs.Integer("head_dim", 1);
      op.rotary_dim = attrs.Integer("rotary_dim", 2);
      op.style = static_cast<RopeStyle>(IndexOf(kStyleNames, attrs.Text("style"), what));
      op.table = attrs.Text("table");
      op.factor = attrs.Number("factor");
      break;
    }
    case OpKind::kSplit: op.sizes = Fields(json, what, {"sizes"}).Integers("sizes", 1, kMaxDim); break;
    case OpKind::kAttention: {
      const Fields attrs(json, what, {"stream", "heads", "scale", "soft_cap", "causal"});
      op.stream = static_cast<int>(attrs.Integer("stream", 0));
      op.heads = attrs.Integer("heads", 1);
      op.scale = attrs.Number("scale", 0);
      op.cap = attrs.Number("soft_cap", 0);
      op.causal = attrs.Get("causal", Json::Kind::kBool).boolean;
      break;
    }
    case OpKind::kEmbedPositions: op.first_row = Fields(json, what, {"offset"}).Integer("offset", 0); break;
    case OpKind::kPool: {
      const std::string& name = Fields(json, what, {"method"}).Text("method");
      op.method = static_cast<PoolMethod>(IndexOf(kPoolNames, name, what));
      break;
    }
    case OpKind::kL2Norm: op.eps = Fields(json, what, {"eps"}).Number("eps", 0); break;
    default: Fields(json, what, {}); break;
  }
}

Op ParseOp(const Json& json, const Plan& plan, size_t index) {
  const Fields fields(json, "op " + std::to_string(index), {"kind", "name", "inputs", "outputs", "weights", "attrs"});
  Op op;
  op.name = fields.Text("name");
  op.kind = static_cast<OpKind>(IndexOf(kOpNames, fields.Text("kind"), "op " + op.name));
  op.inputs = fields.Indices("inputs", plan.values.size());
  op.outputs = fields.Indices("outputs", plan.values.size());
  op.weights = fields.Indices("weights", plan.weights.size());
  ParseAttrs(fields.Get("attrs", Json::Kind::kObject), op);
  return op;
}

std::vector<double> ParseTable(const Json& json, const std::string& name) {
  if (json.kind != Json::Kind::kArray || json.items.empty()) Raise("table ", name, ": not a list of numbers");
  std::vector<double> numbers;
  for (const Json& item : json.items) {
    if (item.kind != Json::Kind::kInteger && item.kind != Json::Kind::kNumber) Raise("table ", name, ": not a list of numbers");
    numbers.push_back(item.number);
  }
  return numbers;
}

}  // namespace

std::string_view OpKindName(OpKind kind) { return kOpNames[static_cast<size_t>(kind)]; }

int64_t Plan::vocab_size() const {
  if (!embeds) return values[static_cast<size_t>(logits)].width;
  for (const Op& op : ops) {
    if (op.kind == OpKind::kEmbed && op.inputs[0] == kTokensValue) return weights[static_cast<size_t>(op.weights[0])].shape[0];
  }
  return 0;
}

bool Plan::whole_rows() const {
  for (const Op& op : ops) {
    if (op.kind == OpKind::kAttention && !op.causal) return true;
    if (op.kind == OpKind::kPool && op.method != PoolMethod::kLast) return true;
  }
  return false;
}

bool Plan::has_token_types() const {
  return values.size() > kTokenTypesValue && values[kTokenTypesValue].type == ElementType::kI32;
}

Plan ParsePlan(std::string_view text) {
  const Json json = ParseJson(text);
  const Fields fields(json, "plan", {"version", "name", "values", "weights", "streams", "tables", "ops", "outputs"});
  if (fields.Integer("version", 0) != 1) Raise("plan: this library reads version 1");
  Plan plan;
  plan.name = fields.Text("name");
  for (const Json& item : fields.Array("values")) plan.values.push_back(ParseValue(item, plan.values.size()));
  if (plan.values.size() <= kPositionsValue) Raise("plan: the values tokens and positions are missing");
  for (const Json& item : fields.Array("weights")) plan.weights.push_back(ParseWeight(item, plan.weights.size()));
  for (const Json& item : fields.Array("streams")) plan.streams.push_back(ParseStream(item, plan.streams.size()));
  for (const auto& [name, table] : fields.Get("tables", Json::Kind::kObject).members) {
    plan.tables[name] = ParseTable(table, name);
  }
  std::vector<bool> computed(plan.values.size(), false);
  computed[kTokensValue] = computed[kPositionsValue] = true;
  if (plan.has_token_types()) computed[kTokenTypesValue] = true;
  for (const Json& item : fields.Array("ops")) {
    plan.ops.push_back(ParseOp(item, plan, plan.ops.size()));
    CheckOp(plan, plan.ops.back(), computed);
  }
  const Json& outputs = fields.Get("outputs", Json::Kind::kObject);
  const Json* logits = outputs.Find("logits");
  const Json* embedding = outputs.Find("embedding");
  if (embedding && !logits) {
    plan.embeds = true;
    logits = embedding;
  }
  if (!logits || (embedding && !plan.embeds) || logits->kind != Json::Kind::kInteger || logits->integer < 0 ||
      logits->integer >= static_cast<int64_t>(plan.values.size())) {
    Raise("plan: the outputs must name a value \"logits\", or one \"embedding\"");
  }
  plan.logits = static_cast<int>(logits->integer);
  const size_t value = static_cast<size_t>(plan.logits);
  if (!computed[value] || plan.values[value].rows != Rows::kLogits) {
    Raise("plan: the value \"logits\" must be computed and have a row per wanted logits");
  }
  if (plan.vocab_size() == 0) Raise("plan: without logits, tokens must be embedded");
  return plan;
}

}  // namespace ramet
