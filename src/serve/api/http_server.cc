// The listener: accepts connections, hands their requests to threads, and ends in order.
#include "serve/api/http_server.h"

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/system/system_error.hpp>
#include <set>
#include <thread>

#include "base/log.h"
#include "serve/api/http_connection.h"
#include "serve/api/memory_reserve.h"

namespace fathom::serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kLargeBodyBytes = 256 << 10;

HttpResponse out_of_memory() {
  return {.status = 503,
          .body = R"({"error":{"message":"the server has no memory for this request",)"
                  R"("type":"server_error","param":null,"code":"overloaded"}})",
          .headers = {{"Retry-After", "1"}}};
}

class ServerImpl final : public HttpServer, public ConnectionOwner {
 public:
  ServerImpl(const HttpOptions& options, int worker_threads)
      : options_(options), acceptor_(io_), workers_(worker_threads), large_(1), outputs_(worker_threads) {}
  ~ServerImpl() override;

  Status bind();
  Status listen(HttpHandler handler, HttpHeadCheck refuse_head) override;
  uint16_t port() const override { return port_; }
  void post(std::function<void()> fn) override { run_on(outputs_, std::move(fn)); }
  void post_after(std::chrono::milliseconds delay, std::function<void()> fn) override;
  void stop_accepting() override;
  int num_connections() const override { return num_connections_.load(std::memory_order_relaxed); }

  const HttpOptions& options() const override { return options_; }
  asio::io_context& io() override { return io_; }
  bool accepting() const override { return accepting_; }
  std::optional<HttpResponse> refuse_head(const HttpRequest& head) override { return refuse_head_(head); }
  void handle(std::shared_ptr<HttpExchange> exchange) override {
    const size_t body_bytes = exchange->request().body.size();
    asio::thread_pool& threads = body_bytes == 0                ? outputs_
                                 : body_bytes < kLargeBodyBytes ? workers_
                                                                : large_;
    run_on(threads, [this, exchange = std::move(exchange)] {
      if (exchange->gone()) return;
      refill_memory_reserve();
      if (!has_memory_for([&] { handler_(exchange); })) exchange->respond(out_of_memory());
    });
  }
  void remove(const std::shared_ptr<Connection>& connection) override;
  std::atomic<size_t>& bodies_bytes() override { return bodies_bytes_; }

 private:
  // What still waits for a thread at the end is dropped: the end does not wait for it.
  template <typename Fn>
  void run_on(asio::thread_pool& threads, Fn fn) {
    asio::post(threads, [this, fn = std::move(fn)] {
      if (!ending_.load(std::memory_order_relaxed)) has_memory_for(fn);
    });
  }
  void accept_next();
  Status cannot_listen(const error_code& error) const;

  const HttpOptions options_;
  HttpHandler handler_;  // both set before the socket thread starts
  HttpHeadCheck refuse_head_;
  std::atomic<size_t> bodies_bytes_{0};
  std::atomic<bool> ending_{false};
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::thread_pool workers_;
  asio::thread_pool
      large_;  // one thread: their tokens take seconds and gigabytes, and small ones must not wait
  asio::thread_pool outputs_;
  uint16_t port_ = 0;
  bool accepting_ = true;                              // socket thread
  std::set<std::shared_ptr<Connection>> connections_;  // socket thread
  std::atomic<int> num_connections_{0};
  std::thread thread_;
};

Status ServerImpl::bind() {
  if (options_.bodies_bytes_max < options_.body_bytes_max) {
    return invalid_argument("--bodies-max {} is less than --body-max {}: such a body would never fit",
                            options_.bodies_bytes_max, options_.body_bytes_max);
  }
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

Status ServerImpl::listen(HttpHandler handler, HttpHeadCheck refuse_head) {
  handler_ = std::move(handler);
  refuse_head_ = std::move(refuse_head);
  error_code error;
  acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return cannot_listen(error);
  accept_next();
  refill_memory_reserve();
  thread_ = std::thread([this] {
    auto guard = asio::make_work_guard(io_);
    // A handler that ran out of memory leaves its connection to its deadline; the others go on.
    while (!has_memory_for([this] { io_.run(); })) {
    }
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
      connection->end_input();
    }
  });
}

ServerImpl::~ServerImpl() {
  ending_.store(true, std::memory_order_relaxed);
  asio::post(io_, [this] {
    accepting_ = false;
    error_code ignored;
    acceptor_.close(ignored);
    const std::vector<std::shared_ptr<Connection>> open(connections_.begin(), connections_.end());
    for (const auto& connection : open) connection->close();
  });
  workers_.join();
  large_.join();
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
  try {
    auto server = std::make_unique<ServerImpl>(options, worker_threads);
    RETURN_IF_ERROR(server->bind());
    return std::unique_ptr<HttpServer>(std::move(server));
  } catch (const boost::system::system_error& error) {  // no thread, no descriptor
    return make_status(StatusCode::kUnavailable, "cannot start the HTTP server: {}", error.what());
  }
}

}  // namespace fathom::serve
