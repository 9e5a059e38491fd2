// The plan reader: takes a good plan, refuses every broken one with a sentence, and survives any cut or changed byte.
#include <cstdio>
#include <random>
#include <string>

#include "core/status.h"
#include "plan/json.h"
#include "plan/plan.h"
#include "runtime/lower.h"
#include "tests/toy_plan.h"

namespace ramet {
namespace {

std::string Replaced(const std::string& from, const std::string& to) {
  std::string text = kToyPlan;
  const size_t at = text.find(from);
  Check(at != std::string::npos, from.c_str());
  return text.replace(at, from.size(), to);
}

// The message of the refusal, which must hold `part`.
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
  std::fprintf(stderr, "expected: %s\n", part.c_str());
  Check(false, "a broken plan is refused");
}

void TestBrokenPlans() {
  Refused("", "not a value");
  Refused("{}", "\"version\" is missing");
  Refused(Replaced("\"version\":1", "\"version\":2"), "version 1");
  Refused(Replaced("\"version\":1", "\"version\":1,\"extra\":0"), "unknown key \"extra\"");
  Refused(Replaced("\"kind\":\"add\"", "\"kind\":\"sum\""), "unknown \"sum\"");
  Refused(Replaced("\"id\":3,\"name\":\"h\"", "\"id\":4,\"name\":\"h\""), "id is not its place");
  Refused(Replaced("\"name\":\"h\",\"rows\":\"tokens\",\"width\":8", "\"name\":\"h\",\"rows\":\"tokens\",\"width\":0"),
          "\"width\"");
  Refused(Replaced("\"name\":\"h\",\"rows\":\"tokens\",\"width\":8", "\"name\":\"h\",\"rows\":\"tokens\",\"width\":7"),
          "rms_norm n");
  Refused(Replaced("\"inputs\":[2,9]", "\"inputs\":[2,99]"), "\"inputs\"");
  Refused(Replaced("\"inputs\":[2,9]", "\"inputs\":[2,10]"), "not computed before");
  Refused(Replaced("\"inputs\":[2,9]", "\"inputs\":[2]"), "number of inputs");
  Refused(Replaced("\"inputs\":[2,9]", "\"inputs\":[2,5]"), "equally wide");
  Refused(Replaced("\"inputs\":[2,9]", "\"inputs\":[2,0]"), "add ad");
  Refused(Replaced("\"inputs\":[0],\"outputs\":[2]", "\"inputs\":[1],\"outputs\":[2]"), "must be tokens");
  Refused(Replaced("\"outputs\":[10]", "\"outputs\":[2]"), "computed twice");
  Refused(Replaced("\"outputs\":[11]", "\"outputs\":[10]"), "gather_rows ga");
  Refused(Replaced("\"weights\":[2,5]", "\"weights\":[2,5,5]"), "number of weights");
  Refused(Replaced("\"weights\":[2,5]", "\"weights\":[2,2]"), "bias");
  Refused(Replaced("\"weights\":[2,5]", "\"weights\":[5]"), "linear lq");
  Refused(Replaced("\"shape\":[4,8]", "\"shape\":[4,9]"), "linear lk");
  Refused(Replaced("\"shape\":[4,8]", "\"shape\":[4,8,1]"), "1 or 2 dimensions");
  Refused(Replaced("\"shape\":[4,8]", "\"shape\":[-4,8]"), "\"shape\"");
  Refused(Replaced("\"rotary_dim\":4", "\"rotary_dim\":6"), "rotary_dim");
  Refused(Replaced("\"table\":\"rope\"", "\"table\":\"none\""), "table");
  Refused(Replaced("[1.0,0.5e-1]", "[1.0]"), "rope r");
  Refused(Replaced("\"style\":\"half\"", "\"style\":\"both\""), "unknown \"both\"");
  Refused(Replaced("\"stream\":0", "\"stream\":1"), "no such stream");
  std::string windowed = Replaced("\"window\":0", "\"window\":5");
  ParsePlan(windowed);
  Refused(windowed.replace(windowed.find("\"causal\":true"), 13, "\"causal\":false"), "both directions has no window");
  Refused(Replaced("\"soft_cap\":0.0", "\"soft_cap\":-1"), "soft_cap");
  Refused(Replaced("\"kv_heads\":1", "\"kv_heads\":3"), "multiple of the stream's kv_heads");
  Refused(Replaced("\"head_dim\":4,\"v_dim\":4", "\"head_dim\":8,\"v_dim\":4"), "attention at");
  Refused(Replaced("{\"logits\":12}", "{\"logits\":10}"), "logits");
  Refused(Replaced("{\"logits\":12}", "{}"), "logits");
  Refused(Replaced("\"eps\":1e-5", "\"eps\":1e999"), "out of range");
  Refused(Replaced("\"eps\":1e-5", "\"eps\":\"1\""), "wrong type");
}

void TestJson() {
  const Json json = ParseJson(R"( {"a":[1,-2.5e1,true,null,"\u00e9\ud83d\ude00\n"],"b":{}} )");
  const Json& items = *json.Find("a");
  Check(items.items[0].kind == Json::Kind::kInteger && items.items[0].integer == 1, "an integer");
  Check(items.items[1].number == -25.0, "a number");
  Check(items.items[4].text == "\xc3\xa9\xf0\x9f\x98\x80\n", "escapes become UTF-8");
  for (const char* bad : {"{", "[1,]", "01", "1 2", "\"\\ud800\"", "\"\\x\"", "tru", "{\"a\":1,\"a\":2}", "{1:2}", "\"a\nb\"",
                          "-", "[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", "nan", "+1", "1e"}) {
    bool refused = false;
    try {
      ParseJson(bad);
    } catch (const Error&) {
      refused = true;
    }
    Check(refused, bad);
  }
}

// Whatever bytes arrive, the reader answers or refuses; sanitizers watch it do so. What it takes can be lowered.
void TestDamagedText() {
  const std::string good = kToyPlan;
  for (size_t cut = 0; cut < good.size(); cut += 7) Refused(good.substr(0, cut), "");
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (int changes = 0; changes < 2; ++changes) text[random() % text.size()] = static_cast<char>(32 + random() % 96);
    try {
      const Plan plan = ParsePlan(text);
      Lower(plan);
    } catch (const Error&) {
    }
  }
}

// Linears over one input become one node, and the residual add disappears into the last linear.
void TestLowering() {
  const Plan plan = ParsePlan(kToyPlan);
  const Program program = Lower(plan);
  std::string labels;
  for (const Segment& segment : program.segments) labels += segment.label + ";";
  Check(labels == "embed+rms_norm;linear;rope_angles+rope+store_kv;attend;linear;gather_rows;linear;", labels.c_str());
  Check(program.first_logits_segment == 5, "logits come last");
  Check(program.segments[1].nodes[0].parts.size() == 3, "q, k and v are one node");
  const LinearPart& residual = program.segments[4].nodes[0].parts[0];
  Check(residual.accumulate && program.places[10].offset == program.places[2].offset, "the residual is added in place");
  Check(program.places[7].offset == program.places[4].offset, "rope is in place");
}

}  // namespace
}  // namespace ramet

int main() {
  ramet::TestJson();
  ramet::TestLowering();
  ramet::TestBrokenPlans();
  ramet::TestDamagedText();
  std::puts("plan_test: ok");
  return 0;
}
