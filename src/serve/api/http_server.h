// HTTP/1.1 with streaming answers. Beast and Asio end in http_server.cc and http_connection.cc; the rest of
// the API sees requests, answers and one object per exchange.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace fathom::serve {

// Bodies from this size on share one thread: their tokens take seconds and much memory, and small ones must
// not wait.
inline constexpr size_t kLargeBodyBytes = 256 << 10;

// Every limit of the listener. Reaching one is a defined answer (in brackets).
struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                 // 0: any free port, see HttpServer::port()
  int connections_max = 4096;           // [the connection is closed at once]
  size_t header_bytes_max = 64 << 10;   // [431]
  size_t body_bytes_max = 8 << 20;      // [413]; a chunked one's framing may add header_bytes_max
  size_t bodies_bytes_max = 256 << 20;  // of all bodies that are being read or parsed [503]
  int large_bodies_max = 64;  // of kLargeBodyBytes and more, waiting for their thread or on it [503]
  std::chrono::milliseconds large_wait_max{600'000};  // for that thread [503]
  std::chrono::milliseconds header_timeout_max{
      10'000};  // from accept or the end of the last answer's request [408]
  std::chrono::milliseconds idle_timeout_max{75'000};  // a kept-alive connection without a request [closed]
  std::chrono::milliseconds body_timeout_max{60'000};  // [408]
  std::chrono::milliseconds write_stall_max{30'000};   // the client reads nothing [aborted]
  size_t unsent_bytes_max = 4 << 20;                   // bytes queued for one connection [aborted]
};

struct HttpRequest {
  std::string method;
  std::string path;                                          // without the query; %XX decoded
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // empty once dropped
  size_t body_bytes = 0;                                     // its size as it came
  TimePoint arrived{};                                       // when all of it was there

  std::string_view header(std::string_view lower_name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// One request and its answer. All methods are thread-safe; after the client is gone they do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  // Frees the body. By the handler, once it has read it.
  virtual void drop_body() = 0;

  // Exactly one of: respond(), or begin_stream() then write()* then finish().
  virtual void respond(HttpResponse response) = 0;
  virtual void begin_stream(std::string content_type,
                            std::vector<std::pair<std::string, std::string>> headers) = 0;
  virtual void write(std::string bytes) = 0;
  virtual void finish() = 0;

  // Bytes accepted by write() that the socket has not taken yet: a slow client shows here.
  virtual size_t unsent_bytes() const = 0;
  // Called once, on the listener's thread, if the client leaves or is cut off before the answer is complete.
  // Called at once when that has already happened.
  virtual void on_gone(std::function<void()> callback) = 0;
  // Called on the listener's thread whenever everything written so far has reached the socket.
  virtual void on_drained(std::function<void()> callback) = 0;
  virtual bool gone() const = 0;
};

using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;
// The answer that refuses a request before its body is read. On the socket thread, for requests with a body
// only: the handler checks again.
using HttpHeadCheck = std::function<std::optional<HttpResponse>(const HttpRequest& head)>;

// Runs one thread for sockets, `worker_threads` and one for large ones for handlers of requests with a body
// (parsing, templates, tokenising), and as many again for the rest: output of running requests and requests
// without a body must not wait behind somebody's long prompt.
class HttpServer {
 public:
  // Takes the address, without letting clients in: INVALID_ARGUMENT when it cannot be parsed, UNAVAILABLE
  // when it cannot be bound.
  static Result<std::unique_ptr<HttpServer>> bind(const HttpOptions& options, int worker_threads);
  virtual ~HttpServer() = default;

  // Once. From here on clients connect and both are called; UNAVAILABLE when listening fails.
  virtual Status listen(HttpHandler handler, HttpHeadCheck refuse_head) = 0;
  virtual uint16_t port() const = 0;
  // Runs fn on an output thread, or on the socket thread after a delay. Dropped after shutdown.
  virtual void post(std::function<void()> fn) = 0;
  virtual void post_after(std::chrono::milliseconds delay, std::function<void()> fn) = 0;
  // Stops accepting and closes idle connections; answers in flight go on.
  virtual void stop_accepting() = 0;
  virtual int num_connections() const = 0;
  // Requests whose handler has not come back, those that wait for a thread included.
  virtual int num_handling() const = 0;
  // Answers each of these; what their handlers say afterwards goes nowhere.
  virtual void end_handling(const HttpResponse& response) = 0;
};

}  // namespace fathom::serve
