// One client's connection: a chain of callbacks on the socket thread,
//   header -> body -> handler (on a worker) -> answer -> next header.
// Beast parses; reading is done here, so that every byte of a request counts against a limit.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/optional.hpp>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/http_server.h"

namespace fathom::serve {

class Connection;
class Exchange;

// What a connection needs of its listener. On the socket thread, except bodies_bytes().
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual const HttpOptions& options() const = 0;
  virtual boost::asio::io_context& io() = 0;
  virtual bool accepting() const = 0;
  virtual std::optional<HttpResponse> refuse_head(const HttpRequest& head) = 0;
  virtual void handle(std::shared_ptr<HttpExchange> exchange) = 0;
  virtual void remove(const std::shared_ptr<Connection>& connection) = 0;
  virtual std::atomic<size_t>& bodies_bytes() = 0;  // of all requests that hold one; outlives them
};

// One body's share of the bytes of all bodies.
class BodyBytes {
 public:
  explicit BodyBytes(std::atomic<size_t>& total) : total_(total) {}
  ~BodyBytes() { total_.fetch_sub(bytes_, std::memory_order_relaxed); }
  BodyBytes(const BodyBytes&) = delete;
  BodyBytes& operator=(const BodyBytes&) = delete;
  // Returns the total.
  size_t add(size_t bytes) {
    bytes_ += bytes;
    return total_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  }

 private:
  std::atomic<size_t>& total_;
  size_t bytes_ = 0;
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionOwner& owner, boost::asio::ip::tcp::socket socket)
      : owner_(owner), socket_(std::move(socket)), deadline_(owner.io()), write_deadline_(owner.io()) {}

  void start();
  // No further request: a request that is still coming in is refused, an answer in the making goes out.
  void end_input();
  void close();

  // From the exchange, on the socket thread.
  void send(std::string bytes, std::string more = {});
  void finish_answer(bool keep_alive);

  std::atomic<size_t> unsent_bytes{0};

 private:
  using error_code = boost::system::error_code;

  void read_request(std::chrono::milliseconds timeout);
  // Takes in what has been read; reads more while that is no whole request.
  void advance();
  void read_more();
  void on_read(error_code error, size_t num_bytes);
  void input_ended();
  bool skip_empty_lines();
  bool take_head();
  bool count_body(size_t num_bytes);
  void dispatch();

  void watch_client();
  void on_watched(error_code error, size_t num_bytes);
  void client_stopped_sending();
  void probe_client();

  void write_next();
  void linger();
  void discard_next();
  // Answers in mid-request, and closes. Returns false.
  bool refuse(int status, std::string_view message, std::string_view code);
  bool refuse(const HttpResponse& response);
  void refuse_malformed(error_code error);
  void arm(boost::asio::steady_timer& timer, std::chrono::milliseconds after, void (Connection::*expired)());
  void request_timed_out();
  void write_stalled() { close(); }

  ConnectionOwner& owner_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer write_deadline_;
  boost::beast::flat_buffer buffer_;

  // The request being read.
  boost::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  HttpRequest request_;
  std::shared_ptr<BodyBytes> body_bytes_;
  size_t body_wire_bytes_ = 0;  // of the body, a chunked one's framing included
  int num_empty_lines_ = 0;
  bool reading_request_ = false;  // some of it has come

  std::shared_ptr<Exchange> exchange_;
  std::deque<std::string> outgoing_;
  std::vector<std::string> writing_;
  bool write_in_flight_ = false;
  bool watching_ = false;
  bool answer_done_ = false;
  bool keep_alive_ = true;
  bool input_over_ = false;          // the client has shut down its side, or left: the two look alike
  bool pipelined_too_much_ = false;  // input is dropped from here on; the connection ends with the answer
  bool failed_ = false;              // refused in mid-request: what still comes in is no request
  bool lingering_ = false;
  bool closed_ = false;
  std::array<char, 16384> discarded_;
};

}  // namespace fathom::serve
