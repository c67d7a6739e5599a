// Reading within limits, answering, and telling a client that has left from one that is only done sending.
#include "serve/api/http_connection.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <new>

#include "serve/api/http_head.h"
#include "serve/api/http_target.h"

namespace fathom::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Pipelined bytes kept while an answer is being written.
constexpr size_t kPipelinedBytesMax = 64 << 10;
constexpr size_t kHeadReadBytes = 4 << 10;
constexpr size_t kBodyReadBytes = 64 << 10;
constexpr int kSendBufferBytes = 256 << 10;
// Before a request line; RFC 9112, 2.2 asks for one at least.
constexpr int kEmptyLinesMax = 8;
// A client that is refused in mid-request is still sending. Closing at once would reset the connection and
// take the answer with it, so what it sends is read and dropped until it stops, this long at most.
constexpr std::chrono::seconds kLingerTimeMax{10};
// Most answers are out by then, and no client sees the probe.
constexpr std::chrono::milliseconds kProbeDelay{250};

std::string_view reason_phrase(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

std::string response_head(int status, std::string_view content_type,
                          const std::vector<std::pair<std::string, std::string>>& headers,
                          std::string_view framing, std::string_view connection) {
  std::string bytes = fmt::format("HTTP/1.1 {} {}\r\nServer: fathom\r\n", status, reason_phrase(status));
  if (!content_type.empty()) bytes += fmt::format("Content-Type: {}\r\n", content_type);
  for (const auto& [name, value] : headers) bytes += fmt::format("{}: {}\r\n", name, value);
  bytes += framing;
  if (!connection.empty()) bytes += fmt::format("Connection: {}\r\n", connection);
  bytes += "\r\n";
  return bytes;
}

}  // namespace

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, asio::io_context& io, HttpRequest request,
           std::shared_ptr<BodyBytes> body_bytes, bool keep_alive, bool http_1_0)
      : connection_(std::move(connection)),
        io_(io),
        request_(std::move(request)),
        body_bytes_(std::move(body_bytes)),
        keep_alive_(keep_alive),
        http_1_0_(http_1_0) {}

  const HttpRequest& request() const override { return request_; }
  void drop_body() override {
    std::string().swap(request_.body);
    body_bytes_.reset();
  }

  void respond(HttpResponse response) override {
    std::string bytes = head(response.status, response.content_type, response.headers,
                             fmt::format("Content-Length: {}\r\n", response.body.size()));
    if (request_.method == "HEAD") response.body.clear();
    on_socket_thread([this, bytes = std::move(bytes), body = std::move(response.body)]() mutable {
      if (answered_) return;
      answered_ = finished_ = true;
      connection_->send(std::move(bytes), std::move(body));
      connection_->finish_answer(keep_alive_);
    });
  }

  void begin_stream(std::string content_type,
                    std::vector<std::pair<std::string, std::string>> headers) override {
    event_stream_ = content_type.starts_with("text/event-stream");
    // HTTP/1.0 knows no chunks: the end of the connection ends the stream.
    if (http_1_0_) keep_alive_ = false;
    std::string bytes = head(200, content_type, headers, http_1_0_ ? "" : "Transfer-Encoding: chunked\r\n");
    on_socket_thread([this, bytes = std::move(bytes)]() mutable {
      if (answered_) return;
      answered_ = true;
      connection_->send(std::move(bytes));
    });
  }

  void write(std::string bytes) override {
    if (bytes.empty()) return;
    std::string framed = frame(std::move(bytes));
    connection_->unsent_bytes.fetch_add(framed.size(), std::memory_order_relaxed);
    on_socket_thread([this, framed = std::move(framed)]() mutable {
      connection_->unsent_bytes.fetch_sub(framed.size(), std::memory_order_relaxed);
      if (!finished_) connection_->send(std::move(framed));
    });
  }

  void finish() override {
    on_socket_thread([this] {
      if (finished_) return;
      finished_ = true;
      if (!http_1_0_) connection_->send("0\r\n\r\n");
      connection_->finish_answer(keep_alive_);
    });
  }

  size_t unsent_bytes() const override { return connection_->unsent_bytes.load(std::memory_order_relaxed); }
  bool gone() const override { return gone_.load(std::memory_order_acquire); }

  void on_gone(std::function<void()> callback) override {
    on_socket_thread(
        [this, callback = std::move(callback)]() mutable {
          if (finished_) return;
          if (gone()) {
            callback();
          } else {
            on_gone_ = std::move(callback);
          }
        },
        /*even_if_gone=*/true);
  }
  void on_drained(std::function<void()> callback) override {
    on_socket_thread([this, callback = std::move(callback)]() mutable { on_drained_ = std::move(callback); });
  }

  // Socket thread.
  void connection_lost() {
    if (finished_ || gone_.exchange(true)) return;
    on_drained_ = nullptr;
    if (auto callback = std::exchange(on_gone_, nullptr)) callback();
  }
  // Sends something that says nothing: if the client is not only done sending but gone, its reset comes back.
  // An HTTP/1.0 client knows nothing of the kind before the answer.
  void probe() {
    if (finished_) return;
    if (answered_) {
      if (event_stream_) connection_->send(frame(":\n\n"));
    } else if (!http_1_0_) {
      connection_->send("HTTP/1.1 100 Continue\r\n\r\n");
    }
  }
  void drained() {
    if (on_drained_) on_drained_();
  }
  void forget_callbacks() {
    on_gone_ = nullptr;
    on_drained_ = nullptr;
  }

 private:
  template <typename Fn>
  void on_socket_thread(Fn fn, bool even_if_gone = false) {
    // Posted even from the socket thread: callers may hold locks that a callback of the connection takes.
    asio::post(io_, [self = shared_from_this(), fn = std::move(fn), even_if_gone]() mutable {
      if (even_if_gone || !self->gone()) fn();
    });
  }

  std::string head(int status, std::string_view content_type,
                   const std::vector<std::pair<std::string, std::string>>& headers,
                   std::string_view framing) {
    return response_head(status, content_type, headers, framing,
                         !keep_alive_ ? "close"
                         : http_1_0_  ? "keep-alive"
                                      : "");
  }
  std::string frame(std::string bytes) const {
    return http_1_0_ ? std::move(bytes) : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
  }

  const std::shared_ptr<Connection> connection_;
  asio::io_context& io_;
  HttpRequest request_;
  std::shared_ptr<BodyBytes> body_bytes_;
  std::atomic<bool> keep_alive_;
  const bool http_1_0_;
  std::atomic<bool> gone_{false};
  bool event_stream_ = false;  // set before the socket thread is told of the stream
  // Socket thread.
  bool answered_ = false;
  bool finished_ = false;
  std::function<void()> on_gone_;
  std::function<void()> on_drained_;
};

void Connection::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  read_request(owner_.options().header_timeout_max);
}

void Connection::end_input() {
  if (exchange_ != nullptr || failed_) return;
  if (!reading_request_) return close();
  refuse(503, "the server is shutting down", "shutting_down");
}

void Connection::arm(asio::steady_timer& timer, std::chrono::milliseconds after,
                     void (Connection::*expired)()) {
  timer.expires_after(after);
  timer.async_wait([self = shared_from_this(), &timer, expired](error_code error) {
    // A handler already queued when the timer was set again must not fire for the old deadline.
    if (error || self->closed_ || timer.expiry() > std::chrono::steady_clock::now()) return;
    (self.get()->*expired)();
  });
}

void Connection::read_request(std::chrono::milliseconds timeout) {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(owner_.options().header_bytes_max));
  parser_->body_limit(owner_.options().body_bytes_max);
  parser_->eager(false);  // stop after the header
  request_ = HttpRequest();
  body_bytes_.reset();
  body_wire_bytes_ = 0;
  num_empty_lines_ = 0;
  reading_request_ = false;
  arm(deadline_, timeout, &Connection::request_timed_out);
  advance();
}

void Connection::advance() {
  for (;;) {
    if (!parser_->got_some() && !skip_empty_lines()) return read_more();
    if (buffer_.size() == 0) return read_more();
    reading_request_ = true;
    const bool in_body = parser_->is_header_done();
    error_code error;
    const size_t used = parser_->put(buffer_.cdata(), error);
    buffer_.consume(used);
    if (error && error != http::error::need_more) return refuse_malformed(error);
    if (in_body && !count_body(used)) return;
    if (!in_body && parser_->is_header_done() && !take_head()) return;
    if (parser_->is_done()) return dispatch();
    if (error == http::error::need_more) return read_more();
  }
}

// False: there may be more of them to come.
bool Connection::skip_empty_lines() {
  for (;;) {
    const std::string_view text(static_cast<const char*>(buffer_.cdata().data()), buffer_.size());
    if (text == "\r") return false;
    if (!text.starts_with("\r\n") || num_empty_lines_ == kEmptyLinesMax) return true;
    ++num_empty_lines_;
    buffer_.consume(2);
  }
}

void Connection::read_more() {
  if (input_over_) return input_ended();
  socket_.async_read_some(
      buffer_.prepare(parser_->is_header_done() ? kBodyReadBytes : kHeadReadBytes),
      [self = shared_from_this()](error_code error, size_t num_bytes) { self->on_read(error, num_bytes); });
}

void Connection::on_read(error_code error, size_t num_bytes) {
  if (closed_ || failed_) return;
  if (error == asio::error::eof) {
    input_over_ = true;
    return input_ended();
  }
  if (error) return close();
  buffer_.commit(num_bytes);
  try {
    advance();
  } catch (const std::bad_alloc&) {
    close();  // no memory for this body; the others go on
  }
}

void Connection::input_ended() {
  if (!reading_request_) return close();
  refuse(400, "the request ended before it was complete", "incomplete_request");
}

bool Connection::take_head() {
  const auto& message = parser_->get();
  request_.method = std::string(message.method_string());
  const auto target = message.target();
  request_.path = path_of_target({target.data(), target.size()});
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    request_.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  if (const auto refusal = check_head(request_, static_cast<int>(message.version()))) {
    return refuse(refusal->status, refusal->message, refusal->code);
  }
  if (parser_->is_done()) return true;

  if (const auto response = owner_.refuse_head(request_)) return refuse(*response);
  body_bytes_ = std::make_shared<BodyBytes>(owner_.bodies_bytes());
  if (!request_.header("expect").empty() && message.version() >= 11) send("HTTP/1.1 100 Continue\r\n\r\n");
  parser_->eager(true);
  arm(deadline_, owner_.options().body_timeout_max, &Connection::request_timed_out);
  return true;
}

// Chunks have a framing of their own: extensions of any length, a trailer, and chunks as small as one byte.
// The parser takes a chunk's line and the trailer whole, so that what is left over in the buffer is one that
// has not ended.
bool Connection::count_body(size_t num_bytes) {
  const HttpOptions& options = owner_.options();
  body_wire_bytes_ += num_bytes;
  if (!parser_->is_done() && buffer_.size() > options.header_bytes_max) {
    return refuse(431, "chunk line or trailer too large", "header_too_large");
  }
  if (body_wire_bytes_ > options.body_bytes_max + options.header_bytes_max) {
    return refuse(413, "request body too large, its framing counted", "body_too_large");
  }
  if (body_bytes_->add(num_bytes) > options.bodies_bytes_max) {
    return refuse(503, "the server holds too many request bodies", "overloaded");
  }
  return true;
}

void Connection::dispatch() {
  deadline_.cancel();
  request_.body = std::move(parser_->get().body());
  request_.body_bytes = request_.body.size();
  request_.arrived = SystemClock().now();
  const bool keep_alive = parser_->get().keep_alive() && owner_.accepting();
  answer_done_ = false;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), owner_.io(), std::move(request_),
                                         std::move(body_bytes_), keep_alive, parser_->get().version() == 10);
  watch_client();
  owner_.handle(exchange_);
}

// While an answer is being made, the socket is read so that the client's leaving is seen; bytes of a
// pipelined request are kept, up to a limit.
void Connection::watch_client() {
  if (watching_ || closed_) return;
  if (input_over_) return arm(deadline_, kProbeDelay, &Connection::probe_client);
  watching_ = true;
  if (buffer_.size() >= kPipelinedBytesMax) pipelined_too_much_ = true;
  socket_.async_read_some(
      pipelined_too_much_ ? asio::buffer(discarded_) : asio::mutable_buffer(buffer_.prepare(kHeadReadBytes)),
      [self = shared_from_this()](error_code error, size_t num_bytes) {
        self->on_watched(error, num_bytes);
      });
}

void Connection::on_watched(error_code error, size_t num_bytes) {
  watching_ = false;
  if (closed_) return;
  if (error == asio::error::eof) {
    client_stopped_sending();
  } else if (error && error != asio::error::operation_aborted) {
    return close();
  } else if (!error && !pipelined_too_much_) {
    buffer_.commit(num_bytes);
  }
  if (answer_done_) {
    finish_answer(keep_alive_);
  } else {
    watch_client();
  }
}

// Either it has left, or it waits for the answer with its sending side shut down. Only a reset tells: it
// comes in answer to something that is sent.
void Connection::client_stopped_sending() {
  input_over_ = true;
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](error_code error) {
    if (!error && !self->closed_) self->close();
  });
}

void Connection::probe_client() {
  if (exchange_ && !answer_done_) exchange_->probe();
}

void Connection::send(std::string bytes, std::string more) {
  if (closed_) return;
  unsent_bytes.fetch_add(bytes.size() + more.size(), std::memory_order_relaxed);
  outgoing_.push_back(std::move(bytes));
  if (!more.empty()) outgoing_.push_back(std::move(more));
  if (unsent_bytes.load(std::memory_order_relaxed) > owner_.options().unsent_bytes_max &&
      exchange_ != nullptr && write_in_flight_) {
    return close();
  }
  if (!write_in_flight_) write_next();
}

void Connection::write_next() {
  if (outgoing_.empty()) {
    write_deadline_.cancel();
    if (exchange_) exchange_->drained();
    if (answer_done_) finish_answer(keep_alive_);
    return;
  }
  write_in_flight_ = true;
  writing_.assign(std::make_move_iterator(outgoing_.begin()), std::make_move_iterator(outgoing_.end()));
  outgoing_.clear();
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(writing_.size());
  for (const std::string& part : writing_) buffers.emplace_back(part.data(), part.size());
  // The deadline is for progress: it is set again whenever the socket has taken some bytes.
  arm(write_deadline_, owner_.options().write_stall_max, &Connection::write_stalled);
  asio::async_write(
      socket_, buffers,
      [self = shared_from_this(), last = size_t{0}](const error_code& error,
                                                    size_t so_far) mutable -> size_t {
        if (error) return 0;
        if (so_far != last) {
          last = so_far;
          self->arm(self->write_deadline_, self->owner_.options().write_stall_max,
                    &Connection::write_stalled);
        }
        return 65536;
      },
      [self = shared_from_this()](error_code error, size_t) {
        self->write_in_flight_ = false;
        if (self->closed_) return;
        if (error) return self->close();
        for (const std::string& part : self->writing_) {
          self->unsent_bytes.fetch_sub(part.size(), std::memory_order_relaxed);
        }
        self->writing_.clear();
        self->write_next();
      });
}

void Connection::finish_answer(bool keep_alive) {
  answer_done_ = true;
  keep_alive_ = keep_alive;
  if (closed_ || lingering_ || write_in_flight_ || !outgoing_.empty()) return;
  if (failed_ || pipelined_too_much_) return linger();
  if (!keep_alive || !owner_.accepting()) return close();
  if (watching_) {
    // The next request's bytes must not race with the watcher for the buffer.
    error_code ignored;
    socket_.cancel(ignored);
    return;
  }
  if (exchange_) exchange_->forget_callbacks();
  exchange_ = nullptr;
  answer_done_ = false;
  read_request(owner_.options().idle_timeout_max);
}

bool Connection::refuse(int status, std::string_view message, std::string_view code) {
  HttpResponse response{.status = status};
  response.body = fmt::format(R"({{"error":{{"message":"{}","type":"{}","param":null,"code":"{}"}}}})",
                              message, status == 503 ? "server_error" : "invalid_request_error", code);
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return refuse(response);
}

bool Connection::refuse(const HttpResponse& response) {
  deadline_.cancel();
  failed_ = true;
  body_bytes_.reset();
  std::string bytes = response_head(response.status, response.content_type, response.headers,
                                    fmt::format("Content-Length: {}\r\n", response.body.size()), "close");
  if (request_.method != "HEAD") bytes += response.body;
  parser_.reset();  // with what there is of the body
  send(std::move(bytes));
  finish_answer(/*keep_alive=*/false);
  return false;
}

void Connection::refuse_malformed(error_code error) {
  if (error == http::error::header_limit) {
    refuse(431, "request header too large", "header_too_large");
  } else if (error == http::error::body_limit) {
    refuse(413, "request body too large", "body_too_large");
  } else {
    refuse(400, "malformed HTTP request", "bad_http");
  }
}

void Connection::linger() {
  lingering_ = true;
  error_code ignored;
  socket_.cancel(ignored);  // the request that is being read, if it is
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(deadline_, kLingerTimeMax, &Connection::close);
  discard_next();
}

void Connection::discard_next() {
  socket_.async_read_some(asio::buffer(discarded_), [self = shared_from_this()](error_code error, size_t) {
    if (self->closed_) return;
    if (error) return self->close();
    self->discard_next();
  });
}

void Connection::request_timed_out() {
  if (!reading_request_) return close();
  refuse(408, "the request did not arrive in time", "request_timeout");
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  deadline_.cancel();
  write_deadline_.cancel();
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
  outgoing_.clear();
  if (exchange_) {
    exchange_->connection_lost();
    exchange_->forget_callbacks();
    exchange_ = nullptr;
  }
  owner_.remove(shared_from_this());
}

}  // namespace fathom::serve
