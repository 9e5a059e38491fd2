// A strict reader of JSON text, enough for plans: no comments, no trailing commas, no duplicate keys, no lone surrogates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ramet {

struct Json {
  enum class Kind { kNull, kBool, kInteger, kNumber, kText, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;  // kInteger: written without fraction or exponent, and in range
  double number = 0;    // kInteger and kNumber
  std::string text;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;  // in the order written

  // The member of an object, or null.
  const Json* Find(std::string_view key) const;
};

// Raises with the byte offset on anything that is not one JSON value.
Json ParseJson(std::string_view text);

}  // namespace ramet
