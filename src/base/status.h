// Status and Result<T>: how anything the outside world can do wrong is reported. Bugs use CHECK (check.h).
// No exceptions leave our code; a third-party exception is turned into a Status in the wrapper that met it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace fathom {

// Stable codes; the API maps them to HTTP statuses, the command line to exit codes.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,     // the caller's input is wrong; retrying cannot help
  kNotFound,            // a named thing does not exist
  kResourceExhausted,   // a named limit was reached
  kFailedPrecondition,  // right input, wrong moment
  kUnavailable,         // may work later
  kDeadlineExceeded,
  kCancelled,
  kDataLoss,  // bytes are torn, truncated or fail their checksum
  kUnimplemented,
  kInternal,
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "INVALID_ARGUMENT: config.json: hidden_size: expected a positive integer"
  std::string to_string() const;
  // The same status with "context: " put before the message; ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }

template <typename... Args>
Status make_status(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

// A value or the Status that says why there is none. value() on an error is a bug and stops the process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    CHECK_MSG(!std::get<1>(state_).ok(), "a Result cannot be made from an ok Status");
  }

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }
  T& value() & {
    CHECK_MSG(ok(), status().to_string());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK_MSG(ok(), status().to_string());
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK_MSG(ok(), status().to_string());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace fathom

#define FATHOM_CONCAT_INNER(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expr)                               \
  do {                                                      \
    if (::fathom::Status status_ = (expr); !status_.ok()) { \
      return status_;                                       \
    }                                                       \
  } while (0)

// ASSIGN_OR_RETURN(auto x, f());
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_INNER(FATHOM_CONCAT(result_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  lhs = std::move(tmp).value()
