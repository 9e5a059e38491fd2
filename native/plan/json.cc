#include "plan/json.h"

#include <charconv>
#include <cmath>

#include "core/status.h"

namespace ramet {
namespace {

constexpr int kMaxDepth = 16;  // a plan has 5

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Json ReadAll() {
    Json value = ReadValue(0);
    SkipSpace();
    if (at_ != text_.size()) Fail("text after the value");
    return value;
  }

 private:
  [[noreturn]] void Fail(const char* what) const { Raise("JSON: ", what, " at byte ", at_); }

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\n' || Peek() == '\r' || Peek() == '\t') ++at_;
  }

  bool Accept(char c) {
    SkipSpace();
    if (Peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  void Expect(char c, const char* what) {
    if (!Accept(c)) Fail(what);
  }

  bool AcceptWord(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json ReadValue(int depth) {
    if (depth > kMaxDepth) Fail("nested too deeply");
    SkipSpace();
    Json value;
    switch (Peek()) {
      case '{':
        value.kind = Json::Kind::kObject;
        ReadObject(value, depth);
        break;
      case '[':
        value.kind = Json::Kind::kArray;
        ReadArray(value, depth);
        break;
      case '"':
        value.kind = Json::Kind::kText;
        value.text = ReadText();
        break;
      case 't':
      case 'f':
        value.kind = Json::Kind::kBool;
        value.boolean = Peek() == 't';
        if (!AcceptWord(value.boolean ? "true" : "false")) Fail("not a value");
        break;
      case 'n':
        if (!AcceptWord("null")) Fail("not a value");
        break;
      default: ReadNumber(value);
    }
    return value;
  }

  void ReadObject(Json& value, int depth) {
    Expect('{', "expected {");
    if (Accept('}')) return;
    do {
      SkipSpace();
      std::string key = ReadText();
      if (value.Find(key)) Fail("a key twice");
      Expect(':', "expected :");
      value.members.emplace_back(std::move(key), ReadValue(depth + 1));
    } while (Accept(','));
    Expect('}', "expected , or }");
  }

  void ReadArray(Json& value, int depth) {
    Expect('[', "expected [");
    if (Accept(']')) return;
    do {
      value.items.push_back(ReadValue(depth + 1));
    } while (Accept(','));
    Expect(']', "expected , or ]");
  }

  void ReadNumber(Json& value) {
    const size_t begin = at_;
    if (Peek() == '-') ++at_;
    const size_t digits = at_;
    ReadDigits();
    if (text_[digits] == '0' && at_ > digits + 1) Fail("a leading zero");
    value.kind = Json::Kind::kInteger;
    if (Peek() == '.') {
      value.kind = Json::Kind::kNumber;
      ++at_;
      ReadDigits();
    }
    if (Peek() == 'e' || Peek() == 'E') {
      value.kind = Json::Kind::kNumber;
      ++at_;
      if (Peek() == '+' || Peek() == '-') ++at_;
      ReadDigits();
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    if (value.kind == Json::Kind::kInteger && std::from_chars(first, last, value.integer).ec != std::errc{}) {
      value.kind = Json::Kind::kNumber;
    }
    if (std::from_chars(first, last, value.number).ec != std::errc{} || !std::isfinite(value.number)) {
      Fail("a number out of range");
    }
  }

  void ReadDigits() {
    const size_t begin = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    if (at_ == begin) Fail("not a value");
  }

  std::string ReadText() {
    if (Peek() != '"') Fail("expected a text");
    ++at_;
    std::string out;
    for (;;) {
      if (at_ == text_.size()) Fail("a text without end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) Fail("a control character in a text");
      if (c != '\\') {
        out += c;
        continue;
      }
      const char escape = Peek();
      ++at_;
      switch (escape) {
        case '"':
        case '\\':
        case '/': out += escape; break;
        case 'b': out += '\b'; break;
        case 'f': out += '\f'; break;
        case 'n': out += '\n'; break;
        case 'r': out += '\r'; break;
        case 't': out += '\t'; break;
        case 'u': AppendUtf8(ReadCodePoint(), out); break;
        default: Fail("an unknown escape");
      }
    }
  }

  uint32_t ReadHex4() {
    uint32_t value = 0;
    if (at_ + 4 > text_.size()) Fail("a text without end");
    const char* first = text_.data() + at_;
    const auto result = std::from_chars(first, first + 4, value, 16);
    if (result.ec != std::errc{} || result.ptr != first + 4) Fail("not four hexadecimal digits");
    at_ += 4;
    return value;
  }

  uint32_t ReadCodePoint() {
    const uint32_t high = ReadHex4();
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || !AcceptWord("\\u")) Fail("a lone surrogate");
    const uint32_t low = ReadHex4();
    if (low < 0xDC00 || low > 0xDFFF) Fail("a lone surrogate");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  static void AppendUtf8(uint32_t point, std::string& out) {
    const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
    if (point < 0x80) {
      put(point);
    } else if (point < 0x800) {
      put(0xC0 | point >> 6);
      put(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
      put(0xE0 | point >> 12);
      put(0x80 | (point >> 6 & 0x3F));
      put(0x80 | (point & 0x3F));
    } else {
      put(0xF0 | point >> 18);
      put(0x80 | (point >> 12 & 0x3F));
      put(0x80 | (point >> 6 & 0x3F));
      put(0x80 | (point & 0x3F));
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const Json* Json::Find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

Json ParseJson(std::string_view text) { return Reader(text).ReadAll(); }

}  // namespace ramet
