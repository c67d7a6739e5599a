// The listener: accepts connections, hands their requests to threads, and ends in order.
#include "serve/api/http_server.h"

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/system/system_error.hpp>
#include <mutex>
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

HttpResponse overloaded(std::string_view message) {
  return {.status = 503,
          .body = fmt::format(
              R"({{"error":{{"message":"{}","type":"server_error","param":null,"code":"overloaded"}}}})",
              message),
          .headers = {{"Retry-After", "1"}}};
}

// The requests that have come and whose handlers have not come back. Thread-safe.
class OpenHandling {
 public:
  // One of them, from its arrival until it is handled or given up.
  class Entry {
   public:
    Entry(OpenHandling& all, std::shared_ptr<HttpExchange> exchange, bool large)
        : all_(all), exchange_(std::move(exchange)), large_(large) {
      all_.num_large_ += large_;
      std::lock_guard lock(all_.mu_);
      all_.entries_.insert(this);
    }
    ~Entry() {
      release_large();
      std::lock_guard lock(all_.mu_);
      all_.entries_.erase(this);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    const std::shared_ptr<HttpExchange>& exchange() const { return exchange_; }
    // True for the one caller that may handle it or give it up.
    bool take() { return !taken_.exchange(true); }
    void give_up() {
      exchange_->drop_body();
      release_large();
    }

   private:
    void release_large() { all_.num_large_ -= large_.exchange(false); }

    OpenHandling& all_;
    const std::shared_ptr<HttpExchange> exchange_;
    std::atomic<bool> large_;
    std::atomic<bool> taken_{false};
  };

  int num_large() const { return num_large_.load(std::memory_order_relaxed); }
  std::vector<std::shared_ptr<HttpExchange>> exchanges() const {
    std::lock_guard lock(mu_);
    std::vector<std::shared_ptr<HttpExchange>> all;
    for (const Entry* entry : entries_) all.push_back(entry->exchange());
    return all;
  }

 private:
  std::atomic<int> num_large_{0};
  mutable std::mutex mu_;
  std::set<Entry*> entries_;  // guarded by mu_
};

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
  int num_handling() const override { return static_cast<int>(handling_.exchanges().size()); }
  void end_handling(const HttpResponse& response) override {
    for (const auto& exchange : handling_.exchanges()) exchange->respond(response);
  }

  const HttpOptions& options() const override { return options_; }
  asio::io_context& io() override { return io_; }
  bool accepting() const override { return accepting_; }
  std::optional<HttpResponse> refuse_head(const HttpRequest& head) override { return refuse_head_(head); }
  void handle(std::shared_ptr<HttpExchange> exchange) override;
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
  void give_up_waiting(const std::shared_ptr<OpenHandling::Entry>& entry);
  void accept_next();
  Status cannot_listen(const error_code& error) const;

  const HttpOptions options_;
  HttpHandler handler_;  // both set before the socket thread starts
  HttpHeadCheck refuse_head_;
  std::atomic<size_t> bodies_bytes_{0};
  std::atomic<bool> ending_{false};
  OpenHandling handling_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::thread_pool workers_;
  asio::thread_pool large_;  // one thread
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

void ServerImpl::handle(std::shared_ptr<HttpExchange> exchange) {
  const size_t body_bytes = exchange->request().body.size();
  const bool large = body_bytes >= kLargeBodyBytes;
  if (large && handling_.num_large() >= options_.large_bodies_max) {
    exchange->drop_body();
    return exchange->respond(overloaded("the server holds too many large request bodies"));
  }
  asio::thread_pool& threads = body_bytes == 0 ? outputs_ : large ? large_ : workers_;
  auto entry = std::make_shared<OpenHandling::Entry>(handling_, std::move(exchange), large);
  if (large) give_up_waiting(entry);
  run_on(threads, [this, entry = std::move(entry)] {
    if (!entry->take() || entry->exchange()->gone()) return;
    refill_memory_reserve();
    if (!has_memory_for([&] { handler_(entry->exchange()); })) {
      entry->exchange()->respond(overloaded("the server has no memory for this request"));
    }
  });
}

// Unless its turn comes before: when its client leaves, and after a while.
void ServerImpl::give_up_waiting(const std::shared_ptr<OpenHandling::Entry>& entry) {
  const auto if_waiting = [weak = std::weak_ptr(entry)](auto then) {
    const auto waiting = weak.lock();
    if (!waiting || !waiting->take()) return;
    then(*waiting->exchange());
    waiting->give_up();
  };
  entry->exchange()->on_gone([if_waiting] { if_waiting([](HttpExchange&) {}); });
  post_after(options_.large_wait_max, [if_waiting] {
    if_waiting([](HttpExchange& exchange) {
      exchange.respond(overloaded("the request waited too long behind other large ones"));
    });
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
