// Who may use the server and how much of it at once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/api/api_error.h"

namespace fathom::serve {

struct AdmissionOptions {
  int requests_per_key_max = 256;  // in flight, from arrival to the last byte [429]
  int requests_max = 1024;         // in flight over all keys [503]
};

// API keys from a file: one per line, optionally followed by a name; '#' at the start of a line or after
// white space starts a comment.
class ApiKeys {
 public:
  // No file: every request is admitted as the anonymous key.
  ApiKeys() = default;
  // INVALID_ARGUMENT naming file and line for an unreadable file, a key shorter than 8 bytes or longer than
  // 16 KiB, a duplicate, a third word, a control character or a byte-order mark.
  static Result<ApiKeys> load(const std::string& path);

  bool required() const { return !keys_.empty(); }
  // The tenant name of the key in an Authorization header ("Bearer …"), or 401. Takes the same time whatever
  // part of a key matches.
  ApiResult<std::string> authenticate(std::string_view authorization) const;

 private:
  struct Key {
    std::string secret;
    std::string name;
  };
  std::vector<Key> keys_;
};

// Counts requests in flight. Thread-safe.
class Admission {
 public:
  explicit Admission(const AdmissionOptions& options) : options_(options) {}

  // Held while a request is in flight; giving it up makes room.
  class Ticket {
   public:
    Ticket(Admission& admission, std::string key) : admission_(admission), key_(std::move(key)) {}
    ~Ticket() { admission_.release(key_); }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    Admission& admission_;
    const std::string key_;
  };

  ApiResult<std::shared_ptr<Ticket>> admit(const std::string& key);
  int in_flight() const;

 private:
  void release(const std::string& key);

  const AdmissionOptions options_;
  mutable std::mutex mu_;
  std::map<std::string, int> in_flight_by_key_;  // guarded by mu_
  int in_flight_ = 0;                            // guarded by mu_
};

}  // namespace fathom::serve
