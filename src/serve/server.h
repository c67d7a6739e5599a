// `fathom serve`: every role in one process. Options in, a running server out, and its orderly end.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "serve/api/admission.h"
#include "serve/api/http_server.h"
#include "serve/api/request.h"
#include "serve/local_model.h"

namespace fathom::serve {

struct ServeOptions {
  LocalModelOptions model;
  std::string api_key_file;  // empty: no key is asked for
  HttpOptions http;
  int http_threads = 2;  // parse, render, tokenise and format, beside the engine's threads
  AdmissionOptions admission;
  int64_t answer_bytes_max = RequestLimits{}.answer_bytes_max;  // of one request [400]
  double drain_timeout_s = 30;                                  // from SIGTERM until what still runs is ended
  double keep_alive_interval_s = 5;                             // `: keep-alive` comments on silent streams
  double request_timeout_s = 1800;                              // submission to last token
  double stall_timeout_s = 30;  // an engine without progress for so long counts as stalled
};

// Created and destroyed on one thread.
class Server {
 public:
  // After the drain time-out: for the engine to end what is left, and the last bytes to go out.
  static constexpr Duration kEndTimeMax = std::chrono::seconds(3);

  static Result<std::unique_ptr<Server>> start(const ServeOptions& options, const Clock& clock);
  virtual ~Server() = default;

  virtual uint16_t port() const = 0;
  // What runs on what, for the log, a line each: model, precision, ISA, memory plan, the engine's limits and
  // the API's.
  virtual std::string summary() const = 0;
  virtual const std::string& model_name() const = 0;
  // Readiness off at once; what runs may finish until the drain time-out; then everything ends, within
  // kEndTimeMax. False: the engine's thread hangs in a step, or a handler's in what cannot be cut short, a
  // word of megabytes for one. Their requests are answered with an error, and the server cannot be destroyed,
  // since that waits for the thread; the process must end without.
  [[nodiscard]] virtual bool shut_down() = 0;
};

}  // namespace fathom::serve
