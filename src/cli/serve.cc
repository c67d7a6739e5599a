// fathom serve: the server, from the command line to its exit code.
#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <future>
#include <memory>
#include <thread>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/model_options.h"
#include "cli/report.h"
#include "serve/server.h"

namespace fathom::cli {
namespace {

constexpr int kCountMax = 1 << 20;  // of requests and connections
constexpr int64_t kBodyBytesMax = int64_t{1} << 32;
constexpr int64_t kBodiesBytesMax = int64_t{1} << 40;
constexpr int64_t kAnswerBytesMin = int64_t{1} << 20;
constexpr int64_t kAnswerBytesMax = int64_t{1} << 40;
constexpr double kSecondsMax = 1e6;  // of any time-out; far from what the clock's type can hold

struct Flags {
  serve::ServeOptions options;
  double header_timeout_s = to_seconds(options.http.header_timeout_max);
  double body_timeout_s = to_seconds(options.http.body_timeout_max);
  double idle_timeout_s = to_seconds(options.http.idle_timeout_max);
  double write_stall_s = to_seconds(options.http.write_stall_max);
  std::string log_level = "info";
};

void add_flags(CLI::App& command, Flags& flags) {
  serve::ServeOptions& options = flags.options;
  const auto add_seconds = [&command](const char* name, double& value, const char* help,
                                      double value_max = kSecondsMax) {
    command.add_option(name, value, help)->check(CLI::Range(0.1, value_max))->capture_default_str();
  };
  add_model_options(command, options.model);
  command.add_option("--host", options.http.host, "Address to listen on")->capture_default_str();
  command.add_option("--port", options.http.port, "Port; 0 takes any free one")->capture_default_str();
  command
      .add_option("--api-key-file", options.api_key_file,
                  "File with one API key per line, optionally with a name")
      ->check(not_empty());
  command
      .add_option("--requests-per-key", options.admission.requests_per_key_max,
                  "Requests of one key in flight, with --api-key-file; more get 429")
      ->check(CLI::Range(1, kCountMax))
      ->capture_default_str();
  command.add_option("--requests-max", options.admission.requests_max, "Requests in flight; more get 503")
      ->check(CLI::Range(1, kCountMax))
      ->capture_default_str();
  command.add_option("--connections-max", options.http.connections_max, "Open connections; more are closed")
      ->check(CLI::Range(1, kCountMax))
      ->capture_default_str();
  command.add_option("--body-max", options.http.body_bytes_max, "Largest request body; larger get 413")
      ->transform(byte_size(1, kBodyBytesMax))
      ->capture_default_str();
  command
      .add_option("--bodies-max", options.http.bodies_bytes_max,
                  "All request bodies that are being read or parsed, together; more get 503")
      ->transform(byte_size(1, kBodiesBytesMax))
      ->capture_default_str();
  command
      .add_option(
          "--large-bodies-max", options.http.large_bodies_max,
          "Request bodies of 256 KiB and more that wait to be read or are read, one at a time; more get 503")
      ->check(CLI::Range(1, kCountMax))
      ->capture_default_str();
  command
      .add_option("--answer-max", options.answer_bytes_max,
                  "Most of one request's answers, with 128 bytes for each token and each log-probability; "
                  "max_tokens that may lead to more get 400, without it answers end there")
      ->transform(byte_size(kAnswerBytesMin, kAnswerBytesMax))
      ->capture_default_str();
  add_seconds("--header-timeout", flags.header_timeout_s, "Seconds for a request's header to arrive");
  add_seconds("--body-timeout", flags.body_timeout_s, "Seconds for a request's body to arrive");
  add_seconds("--idle-timeout", flags.idle_timeout_s,
              "Seconds a kept-alive connection may wait for a request");
  add_seconds("--write-timeout", flags.write_stall_s, "Seconds a client may read nothing of its answer");
  command
      .add_option("--drain-timeout", options.drain_timeout_s,
                  "Seconds from SIGTERM until what still runs is ended; the exit follows within 3 s")
      ->check(CLI::Range(0.0, kSecondsMax))
      ->capture_default_str();
  add_seconds("--keep-alive-interval", options.keep_alive_interval_s,
              "Seconds between `: keep-alive` comments");
  add_seconds("--request-timeout", options.request_timeout_s,
              "Seconds from a request to its last token, at most");
  add_seconds("--queue-timeout", options.model.engine.queue_seconds_max,
              "Seconds a request may wait to start, or for its next step, until it ends with 503",
              kQueueSecondsMax);
  add_seconds("--stall-timeout", options.stall_timeout_s,
              "Seconds without progress after which the engine counts as stalled: requests end with an "
              "error, /health and /ready are 503");
  command.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

// Signals are taken by sigwait on a thread of their own, so they must be blocked before any other thread
// starts.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // A closed terminal ends the server in order; under nohup, which ignores the signal, it lives on.
  struct sigaction hangup{};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return signals;
}

void print_ready(const serve::Server& server, const std::string& host, bool keys_wanted) {
  const bool ip6 = host.find(':') != std::string::npos;
  const std::string reachable = host == "0.0.0.0" ? "127.0.0.1"
                                : host == "::"    ? "[::1]"
                                : ip6             ? "[" + host + "]"
                                                  : host;
  const std::string url = fmt::format("http://{}:{}", reachable, server.port());
  const std::string text = fmt::format(
      "{}ready on {}\ntry: curl -s {}/v1/chat/completions -H 'Content-Type: application/json'{} -d "
      "'{{\"messages\":[{{\"role\":\"user\",\"content\":\"What is 347 + 586?\"}}]}}'\n",
      server.summary(), url, url, keys_wanted ? " -H \"Authorization: Bearer $FATHOM_API_KEY\"" : "");
  std::fputs(text.c_str(), stdout);
  if (std::fflush(stdout) == 0) return;
  log_warning("standard output: {}; the server runs on", strerror(errno));
  __fpurge(stdout);
  std::clearerr(stdout);
}

struct StopSignal {
  std::atomic<bool> serving{false};
  std::promise<int> arrived;  // the first signal's number, when it came while serving
};

// During the start there is nothing to finish: a signal ends the process at once. Later the first
// one is handed on, and a second one ends the process by its default action.
std::shared_ptr<StopSignal> watch_for_stop(sigset_t signals) {
  auto stop = std::make_shared<StopSignal>();
  std::thread([stop, signals] {
    int number = 0;
    sigwait(&signals, &number);
    if (!stop->serving.load()) _exit(0);
    stop->arrived.set_value(number);
    sigwait(&signals, &number);
    signal(number, SIG_DFL);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }).detach();  // it waits for a signal that may never come
  return stop;
}

LogLevel level_of(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

int run(Flags& flags) {
  set_log_level(level_of(flags.log_level));
  flags.options.model.show_progress = true;
  serve::HttpOptions& http = flags.options.http;
  std::string& host = http.host;  // in brackets, as in a URL, too
  const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (in_brackets && host.find(':') != std::string::npos) host = host.substr(1, host.size() - 2);
  http.header_timeout_max = milliseconds(flags.header_timeout_s);
  http.body_timeout_max = milliseconds(flags.body_timeout_s);
  http.idle_timeout_max = milliseconds(flags.idle_timeout_s);
  http.write_stall_max = milliseconds(flags.write_stall_s);
  const std::shared_ptr<StopSignal> stop = watch_for_stop(block_stop_signals());
  const SystemClock clock;
  Result<std::unique_ptr<serve::Server>> server = serve::Server::start(flags.options, clock);
  if (!server.ok()) {
    report("serve", server.status().message());
    return 2;
  }
  stop->serving.store(true);
  print_ready(**server, flags.options.http.host, !flags.options.api_key_file.empty());
  const int number = stop->arrived.get_future().get();
  log_info("{}: finishing what runs, {} s at most; a second signal ends at once", strsignal(number),
           flags.options.drain_timeout_s);
  if (!(*server)->shut_down()) {
    // A thread that hangs cannot be joined, and what it uses must not be destroyed under it. All answers are
    // out and no file is being written, so the process may end as it is: what clients were promised is kept.
    std::fflush(nullptr);
    _exit(0);
  }
  return 0;
}

}  // namespace

void add_serve_command(CLI::App& app, Outcome& outcome) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over HTTP: OpenAI's API with streaming");
  add_flags(*command, *flags);
  command->callback([flags, &outcome] { outcome.exit_code = run(*flags); });
}

}  // namespace fathom::cli
