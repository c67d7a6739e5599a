// Counts of requests in flight, per key and in all, and the refusals they lead to.
#include "serve/api/admission.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

namespace fathom::serve {
namespace {

constexpr size_t kKeyBytesMin = 8;

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return invalid_argument("--api-key-file {}: cannot be read", path);
  ApiKeys keys;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    std::istringstream words(line.substr(0, line.find('#')));
    Key key;
    if (!(words >> key.secret)) continue;
    if (key.secret.size() < kKeyBytesMin) {
      return invalid_argument("--api-key-file {}:{}: a key has at least {} characters", path, line_number, kKeyBytesMin);
    }
    if (!(words >> key.name)) key.name = fmt::format("key-{}", line_number);
    for (const Key& other : keys.keys_) {
      if (other.secret == key.secret || other.name == key.name) {
        return invalid_argument("--api-key-file {}:{}: the key or its name '{}' appears twice", path, line_number,
                                key.name);
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
  const bool bearer = authorization.size() >= kScheme.size() &&
                      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char a, char b) {
                        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
                      });
  if (!bearer) return error;
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
