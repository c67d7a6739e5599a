// fathom chat: a conversation in the terminal, with a running server or with an engine of its own.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>

#include "base/log.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/model_options.h"
#include "cli/report.h"
#include "serve/client/chat_client.h"
#include "serve/server.h"

namespace fathom::cli {
namespace {

constexpr const char* kDefaultUrl = "http://127.0.0.1:8000";
constexpr double kProbeTimeoutSeconds = 1.0;
constexpr double kRateSecondsMin = 0.005;  // pieces of an answer closer together than this arrived as one
constexpr int64_t kMaxTokensMax = int64_t{1} << 24;
constexpr std::string_view kServersEnd =
    "insufficient_system_resource";  // a time-out, or the server's own end

struct Flags {
  serve::ServeOptions options;  // for the engine of our own
  std::string url;
  std::string api_key;
  std::string system;
  serve::ChatClient::Options chat;
  std::vector<const CLI::Option*> of_own_engine;  // flags that mean nothing to a server that already runs
};

std::atomic<bool> interrupted{false};

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

// Escape sequences only where a person looks.
struct Style {
  bool on = isatty(STDOUT_FILENO) != 0;
  const char* dim() const { return on ? "\x1b[2m" : ""; }
  const char* bold() const { return on ? "\x1b[1m" : ""; }
  const char* plain() const { return on ? "\x1b[0m" : ""; }
};

class Conversation {
 public:
  Conversation(const serve::ChatClient& client, const Flags& flags, const Clock& clock)
      : client_(client), flags_(flags), clock_(clock) {
    clear();
  }

  void clear() {
    turns_.clear();
    said_full_ = false;
    if (!flags_.system.empty()) turns_.push_back({"system", flags_.system});
  }

  // Asks and prints; false when the server failed or gave up midway, or nobody takes the output any more.
  bool ask(const std::string& text) {
    turns_.push_back({"user", text});
    interrupted = false;
    bool reasoning = false;
    TimePoint first{};
    const TimePoint start = clock_.now();
    const auto outcome = client_.chat(
        turns_, flags_.chat,
        [&](const serve::ChatDelta& delta) {
          if (first == TimePoint{}) first = clock_.now();
          if (!delta.reasoning.empty()) {
            print(reasoning ? "" : style_.dim());
            reasoning = true;
            print(without_controls(delta.reasoning));
          }
          if (!delta.content.empty()) {
            if (reasoning) print(fmt::format("{}\n", style_.plain()));
            reasoning = false;
            print(without_controls(delta.content));
          }
          if (flush_output() != 0) interrupted = true;
        },
        interrupted);
    print(fmt::format("{}\n", style_.plain()));
    if (flush_output() != 0) return false;
    if (!outcome.ok()) {
      turns_.pop_back();
      report_failure(outcome.status());
      return false;
    }
    turns_.push_back({"assistant", outcome->content});
    const TimePoint end = clock_.now();
    if (first == TimePoint{}) first = end;  // an answer without text
    print_rate(*outcome, to_seconds(first - start), to_seconds(end - first));
    return outcome->finish_reason != kServersEnd;
  }

 private:
  // A question too long by itself is what the server says it is. One after others has room in a new
  // conversation.
  void report_failure(const Status& status) {
    const bool asked_before = !turns_.empty() && turns_.back().role == "assistant";
    if (status.code() != StatusCode::kResourceExhausted || !asked_before) {
      report("chat", status.message());
      return;
    }
    report("chat", said_full_ ? "still too long; /clear starts anew"
                              : "the conversation no longer fits the model's context; /clear starts anew");
    said_full_ = true;
  }

  void print_rate(const serve::ChatOutcome& outcome, double first_s, double rest_s) const {
    if (outcome.interrupted) {
      print(fmt::format("{}[interrupted]{}\n", style_.dim(), style_.plain()));
      return;
    }
    print(fmt::format(
        "{}[{} tokens, {:.1f} tokens/s, first after {:.0f} ms, {} of {} prompt tokens from the cache{}]{}\n",
        style_.dim(), outcome.completion_tokens, rate(outcome.completion_tokens, first_s, rest_s),
        first_s * 1000, outcome.hit_tokens, outcome.prompt_tokens, cut_off(outcome), style_.plain()));
  }

  static const char* cut_off(const serve::ChatOutcome& outcome) {
    if (outcome.finish_reason == "length") return ", cut off at the limit";
    return outcome.finish_reason == kServersEnd ? ", cut off by the server" : "";
  }

  // Of the tokens after the first; over the whole time when they came all at once and their own says nothing.
  static double rate(int64_t tokens, double first_s, double rest_s) {
    if (tokens > 1 && rest_s >= kRateSecondsMin) return static_cast<double>(tokens - 1) / rest_s;
    const double all_s = first_s + rest_s;
    return all_s > 0 ? static_cast<double>(tokens) / all_s : 0;
  }

  const serve::ChatClient& client_;
  const Flags& flags_;
  const Clock& clock_;
  const Style style_;
  std::vector<serve::ChatTurn> turns_;
  bool said_full_ = false;  // that the conversation has outgrown the context
};

int converse(const serve::ChatClient& client, const std::string& model, const Flags& flags,
             const Clock& clock) {
  const bool person = isatty(STDIN_FILENO) != 0;
  const Style style;
  if (person) {
    print(fmt::format(
        "{}{}{}  (/clear starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer or drops a line)\n",
        style.bold(), printable(model), style.plain()));
  }
  Conversation conversation(client, flags, clock);
  bool all_answered = true;
  for (std::string line;;) {
    if (person) {
      print(fmt::format("{}> {}", style.bold(), style.plain()));
      std::fflush(stdout);
    }
    interrupted = false;
    if (!std::getline(std::cin, line)) {
      if (!person || !interrupted) break;
      // Ctrl-C with no answer under way: what was typed is dropped, the conversation is not.
      std::clearerr(stdin);
      std::cin.clear();
      print("\n");
      continue;
    }
    line.erase(line.find_last_not_of(" \t\r") + 1);  // a line of a file may end with a carriage return
    if (line == "/exit" || line == "/quit") break;
    if (line == "/clear") {
      conversation.clear();
    } else if (!line.empty()) {
      all_answered = conversation.ask(line) && all_answered;
    }
    if (flush_output() != 0) return 1;  // main says why
  }
  return all_answered ? 0 : 1;
}

// The default server's URL if it is one, empty if nothing or something else listens there. A server that
// refuses us is no reason to load a second model beside it.
Result<std::string> find_default_server(const std::string& api_key) {
  const Result<std::string> model = serve::ChatClient(kDefaultUrl, api_key).model_name(kProbeTimeoutSeconds);
  if (model.ok()) return std::string(kDefaultUrl);
  const StatusCode code = model.status().code();
  if (code == StatusCode::kNotFound) report("chat", model.status().message() + "; starting an engine here");
  if (code == StatusCode::kNotFound || code == StatusCode::kUnavailable) return std::string();
  return model.status();
}

// The server to talk to: the one asked for, the one on the default port, or one of our own.
int run(Flags& flags) {
  const SystemClock clock;
  if (const Status url = flags.url.empty() ? ok_status() : serve::validate_chat_url(flags.url); !url.ok()) {
    report("chat", url.message());
    return 2;
  }
  bool own_wanted = false;
  for (const CLI::Option* option : flags.of_own_engine) {
    if (option->count() == 0) continue;
    if (!flags.url.empty()) {
      report("chat",
             fmt::format("{} is for an engine of one's own and cannot go with --url", option->get_name()));
      return 2;
    }
    own_wanted = true;
  }
  std::string url = flags.url;
  if (url.empty() && !own_wanted) {
    Result<std::string> found = find_default_server(flags.api_key);
    if (!found.ok()) {
      report("chat", found.status().message());
      return 2;
    }
    url = std::move(*found);
  }
  std::unique_ptr<serve::Server> own;
  if (url.empty()) {
    set_log_level(LogLevel::kWarning);
    flags.options.http.port = 0;
    flags.options.model.show_progress = true;
    Result<std::unique_ptr<serve::Server>> started = serve::Server::start(flags.options, clock);
    if (!started.ok()) {
      report("chat", started.status().message());
      return 2;
    }
    own = std::move(*started);
    url = fmt::format("http://127.0.0.1:{}", own->port());
  }
  const serve::ChatClient client(url, flags.api_key);
  const Result<std::string> model = client.model_name(/*timeout_s=*/10);
  if (!model.ok()) {
    report("chat", model.status().message());
    return 2;
  }
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  return converse(client, *model, flags, clock);
}

}  // namespace

void add_chat_command(CLI::App& app, Outcome& outcome) {
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("chat", "Talk to a server, or to a model of its own, in this terminal");
  command
      ->add_option(
          "--url", flags->url,
          "Server to talk to (default: the one on port 8000 if there is one and no flag asks for an engine "
          "in this process)")
      ->check(not_empty());
  command->add_option("--api-key", flags->api_key, "API key for the server")
      ->envname("FATHOM_API_KEY")
      ->check(CLI::Validator(
          [](std::string& key) { return has_control_characters(key) ? "holds a control character" : ""; },
          ""));
  command->add_option("--system", flags->system, "System message");
  command->add_option("--temperature", flags->chat.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command
      ->add_option("--max-tokens", flags->chat.max_tokens,
                   "Longest answer (default: what the context leaves)")
      ->check(CLI::Range(int64_t{1}, kMaxTokensMax));
  const size_t common = command->get_options().size();
  add_model_options(*command, flags->options.model);
  const std::vector<CLI::Option*> all = command->get_options();
  flags->of_own_engine.assign(all.begin() + static_cast<std::ptrdiff_t>(common), all.end());
  command->callback([flags, &outcome] { outcome.exit_code = run(*flags); });
}

}  // namespace fathom::cli
