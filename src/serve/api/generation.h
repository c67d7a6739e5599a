// One generation request on its way out: several choices, each a request to the engine with an output
// pipeline of its own, joined into one answer, whole or streamed.
//
//   engine thread --on_tokens--> inbox --worker--> pipeline -> delta -> AnswerFormat -> HTTP
//
// The engine thread only appends to the inbox. Everything else runs on one worker at a time.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "serve/api/admission.h"
#include "serve/api/answer_format.h"
#include "serve/api/api_context.h"
#include "text/output_pipeline.h"

namespace fathom::serve {

// What the two generation endpoints hand over.
struct GenerationPlan {
  std::string prompt_param;                   // the request's field that holds the prompt, for errors
  std::vector<std::vector<int32_t>> prompts;  // choices = prompts x num_choices, prompt-major
  std::vector<std::string> echo;              // text put before each prompt's answer; empty or one per prompt
  GenerationOptions options;
  OutputOptions pipeline;
  std::string tenant;  // key and user_id: part of every KV key
  std::unique_ptr<AnswerFormat> format;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Before the prompt is made, which may take long: whether there is room for one more request of `key`.
  static ApiResult<std::shared_ptr<Admission::Ticket>> admit(ApiContext& context, const std::string& key);
  // Checks the context window, submits every choice and answers `http`, now with an error or later with the
  // result.
  static void start(ApiContext& context, std::shared_ptr<HttpExchange> http,
                    std::shared_ptr<Admission::Ticket> ticket, GenerationPlan plan);

  Generation(ApiContext& context, std::shared_ptr<HttpExchange> http, GenerationPlan plan,
             std::shared_ptr<Admission::Ticket> ticket);
  ~Generation();

  // Answers with an error now, unless it is answered. Thread-safe.
  void end(const ApiError& error);

 private:
  class Listener;
  struct Arrival {  // from the engine thread
    int choice = 0;
    std::vector<TokenEvent> tokens;
    std::optional<FinishInfo> finish;
  };
  struct Choice {
    RequestId id{};
    std::optional<OutputPipeline> pipeline;
    std::deque<TokenEvent> waiting;  // pushed into the pipeline, not given out by it yet
    ChoiceAnswer answer;             // streaming: the delta not sent yet; else all that was said
    bool after_tag = false;          // nothing but line breaks since the last <think> or </think>
    int32_t hit_tokens = 0;
    bool closed = false;    // the pipeline has ended: stop string, end token, length …
    bool told = false;      // streaming: its last chunk was sent
    bool released = false;  // on_finished came: the engine holds nothing of it any more
  };

  bool submit_all();
  void on_arrival(Arrival arrival);
  void process_inbox();
  void take_tokens(Choice& choice, const std::vector<TokenEvent>& tokens);
  void take_finish(Choice& choice, const FinishInfo& info);
  bool ends_text(int32_t token) const;
  AnswerToken::Part part_of(Choice& choice, const OutputToken& token) const;
  void apply(Choice& choice, std::vector<OutputEvent> events);
  void send_delta(int index);
  void send_chunk(ChoiceAnswer& answer);
  void send_everything_held();
  void finish_if_complete();
  void fail(const ApiError& error);
  void cancel_all();
  void schedule_tick();
  void tick();
  Usage usage() const;

  ApiContext& context_;
  const std::shared_ptr<HttpExchange> http_;
  const GenerationPlan plan_;
  const AnswerHead head_;
  std::shared_ptr<Admission::Ticket> ticket_;

  std::mutex inbox_mu_;
  std::vector<Arrival> inbox_;  // guarded by inbox_mu_
  bool scheduled_ = false;      // guarded by inbox_mu_: a worker is processing or about to

  std::atomic<bool> lost_output_{false};  // there was no memory for what the engine gave

  std::mutex mu_;  // guards what follows; taken by workers, ticks and callbacks of the connection
  std::vector<Choice> choices_;
  bool done_ = false;          // answered completely, failed, or the client is gone
  bool holding_back_ = false;  // the client is slow: deltas are merged until the socket drains
  TimePoint last_sent_;
  TimePoint tick_due_;
  TimePoint last_pause_;  // when this process last woke up from standing still
};

}  // namespace fathom::serve
