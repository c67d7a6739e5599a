// JSON parsing with limits on depth and size, and typed access that names the field.
#include "serve/api/json.h"

#include <cmath>

namespace fathom::serve {
namespace {

// The first byte outside strings, counted from 1 as the parser counts, for which found(offset) holds; or 0.
// Knows strings, nothing else.
template <typename Found>
size_t find_outside_strings(std::string_view body, Found found) {
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (found(i)) {
      return i + 1;
    }
  }
  return 0;
}

// Of the bracket that opens level kJsonDepthMax + 1.
size_t find_too_deep(std::string_view body) {
  int depth = 0;
  return find_outside_strings(body, [&](size_t i) {
    const char c = body[i];
    if (c == '[' || c == '{') return ++depth > kJsonDepthMax;
    if (c == ']' || c == '}') --depth;
    return false;
  });
}

// Of the number that the parser quotes in "number overflow parsing '1e999'": it tells no position for that.
size_t find_quoted(std::string_view body, std::string_view message) {
  const size_t begin = message.find('\'') + 1;
  const std::string_view number = message.substr(begin, message.rfind('\'') - begin);
  return find_outside_strings(body, [&](size_t i) { return body.substr(i).starts_with(number); });
}

// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error …" without the tag.
std::string plain_message(std::string_view what) {
  const size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace

ApiResult<Json> parse_json_object(std::string_view body) {
  ApiError error{.code = "invalid_json"};
  if (const size_t at = find_too_deep(body); at != 0) {
    error.message = fmt::format("the body is nested deeper than {} levels at byte {}", kJsonDepthMax, at);
    return error;
  }
  try {
    Json json = Json::parse(body.begin(), body.end());
    if (json.is_object()) return json;
    error.message = fmt::format("the body must be a JSON object, not {}", json.type_name());
  } catch (const Json::parse_error& e) {
    error.message = fmt::format("the body is not valid JSON (byte {}): {}", e.byte, plain_message(e.what()));
  } catch (const Json::exception& e) {
    const std::string what = plain_message(e.what());
    error.message = fmt::format("the body is not valid JSON (byte {}): {}", find_quoted(body, what), what);
  }
  return error;
}

const Json* ObjectReader::find(const std::string& name) {
  known_.insert(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ObjectReader::boolean(const std::string& name, bool fallback) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(bad_request(where_ + name, "{}{}: expected true or false, got {}", where_, name, value->type_name()));
  return fallback;
}

double ObjectReader::number(const std::string& name, double fallback, double min, double max) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    fail(bad_request(where_ + name, "{}{}: expected a number, got {}", where_, name, value->type_name()));
    return fallback;
  }
  const double x = value->get<double>();
  if (!(x >= min && x <= max)) {
    fail(bad_request(where_ + name, "{}{}: {} is outside [{}, {}]", where_, name, x, min, max));
    return fallback;
  }
  return x;
}

int64_t ObjectReader::integer(const std::string& name, int64_t fallback, int64_t min, int64_t max) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  const bool whole = value->is_number_integer() ||
                     (value->is_number_float() && std::trunc(value->get<double>()) == value->get<double>() &&
                      std::abs(value->get<double>()) < 9e15);
  if (!whole) {
    fail(bad_request(where_ + name, "{}{}: expected an integer, got {}", where_, name,
                     value->is_number() ? dump_json(*value) : value->type_name()));
    return fallback;
  }
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t x = value->is_number_float() ? static_cast<int64_t>(value->get<double>())
                    : huge                   ? INT64_MAX
                                             : value->get<int64_t>();
  if (huge || x < min || x > max) {
    fail(bad_request(where_ + name, "{}{}: {} is outside [{}, {}]", where_, name, dump_json(*value), min, max));
    return fallback;
  }
  return x;
}

std::string ObjectReader::text(const std::string& name, std::string fallback) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  fail(bad_request(where_ + name, "{}{}: expected a string, got {}", where_, name, value->type_name()));
  return fallback;
}

void ObjectReader::refuse(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (find(name) == nullptr) continue;
    ApiError error = bad_request(where_ + name, "{}{} is not supported by this server", where_, name);
    error.code = "unsupported_parameter";
    fail(std::move(error));
  }
}

std::optional<ApiError> ObjectReader::finish() {
  if (error_) return error_;
  for (const auto& [name, value] : object_.items()) {
    if (known_.count(name) != 0) continue;
    ApiError error = bad_request(where_ + name, "unknown parameter: {}{}", where_, name);
    error.code = "unknown_parameter";
    return error;
  }
  return std::nullopt;
}

}  // namespace fathom::serve
