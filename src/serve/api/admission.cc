// Counts of requests in flight, per key and in all, and the refusals they lead to.
#include "serve/api/admission.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/printable.h"
#include "serve/api/http_head.h"

namespace fathom::serve {
namespace {

constexpr size_t kKeyBytesMin = 8;
constexpr size_t kKeyBytesMax = size_t{16} << 10;  // leaves room in a request's head (HttpOptions)
constexpr size_t kKeyFileBytesMax = size_t{1} << 20;

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Result<std::string> read_key_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kKeyFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) return invalid_argument("--api-key-file {}: cannot be read", path);
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kKeyFileBytesMax) {
    return invalid_argument("--api-key-file {}: more than {} bytes", path, kKeyFileBytesMax);
  }
  return text;
}

// The words of a line up to its comment. A '#' inside a word belongs to it: keys are made of any character.
std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word && word[0] != '#';) words.push_back(std::move(word));
  return words;
}

// What is wrong with a line of the file, or nothing.
std::string line_problem(const std::string& line, const std::vector<std::string>& words) {
  if (line.starts_with("\xef\xbb\xbf"))
    return "begins with a byte-order mark, which would be part of the key";
  for (const std::string& word : words) {
    if (has_control_characters(word)) return "a control character";
  }
  if (words.size() > 2)
    return fmt::format("a third word, '{}': a line is a key and at most a name", words[2]);
  if (!words.empty() && words[0].size() < kKeyBytesMin) {
    return fmt::format("a key has at least {} characters", kKeyBytesMin);
  }
  if (!words.empty() && words[0].size() > kKeyBytesMax) {
    return fmt::format("a key of {} characters; one has at most {}, to fit a request's head", words[0].size(),
                       kKeyBytesMax);
  }
  return {};
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_key_file(path));
  std::istringstream file(text);
  ApiKeys keys;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    const std::vector<std::string> words = words_of(line);
    if (const std::string problem = line_problem(line, words); !problem.empty()) {
      return invalid_argument("--api-key-file {}:{}: {}", path, line_number, problem);
    }
    if (words.empty()) continue;
    Key key{.secret = words[0], .name = words.size() > 1 ? words[1] : fmt::format("key-{}", line_number)};
    for (const Key& other : keys.keys_) {
      if (other.secret == key.secret || other.name == key.name) {
        return invalid_argument("--api-key-file {}:{}: the key or its name '{}' appears twice", path,
                                line_number, key.name);
      }
    }
    keys.keys_.push_back(std::move(key));
  }
  if (keys.keys_.empty()) return invalid_argument("--api-key-file {}: holds no key", path);
  return keys;
}

ApiResult<std::string> ApiKeys::authenticate(std::string_view authorization) const {
  if (!required()) return std::string();
  constexpr std::string_view kScheme = "Bearer ";
  ApiError error{.http_status = 401,
                 .message = "missing API key: send it as 'Authorization: Bearer KEY'",
                 .type = "authentication_error",
                 .code = "invalid_api_key"};
  // The scheme's case does not matter (RFC 9110, 11.1).
  if (!equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) return error;
  const std::string_view given = authorization.substr(kScheme.size());
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (equal_in_constant_time(key.secret, given)) found = &key;
  }
  if (found != nullptr) return found->name;
  error.message = "incorrect API key";
  return error;
}

ApiResult<std::shared_ptr<Admission::Ticket>> Admission::admit(const std::string& key) {
  std::lock_guard lock(mu_);
  if (in_flight_ >= options_.requests_max) {
    return ApiError{.http_status = 503,
                    .message = fmt::format("the server is full ({} requests in flight)", in_flight_),
                    .type = "server_error",
                    .code = "overloaded",
                    .retry_after_s = 1};
  }
  int& of_key = in_flight_by_key_[key];
  if (of_key >= options_.requests_per_key_max) {
    return ApiError{.http_status = 429,
                    .message = fmt::format("this API key already has {} requests in flight", of_key),
                    .type = "rate_limit_error",
                    .code = "rate_limit_exceeded",
                    .retry_after_s = 1};
  }
  ++of_key;
  ++in_flight_;
  return std::make_shared<Ticket>(*this, key);
}

void Admission::release(const std::string& key) {
  std::lock_guard lock(mu_);
  --in_flight_;
  const auto it = in_flight_by_key_.find(key);
  if (--it->second == 0) in_flight_by_key_.erase(it);
}

int Admission::in_flight() const {
  std::lock_guard lock(mu_);
  return in_flight_;
}

}  // namespace fathom::serve
