// JSON parsing with limits on shape and size, and typed access that names the field.
#include "serve/api/json.h"

#include <algorithm>
#include <array>
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

// Walks over the body as far as its shape goes, and keeps to the limits of json.h. Knows strings and
// brackets, nothing else: up to the first fault of the syntax, where the parser stops too, both see the same
// shape.
class ShapeCheck {
 public:
  // What is wrong, with the byte it is found at.
  std::optional<std::string> run(std::string_view body) {
    Fault fault;
    const size_t at = find_outside_strings(body, [&](size_t i) {
      fault = step(body[i]);
      return fault.what != nullptr;
    });
    if (at == 0) return std::nullopt;
    return fmt::format("the body {} at byte {}", fmt::format(fmt::runtime(fault.what), fault.limit), at);
  }

 private:
  struct Fault {
    const char* what = nullptr;  // null: none
    int64_t limit = 0;
  };

  Fault step(char c) {
    switch (c) {
      case '[':
      case '{':
        if (++depth_ > kJsonDepthMax) return {"is nested deeper than {} levels", kJsonDepthMax};
        num_keys_[static_cast<size_t>(depth_)] = 0;
        return count_value();
      case ']':
      case '}':
        depth_ = std::max(0, depth_ - 1);
        return {};
      case ',':
        return count_value();
      case ':':
        if (++num_keys_[static_cast<size_t>(depth_)] > kJsonKeysPerObjectMax) {
          return {"has an object of more than {} keys", kJsonKeysPerObjectMax};
        }
        return ++num_all_keys_ > kJsonKeysMax ? Fault{"has more than {} keys", kJsonKeysMax} : Fault{};
      case '\0':  // the parser would take it for the end
        return {"has a NUL"};
      default:
        return {};
    }
  }
  Fault count_value() {
    return ++num_values_ > kJsonValuesMax ? Fault{"has more than {} values", kJsonValuesMax} : Fault{};
  }

  int depth_ = 0;
  std::array<int64_t, kJsonDepthMax + 1> num_keys_{};  // of the open object of each level
  int64_t num_all_keys_ = 0;
  int64_t num_values_ = 0;
};

// Of the number that the parser quotes in "number overflow parsing '1e999'": it tells no position for that.
size_t find_quoted(std::string_view body, std::string_view message) {
  const size_t begin = message.find('\'') + 1;
  const std::string_view number = message.substr(begin, message.rfind('\'') - begin);
  return find_outside_strings(body, [&](size_t i) { return body.substr(i).starts_with(number); });
}

// The parser quotes the text it last read, however long.
constexpr size_t kParserMessageBytesMax = 200;

// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error …" without the tag.
std::string plain_message(std::string_view what) {
  const size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace

ApiResult<Json> parse_json_object(std::string_view body) {
  ApiError error{.code = "invalid_json"};
  if (auto problem = ShapeCheck().run(body)) {
    error.message = std::move(*problem);
    return error;
  }
  try {
    Json json = Json::parse(body.begin(), body.end());
    if (json.is_object()) return json;
    error.message = fmt::format("the body must be a JSON object, not {}", json.type_name());
  } catch (const Json::parse_error& e) {
    error.message = fmt::format("the body is not valid JSON (byte {}): {}", e.byte,
                                excerpt(plain_message(e.what()), kParserMessageBytesMax));
  } catch (const Json::exception& e) {
    const std::string what = plain_message(e.what());
    error.message = fmt::format("the body is not valid JSON (byte {}): {}", find_quoted(body, what),
                                excerpt(what, kParserMessageBytesMax));
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
    fail(bad_request(where_ + name, "{}{}: {} is outside [{}, {}]", where_, name, dump_json(*value), min,
                     max));
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

void ObjectReader::check_texts(std::initializer_list<const char*> names) {
  for (const char* name : names) static_cast<void>(text(name, ""));
}

void ObjectReader::check_booleans(std::initializer_list<const char*> names) {
  for (const char* name : names) static_cast<void>(boolean(name, false));
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
