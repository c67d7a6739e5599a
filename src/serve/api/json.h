// JSON at the API's edge: parsing with limits, and typed access that names the field it refuses.
// Include in .cc files of serve/api only (nlohmann is slow to compile).
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "serve/api/api_error.h"

namespace fathom::serve {

using Json = nlohmann::ordered_json;

// Limits of a body's shape. An object finds its keys one by one, so that both limits on keys bound the time,
// and the one on values the memory: 2^20 is six times the largest context of token ids.
inline constexpr int kJsonDepthMax = 64;
inline constexpr int64_t kJsonKeysPerObjectMax = 2048;
inline constexpr int64_t kJsonKeysMax = 32'768;
inline constexpr int64_t kJsonValuesMax = 1 << 20;

// The body as a JSON object. 400 with the byte position for malformed JSON or invalid UTF-8, and for a shape
// beyond the limits, which is found before anything is built.
ApiResult<Json> parse_json_object(std::string_view body);

// Invalid UTF-8 in strings becomes U+FFFD; never throws.
inline std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Reads the fields of one object and remembers which were asked for. The first error sticks; later calls
// return defaults. null counts as absent, as OpenAI's clients send it.
class ObjectReader {
 public:
  // `where` prefixes parameter names in errors: "" or "stream_options." or "messages[2].".
  ObjectReader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const std::string& name);
  bool boolean(const std::string& name, bool fallback);
  double number(const std::string& name, double fallback, double min, double max);
  int64_t integer(const std::string& name, int64_t fallback, int64_t min, int64_t max);
  std::string text(const std::string& name, std::string fallback);
  // Fields that are only looked at: an error for another type, unless absent or null.
  void check_texts(std::initializer_list<const char*> names);
  void check_booleans(std::initializer_list<const char*> names);
  // Fields we know of but cannot honour yet: an error unless absent or null.
  void refuse(std::initializer_list<const char*> names);
  // The error of the first bad field, or of the first field nobody asked for.
  std::optional<ApiError> finish();

  void fail(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string> known_;
  std::optional<ApiError> error_;
};

}  // namespace fathom::serve
