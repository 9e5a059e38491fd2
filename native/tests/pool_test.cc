// Pooling and norms against plain sums, and the plans of encoders: taken when sound, refused with a sentence when not.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "core/status.h"
#include "ops/pool.h"
#include "plan/plan.h"
#include "runtime/lower.h"

namespace ramet {
namespace {

constexpr const char* kPlan = R"({"version":1,"name":"embed",
"values":[{"id":0,"name":"tokens","rows":"tokens","width":1,"dtype":"i32"},
{"id":1,"name":"positions","rows":"tokens","width":1,"dtype":"i32"},
{"id":2,"name":"token_types","rows":"tokens","width":1,"dtype":"i32"},
{"id":3,"name":"w","rows":"tokens","width":4,"dtype":"f32"},
{"id":4,"name":"t","rows":"tokens","width":4,"dtype":"f32"},
{"id":5,"name":"p","rows":"tokens","width":4,"dtype":"f32"},
{"id":6,"name":"a","rows":"tokens","width":4,"dtype":"f32"},
{"id":7,"name":"m","rows":"logits","width":4,"dtype":"f32"},
{"id":8,"name":"u","rows":"logits","width":4,"dtype":"f32"}],
"weights":[{"id":0,"name":"words","shape":[9,4]},{"id":1,"name":"types","shape":[2,4]},{"id":2,"name":"places","shape":[8,4]}],
"streams":[{"id":0,"name":"s","kv_heads":1,"head_dim":4,"v_dim":4,"window":0}],
"tables":{},
"ops":[{"kind":"embed","name":"w","inputs":[0],"outputs":[3],"weights":[0],"attrs":{}},
{"kind":"embed","name":"t","inputs":[2],"outputs":[4],"weights":[1],"attrs":{}},
{"kind":"embed_positions","name":"p","inputs":[1],"outputs":[5],"weights":[2],"attrs":{"offset":2}},
{"kind":"attention","name":"a","inputs":[3,4,5],"outputs":[6],"weights":[],"attrs":{"stream":0,"heads":1,"scale":0.5,"soft_cap":0,"causal":false}},
{"kind":"pool","name":"m","inputs":[6],"outputs":[7],"weights":[],"attrs":{"method":"mean"}},
{"kind":"l2_norm","name":"u","inputs":[7],"outputs":[8],"weights":[],"attrs":{"eps":1e-12}}],
"outputs":{"embedding":8}})";

std::string Replaced(const std::string& from, const std::string& to) {
  std::string text = kPlan;
  const size_t at = text.find(from);
  Check(at != std::string::npos, from.c_str());
  return text.replace(at, from.size(), to);
}

void Refused(const std::string& text, const std::string& part) {
  try {
    ParsePlan(text);
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) == std::string::npos) {
      std::fprintf(stderr, "\"%s\" is not in: %s\n", part.c_str(), error.what());
      Check(false, "the refusal says what is wrong");
    }
    return;
  }
  std::fprintf(stderr, "not refused: %s\n", part.c_str());
  Check(false, "a broken plan is refused");
}

void TestPlans() {
  const Plan plan = ParsePlan(kPlan);
  Check(plan.embeds && plan.whole_rows() && plan.has_token_types() && plan.vocab_size() == 9, "what an encoder's plan says of itself");
  Lower(plan);
  const Plan causal = ParsePlan(Replaced("\"causal\":false", "\"causal\":true"));
  Check(causal.whole_rows(), "a mean needs whole rows");
  std::string last = Replaced("\"causal\":false", "\"causal\":true");
  last.replace(last.find("\"method\":\"mean\""), 15, "\"method\":\"last\"");
  Check(!ParsePlan(last).whole_rows(), "the last token of a causal plan does not");
  Refused(Replaced("\"method\":\"mean\"", "\"method\":\"max\""), "unknown \"max\"");
  Refused(Replaced("\"offset\":2", "\"offset\":8"), "the offset must be a row of the table");
  Refused(Replaced("\"offset\":2", "\"offset\":-1"), "\"offset\" is -1");
  Refused(Replaced("\"inputs\":[1],\"outputs\":[5]", "\"inputs\":[0],\"outputs\":[5]"), "the input must be positions");
  Refused(Replaced("\"inputs\":[2],\"outputs\":[4]", "\"inputs\":[1],\"outputs\":[4]"), "tokens or token_types");
  Refused(Replaced("\"window\":0", "\"window\":3"), "both directions has no window");
  Refused(Replaced("\"name\":\"token_types\"", "\"name\":\"segments\""), "2 if it is token_types");
  Refused(Replaced("{\"embedding\":8}", "{\"embedding\":8,\"logits\":8}"), "or one \"embedding\"");
  Refused(Replaced("{\"embedding\":8}", "{\"embedding\":6}"), "a row per wanted logits");
  Refused(Replaced("\"inputs\":[0],\"outputs\":[3]", "\"inputs\":[2],\"outputs\":[3]"), "tokens must be embedded");
}

void TestSums() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int64_t width : {1, 7, 63, 64, 65, 200}) {
    for (const int64_t rows : {1, 2, 33}) {
      const int64_t stride = width + 3;
      std::vector<float> x(static_cast<size_t>(rows * stride));
      for (float& value : x) value = 1000 + normal(random);
      std::vector<float> y(static_cast<size_t>(width));
      MeanOfRows(x.data(), rows, stride, width, y.data());
      double square = 0;
      for (int64_t i = 0; i < width; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < rows; ++r) sum += x[static_cast<size_t>(r * stride + i)];
        const float mean = static_cast<float>(sum / static_cast<double>(rows));
        Check(y[static_cast<size_t>(i)] == mean, "the mean is summed in order, in double");
        square += double{mean} * mean;
      }
      L2Norm(y.data(), width, 1e-12f, y.data());
      double length = 0;
      for (const float value : y) length += double{value} * value;
      Check(std::abs(length - 1) < 1e-6 && square > 1, "a norm in place gives length 1");
    }
  }
  std::vector<float> zero(5, 0.0f);
  L2Norm(zero.data(), 5, 1e-12f, zero.data());
  for (const float value : zero) Check(value == 0, "nothing stays nothing");
}

}  // namespace
}  // namespace ramet

int main() {
  ramet::TestPlans();
  ramet::TestSums();
  std::puts("ok");
}
