// The only file of the API that knows Beast and Asio. One socket thread runs all connections; a connection is
// a chain of callbacks: header -> body -> handler (on a worker) -> answer -> next header.
#include "serve/api/http_server.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/optional.hpp>
#include <deque>
#include <set>
#include <thread>

#include "base/log.h"
#include "serve/api/http_target.h"

namespace fathom::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Pipelined bytes accepted while an answer is being written; beyond it we stop reading, and so stop noticing
// that such a client has left until we write to it.
constexpr size_t kPipelinedBytesMax = 256 << 10;
constexpr int kSendBufferBytes = 256 << 10;
// A client that is refused in mid-request is still sending. Closing at once would reset the connection and
// take the answer with it, so what it sends is read and dropped until it stops, this long at most.
constexpr std::chrono::seconds kLingerTimeMax{10};

std::string_view reason_phrase(int status) {
  const auto text = http::obsolete_reason(static_cast<http::status>(status));
  return {text.data(), text.size()};
}

std::string error_body(std::string_view message, std::string_view code) {
  return fmt::format(
      R"({{"error":{{"message":"{}","type":"invalid_request_error","param":null,"code":"{}"}}}})", message,
      code);
}

class Connection;

class ServerImpl final : public HttpServer {
 public:
  ServerImpl(const HttpOptions& options, int worker_threads)
      : options_(options), acceptor_(io_), workers_(worker_threads), outputs_(worker_threads) {}
  ~ServerImpl() override;

  Status bind();
  Status listen(HttpHandler handler) override;
  uint16_t port() const override { return port_; }
  void post(std::function<void()> fn) override { asio::post(outputs_, std::move(fn)); }
  void post_after(std::chrono::milliseconds delay, std::function<void()> fn) override;
  void stop_accepting() override;
  int num_connections() const override { return num_connections_.load(std::memory_order_relaxed); }

  const HttpOptions& options() const { return options_; }
  asio::io_context& io() { return io_; }
  bool accepting() const { return accepting_; }
  void handle(std::shared_ptr<HttpExchange> exchange) {
    asio::thread_pool& threads = exchange->request().body.empty() ? outputs_ : workers_;
    asio::post(threads, [this, exchange = std::move(exchange)] { handler_(exchange); });
  }
  void remove(const std::shared_ptr<Connection>& connection);

 private:
  void accept_next();
  Status cannot_listen(const error_code& error) const;

  const HttpOptions options_;
  HttpHandler handler_;  // set before the socket thread starts
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::thread_pool workers_;
  asio::thread_pool outputs_;
  uint16_t port_ = 0;
  bool accepting_ = true;                              // socket thread
  std::set<std::shared_ptr<Connection>> connections_;  // socket thread
  std::atomic<int> num_connections_{0};
  std::thread thread_;
};

class Exchange;

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ServerImpl& server, tcp::socket socket)
      : server_(server), socket_(std::move(socket)), deadline_(server.io()), write_deadline_(server.io()) {}

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    read_header(server_.options().header_timeout_max);
  }

  bool idle() const { return exchange_ == nullptr && !reading_request_; }
  void close();

  // From the exchange, on the socket thread.
  void send(std::string bytes);
  void finish_answer(bool keep_alive);

  std::atomic<size_t> unsent_bytes{0};

 private:
  friend class Exchange;
  void read_header(std::chrono::milliseconds timeout);
  void on_header(error_code error);
  void read_body();
  void on_body(error_code error);
  void watch_for_eof();
  void write_next();
  void linger();
  void discard_next();
  void fail_request(int status, std::string_view message, std::string_view code);
  void arm(asio::steady_timer& timer, std::chrono::milliseconds after, void (Connection::*expired)());
  void request_timed_out();
  void write_stalled() { close(); }

  ServerImpl& server_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  asio::steady_timer write_deadline_;
  beast::flat_buffer buffer_;
  boost::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Exchange> exchange_;
  std::deque<std::string> outgoing_;
  std::vector<std::string> writing_;
  bool write_in_flight_ = false;
  bool watching_ = false;
  bool reading_request_ = false;
  bool answer_done_ = false;
  bool keep_alive_ = true;
  bool failed_ = false;  // refused in mid-request: what still comes in is no request
  bool closed_ = false;
  std::array<char, 16384> discarded_;
};

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Connection> connection, asio::io_context& io, HttpRequest request, bool keep_alive,
           bool http_1_0)
      : connection_(std::move(connection)),
        io_(io),
        request_(std::move(request)),
        keep_alive_(keep_alive),
        http_1_0_(http_1_0) {}

  const HttpRequest& request() const override { return request_; }

  void respond(HttpResponse response) override {
    std::string bytes = head(response.status, response.content_type, response.headers,
                             fmt::format("Content-Length: {}\r\n", response.body.size()));
    if (request_.method != "HEAD") bytes += response.body;
    on_socket_thread([this, bytes = std::move(bytes)]() mutable {
      if (answered_) return;
      answered_ = finished_ = true;
      connection_->send(std::move(bytes));
      connection_->finish_answer(keep_alive_);
    });
  }

  void begin_stream(std::string content_type,
                    std::vector<std::pair<std::string, std::string>> headers) override {
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
    std::string framed = http_1_0_ ? std::move(bytes) : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
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
    std::string bytes = fmt::format("HTTP/1.1 {} {}\r\nServer: fathom\r\n", status, reason_phrase(status));
    if (!content_type.empty()) bytes += fmt::format("Content-Type: {}\r\n", content_type);
    for (const auto& [name, value] : headers) bytes += fmt::format("{}: {}\r\n", name, value);
    bytes += framing;
    bytes += keep_alive_ ? (http_1_0_ ? "Connection: keep-alive\r\n" : "") : "Connection: close\r\n";
    bytes += "\r\n";
    return bytes;
  }

  const std::shared_ptr<Connection> connection_;
  asio::io_context& io_;
  const HttpRequest request_;
  bool keep_alive_;
  const bool http_1_0_;
  std::atomic<bool> gone_{false};
  // Socket thread.
  bool answered_ = false;
  bool finished_ = false;
  std::function<void()> on_gone_;
  std::function<void()> on_drained_;
};

void Connection::arm(asio::steady_timer& timer, std::chrono::milliseconds after,
                     void (Connection::*expired)()) {
  timer.expires_after(after);
  timer.async_wait([self = shared_from_this(), &timer, expired](error_code error) {
    // A handler already queued when the timer was set again must not fire for the old deadline.
    if (error || self->closed_ || timer.expiry() > std::chrono::steady_clock::now()) return;
    (self.get()->*expired)();
  });
}

void Connection::read_header(std::chrono::milliseconds timeout) {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(server_.options().header_bytes_max));
  parser_->body_limit(server_.options().body_bytes_max);
  reading_request_ = buffer_.size() > 0;
  arm(deadline_, timeout, &Connection::request_timed_out);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](error_code error, size_t) { self->on_header(error); });
}

void Connection::on_header(error_code error) {
  if (closed_ || failed_) return;
  reading_request_ = true;
  if (error == http::error::header_limit)
    return fail_request(431, "request header too large", "header_too_large");
  if (error == http::error::body_limit) return fail_request(413, "request body too large", "body_too_large");
  if (error && error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return fail_request(400, "malformed HTTP request", "bad_http");
  }
  if (error) return close();
  read_body();
}

void Connection::read_body() {
  const auto expect = parser_->get()[http::field::expect];
  if (beast::iequals(expect, "100-continue") && parser_->get().version() >= 11)
    send("HTTP/1.1 100 Continue\r\n\r\n");
  arm(deadline_, server_.options().body_timeout_max, &Connection::request_timed_out);
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, size_t) { self->on_body(error); });
}

void Connection::on_body(error_code error) {
  if (closed_ || failed_) return;
  deadline_.cancel();
  if (error == http::error::body_limit) return fail_request(413, "request body too large", "body_too_large");
  if (error && error.category() == http::make_error_code(http::error::bad_method).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return fail_request(400, "malformed HTTP request", "bad_http");
  }
  if (error) return close();

  auto message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const auto target = message.target();
  HttpTarget parsed = parse_target({target.data(), target.size()});
  request.path = std::move(parsed.path);
  request.query = std::move(parsed.query);
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  const bool keep_alive = message.keep_alive() && server_.accepting();
  answer_done_ = false;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), server_.io(), std::move(request), keep_alive,
                                         message.version() == 10);
  watch_for_eof();
  server_.handle(exchange_);
}

// While an answer is being made, the socket is read so that the client's leaving is seen; bytes of a
// pipelined request are kept.
void Connection::watch_for_eof() {
  if (watching_ || closed_ || buffer_.size() >= kPipelinedBytesMax) return;
  watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, size_t n) {
    self->watching_ = false;
    if (self->closed_ || error == asio::error::operation_aborted) {
      if (!self->closed_ && self->answer_done_) self->finish_answer(self->keep_alive_);
      return;
    }
    if (error) return self->close();
    self->buffer_.commit(n);
    if (self->answer_done_) {
      self->finish_answer(self->keep_alive_);
    } else {
      self->watch_for_eof();
    }
  });
}

void Connection::send(std::string bytes) {
  if (closed_) return;
  unsent_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
  outgoing_.push_back(std::move(bytes));
  if (unsent_bytes.load(std::memory_order_relaxed) > server_.options().unsent_bytes_max &&
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
  arm(write_deadline_, server_.options().write_stall_max, &Connection::write_stalled);
  asio::async_write(
      socket_, buffers,
      [self = shared_from_this(), last = size_t{0}](const error_code& error,
                                                    size_t so_far) mutable -> size_t {
        if (error) return 0;
        if (so_far != last) {
          last = so_far;
          self->arm(self->write_deadline_, self->server_.options().write_stall_max,
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
  if (closed_ || write_in_flight_ || !outgoing_.empty()) return;
  if (failed_) return linger();
  if (!keep_alive || !server_.accepting()) return close();
  if (watching_) {
    // The next request's bytes must not race with the watcher for the buffer.
    error_code ignored;
    socket_.cancel(ignored);
    return;
  }
  if (exchange_) exchange_->forget_callbacks();
  exchange_ = nullptr;
  answer_done_ = false;
  read_header(server_.options().idle_timeout_max);
}

void Connection::fail_request(int status, std::string_view message, std::string_view code) {
  deadline_.cancel();
  failed_ = true;
  const std::string body = error_body(message, code);
  send(
      fmt::format("HTTP/1.1 {} {}\r\nServer: fathom\r\nContent-Type: application/json\r\nContent-Length: "
                  "{}\r\nConnection: close\r\n\r\n{}",
                  status, reason_phrase(status), body.size(), body));
  finish_answer(/*keep_alive=*/false);
}

void Connection::linger() {
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
  if (!reading_request_ && buffer_.size() == 0) return close();
  fail_request(408, "the request did not arrive in time", "request_timeout");
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
  server_.remove(shared_from_this());
}

Status ServerImpl::bind() {
  error_code error;
  const auto address =
      asio::ip::make_address(options_.host == "localhost" ? "127.0.0.1" : options_.host, error);
  if (error) return invalid_argument("--host {}: not an IP address", options_.host);
  const tcp::endpoint endpoint(address, options_.port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (error) return cannot_listen(error);
  port_ = acceptor_.local_endpoint().port();
  return ok_status();
}

Status ServerImpl::cannot_listen(const error_code& error) const {
  return make_status(StatusCode::kUnavailable, "cannot listen on {}:{}: {}", options_.host, options_.port,
                     error.message());
}

Status ServerImpl::listen(HttpHandler handler) {
  handler_ = std::move(handler);
  error_code error;
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return cannot_listen(error);
  accept_next();
  thread_ = std::thread([this] {
    auto guard = asio::make_work_guard(io_);
    io_.run();
  });
  return ok_status();
}

void ServerImpl::accept_next() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (!accepting_ || error == asio::error::operation_aborted) return;
    if (error) {
      // Out of descriptors: let some connections end before trying again.
      log_warning("accept: {}", error.message());
      return post_after(std::chrono::milliseconds(50), [this] {
        if (accepting_) accept_next();
      });
    }
    if (static_cast<int>(connections_.size()) >= options_.connections_max) {
      error_code ignored;
      socket.close(ignored);
    } else {
      auto connection = std::make_shared<Connection>(*this, std::move(socket));
      connections_.insert(connection);
      num_connections_.store(static_cast<int>(connections_.size()), std::memory_order_relaxed);
      connection->start();
    }
    accept_next();
  });
}

void ServerImpl::remove(const std::shared_ptr<Connection>& connection) {
  connections_.erase(connection);
  num_connections_.store(static_cast<int>(connections_.size()), std::memory_order_relaxed);
}

void ServerImpl::post_after(std::chrono::milliseconds delay, std::function<void()> fn) {
  auto timer = std::make_shared<asio::steady_timer>(io_, delay);
  timer->async_wait([timer, fn = std::move(fn)](error_code error) {
    if (!error) fn();
  });
}

void ServerImpl::stop_accepting() {
  asio::post(io_, [this] {
    accepting_ = false;
    error_code ignored;
    acceptor_.close(ignored);
    const std::vector<std::shared_ptr<Connection>> open(connections_.begin(), connections_.end());
    for (const auto& connection : open) {
      if (connection->idle()) connection->close();
    }
  });
}

ServerImpl::~ServerImpl() {
  asio::post(io_, [this] {
    accepting_ = false;
    error_code ignored;
    acceptor_.close(ignored);
    const std::vector<std::shared_ptr<Connection>> open(connections_.begin(), connections_.end());
    for (const auto& connection : open) connection->close();
  });
  workers_.join();
  outputs_.join();
  // A second turn of the loop lets the closed connections' handlers run.
  asio::post(io_, [this] { io_.stop(); });
  if (thread_.joinable()) thread_.join();
}

}  // namespace

std::string_view HttpRequest::header(std::string_view lower_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_name) return value;
  }
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::bind(const HttpOptions& options, int worker_threads) {
  auto server = std::make_unique<ServerImpl>(options, worker_threads);
  RETURN_IF_ERROR(server->bind());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace fathom::serve
