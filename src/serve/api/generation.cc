// A request on its way through the engine: choices, events, cancellation and the last chunk.
#include "serve/api/generation.h"

#include <algorithm>
#include <new>

#include "base/log.h"
#include "base/rng.h"
#include "serve/api/json.h"

namespace fathom::serve {
namespace {

constexpr std::chrono::milliseconds kTickMin{50};
// A tick that comes later means that the whole process stood still: stopped, frozen, suspended.
constexpr std::chrono::milliseconds kTickLateMax{1000};

ApiError context_length_error(const ApiContext& context, const GenerationPlan& plan, size_t prompt) {
  const std::optional<int32_t> asked = plan.options.max_tokens;
  ApiError error{.param = plan.prompt_param, .code = "context_length_exceeded"};
  if (asked) {
    error.message = fmt::format(
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
        "prompt, {} "
        "in the completion).",
        context.limits.context_max, prompt + static_cast<size_t>(*asked), prompt, *asked);
  } else {
    error.message = fmt::format(
        "This model's maximum context length is {} tokens. However, your prompt has {} tokens, which leaves "
        "none for "
        "the completion.",
        context.limits.context_max, prompt);
  }
  return error;
}

std::optional<ApiError> check_answer_bytes(const ApiContext& context, const GenerationPlan& plan) {
  const GenerationOptions& options = plan.options;
  const int32_t tokens_max = answer_tokens_max(context.limits, options, plan.prompts.size());
  if (options.max_tokens.value_or(1) <= tokens_max) return std::nullopt;
  return bad_request(
      "max_tokens",
      "max_tokens: {} tokens of {} prompts with n = {} and {} log-probabilities each are more than an "
      "answer may hold ({} bytes); at most {} tokens",
      *options.max_tokens, plan.prompts.size(), options.num_choices, options.sampling.num_logprobs + 1,
      context.limits.answer_bytes_max, tokens_max);
}

std::optional<ApiError> check_context(const ApiContext& context, const GenerationPlan& plan) {
  // More than the engine ever holds would be refused as "full, try again" for ever.
  const EngineOptions& engine = context.engine.options();
  const size_t choices = plan.prompts.size() * static_cast<size_t>(plan.options.num_choices);
  const size_t choices_max = static_cast<size_t>(engine.max_running) + static_cast<size_t>(engine.max_queued);
  if (choices > choices_max) {
    return bad_request("n", "{} prompts with n = {} ask for {} answers, at most {}", plan.prompts.size(),
                       plan.options.num_choices, choices, choices_max);
  }
  for (const std::vector<int32_t>& prompt : plan.prompts) {
    if (prompt.empty()) return bad_request("prompt", "the prompt is empty");
    const size_t wanted = static_cast<size_t>(plan.options.max_tokens.value_or(1));
    if (prompt.size() + wanted > static_cast<size_t>(context.limits.context_max)) {
      return context_length_error(context, plan, prompt.size());
    }
  }
  return check_answer_bytes(context, plan);
}

// As OpenAI and DeepSeek name them.
std::string api_finish_reason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return "insufficient_system_resource";
  }
}

AnswerHead make_head(ApiContext& context, const char* prefix) {
  return AnswerHead{.id = fmt::format("{}{:016x}", prefix, mix64(context.next_id.fetch_add(1))),
                    .created = context.clock.unix_seconds(),
                    .model = context.options.served_model_name,
                    .system_fingerprint = context.options.system_fingerprint};
}

ApiError no_memory_error() {
  return api_error_from(Status(StatusCode::kResourceExhausted, "the server has no memory for this answer"));
}

std::string sse(const std::string& payload) { return fmt::format("data: {}\n\n", payload); }

}  // namespace

// The engine's side of one choice. Holds the generation weakly: a request whose client left needs nobody to
// listen any more, only the engine's own clean-up.
class Generation::Listener final : public GenerationListener {
 public:
  Listener(std::weak_ptr<Generation> generation, int choice)
      : generation_(std::move(generation)), choice_(choice) {}

  void on_tokens(std::span<const TokenEvent> tokens) override {
    tell([&] { return Arrival{.choice = choice_, .tokens = {tokens.begin(), tokens.end()}}; });
  }
  void on_finished(const FinishInfo& info) override {
    tell([&] { return Arrival{.choice = choice_, .finish = info}; });
  }

 private:
  // The engine goes on for others when there is no memory for this request; the next tick gives it up.
  template <typename MakeArrival>
  void tell(const MakeArrival& make_arrival) {
    const auto g = generation_.lock();
    if (!g) return;
    try {
      g->on_arrival(make_arrival());
    } catch (const std::bad_alloc&) {
      g->lost_output_.store(true);
    }
  }

  const std::weak_ptr<Generation> generation_;
  const int choice_;
};

Generation::Generation(ApiContext& context, std::shared_ptr<HttpExchange> http, GenerationPlan plan,
                       std::shared_ptr<Admission::Ticket> ticket)
    : context_(context),
      http_(std::move(http)),
      plan_(std::move(plan)),
      head_(make_head(context, plan_.format->id_prefix())),
      ticket_(std::move(ticket)),
      last_sent_(context.clock.now()) {}

Generation::~Generation() {
  if (!done_) cancel_all();  // out of memory half-way
  context_.open_generations.remove(*this);
}

ApiResult<std::shared_ptr<Admission::Ticket>> Generation::admit(ApiContext& context, const std::string& key) {
  if (!context.ready.load()) return shutting_down_error();
  return context.admission.admit(key);
}

void Generation::start(ApiContext& context, std::shared_ptr<HttpExchange> http,
                       std::shared_ptr<Admission::Ticket> ticket, GenerationPlan plan) {
  if (auto error = check_context(context, plan)) return http->respond(error_response(*error));
  if (!context.ready.load()) return http->respond(error_response(shutting_down_error()));
  auto generation =
      std::make_shared<Generation>(context, std::move(http), std::move(plan), std::move(ticket));
  if (!generation->submit_all()) return;
  // The connection holds the generation until it is answered; the engine's listeners hold it weakly.
  generation->http_->on_gone([generation] {
    std::lock_guard lock(generation->mu_);
    generation->done_ = true;
    generation->cancel_all();
    generation->ticket_.reset();
  });
}

bool Generation::submit_all() {
  std::lock_guard lock(mu_);
  const GenerationOptions& options = plan_.options;
  const int num_choices = static_cast<int>(plan_.prompts.size()) * options.num_choices;
  choices_.resize(num_choices);
  for (int i = 0; i < num_choices; ++i) {
    Choice& choice = choices_[i];
    choice.answer.index = i;
    choice.answer.prompt = i / options.num_choices;
    if (!plan_.echo.empty()) choice.answer.part.content = plan_.echo[choice.answer.prompt];
    choice.pipeline.emplace(context_.tokenizer, plan_.pipeline);

    const std::vector<int32_t>& prompt = plan_.prompts[choice.answer.prompt];
    GenerationRequest request;
    request.prompt = prompt;
    request.sampling = options.sampling;
    request.max_new_tokens = options.max_tokens.value_or(
        std::min(context_.limits.context_max - static_cast<int32_t>(prompt.size()),
                 answer_tokens_max(context_.limits, options, plan_.prompts.size())));
    request.stop_token_ids = options.stop_token_ids;
    request.ignore_eos = options.ignore_eos;
    request.tenant = plan_.tenant;
    request.deadline = context_.clock.now() + context_.options.request_timeout_max;
    // A client's seed says which answer a prompt gets, whatever prompts are beside it. Without one, equal
    // prompts get different answers.
    request.choice = static_cast<uint32_t>(options.seeded ? i % options.num_choices : i);
    auto id = context_.engine.submit(std::move(request), std::make_shared<Listener>(weak_from_this(), i));
    if (!id.ok()) {
      choices_.resize(i);
      done_ = true;
      cancel_all();
      ticket_.reset();
      http_->respond(error_response(api_error_from(id.status())));
      return false;
    }
    choice.id = id.value();
  }
  if (options.stream) {
    http_->begin_stream("text/event-stream; charset=utf-8",
                        {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
    http_->on_drained([weak = weak_from_this()] {
      if (auto g = weak.lock()) g->context_.http->post([g] { g->send_everything_held(); });
    });
  }
  context_.open_generations.add(*this);
  schedule_tick();
  return true;
}

void Generation::on_arrival(Arrival arrival) {
  {
    std::lock_guard lock(inbox_mu_);
    inbox_.push_back(std::move(arrival));
    if (scheduled_) return;
    scheduled_ = true;
  }
  context_.http->post([self = shared_from_this()] {
    try {
      self->process_inbox();
    } catch (const std::bad_alloc&) {
      self->lost_output_.store(true);
      self->end(no_memory_error());
    }
  });
}

void Generation::process_inbox() {
  for (;;) {
    std::vector<Arrival> arrivals;
    {
      std::lock_guard lock(inbox_mu_);
      if (inbox_.empty()) {
        scheduled_ = false;
        return;
      }
      arrivals.swap(inbox_);
    }
    std::lock_guard lock(mu_);
    for (const Arrival& arrival : arrivals) {
      if (arrival.choice >= static_cast<int>(choices_.size())) continue;  // its submission was undone
      Choice& choice = choices_[arrival.choice];
      if (arrival.finish) {
        take_finish(choice, *arrival.finish);
      } else {
        take_tokens(choice, arrival.tokens);
      }
    }
    if (done_) continue;
    for (size_t i = 0; i < choices_.size() && !done_; ++i) send_delta(static_cast<int>(i));
    finish_if_complete();
  }
}

// An end token counts but adds no text, whether the tokenizer calls it special or not.
bool Generation::ends_text(int32_t token) const {
  const auto holds = [&](const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), token) > 0;
  };
  return holds(plan_.options.stop_token_ids) || (!plan_.options.ignore_eos && holds(context_.eos_token_ids));
}

void Generation::take_tokens(Choice& choice, const std::vector<TokenEvent>& tokens) {
  for (const TokenEvent& token : tokens) {
    if (choice.closed || done_) return;
    choice.waiting.push_back(token);
    apply(choice, ends_text(token.token) ? choice.pipeline->push_silent(token.token)
                                         : choice.pipeline->push(token.token));
    if (choice.closed) context_.engine.cancel(choice.id);  // a stop string
  }
}

void Generation::take_finish(Choice& choice, const FinishInfo& info) {
  choice.released = true;
  choice.hit_tokens = info.hit_tokens;
  if (choice.closed || done_) return;
  if (info.reason == FinishReason::kError) {
    log_error("request {} failed: {}", head_.id, info.status.to_string());
    return fail(api_error_from(info.status));
  }
  // A request that never produced a token and ended for want of time or room is an error, not an empty
  // answer.
  if (info.completion_tokens == 0 && !info.status.ok() && !plan_.options.stream) {
    return fail(api_error_from(info.status));
  }
  apply(choice, choice.pipeline->finish(api_finish_reason(info.reason)));
}

AnswerToken::Part Generation::part_of(Choice& choice, const OutputToken& token) const {
  const std::string_view bytes = context_.tokenizer.token_bytes(token.id);
  const bool tag =
      plan_.pipeline.parse_reasoning && token.is_reasoning && (bytes == "<think>" || bytes == "</think>");
  const bool line_break = bytes.find_first_not_of("\r\n") == std::string_view::npos;
  choice.after_tag = tag || (choice.after_tag && line_break);
  if (choice.after_tag || ends_text(token.id) || context_.tokenizer.is_special(token.id))
    return AnswerToken::Part::kNone;
  return token.is_reasoning ? AnswerToken::Part::kReasoning : AnswerToken::Part::kContent;
}

void Generation::apply(Choice& choice, std::vector<OutputEvent> events) {
  ChoiceAnswer& answer = choice.answer;
  for (OutputEvent& event : events) {
    if (event.kind == OutputEvent::Kind::kReasoning) answer.part.reasoning += event.text;
    if (event.kind == OutputEvent::Kind::kContent) answer.part.content += event.text;
    for (const OutputToken& token : event.tokens) {
      answer.part.tokens.push_back({.event = std::move(choice.waiting.front()),
                                    .text_offset = token.text_offset,
                                    .part = part_of(choice, token)});
      choice.waiting.pop_front();
    }
    if (event.kind != OutputEvent::Kind::kFinish) continue;
    choice.closed = true;
    answer.finish_reason = std::move(event.finish_reason);
    answer.completion_tokens = choice.pipeline->num_completion_tokens();
    answer.reasoning_tokens = choice.pipeline->num_reasoning_tokens();
  }
}

// Streams what choice `index` has not sent. A slow client's deltas wait and merge, except the last one.
void Generation::send_delta(int index) {
  Choice& choice = choices_[index];
  ChoiceAnswer& answer = choice.answer;
  if (!plan_.options.stream || done_ || choice.told) return;
  const bool has_text = !answer.part.reasoning.empty() || !answer.part.content.empty();
  if (!has_text && !choice.closed && (answer.started || choice.waiting.empty())) return;
  holding_back_ = http_->unsent_bytes() > context_.options.coalesce_bytes;
  if (holding_back_ && !choice.closed && answer.started) return;

  if (std::optional<ChoiceAnswer> reasoning = take_reasoning(answer)) {
    send_chunk(*reasoning);
    answer.started = true;
  }
  send_chunk(answer);
  answer.part = AnswerPart();
  choice.told = choice.closed;
}

void Generation::send_chunk(ChoiceAnswer& answer) {
  const bool due = plan_.options.return_token_ids && !answer.started;
  http_->write(sse(plan_.format->chunk(head_, answer, due ? &plan_.prompts[answer.prompt] : nullptr)));
  last_sent_ = context_.clock.now();
  answer.started = true;
}

void Generation::send_everything_held() {
  std::lock_guard lock(mu_);
  if (done_ || !holding_back_) return;
  for (size_t i = 0; i < choices_.size(); ++i) send_delta(static_cast<int>(i));
}

void Generation::finish_if_complete() {
  if (done_) return;
  // Waiting for the engine to let go of every choice makes the hit count exact and means that a client that
  // has its answer can rely on its blocks being free.
  const bool complete =
      std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.closed && c.released; });
  if (!complete) return;
  std::string last;
  if (plan_.options.stream) {
    if (plan_.options.include_usage) last = sse(plan_.format->usage_chunk(head_, usage()));
    last += sse("[DONE]");
  } else {
    std::vector<const ChoiceAnswer*> answers;
    for (const Choice& choice : choices_) answers.push_back(&choice.answer);
    last = plan_.format->body(head_, answers, plan_.prompts, usage());
  }
  done_ = true;
  ticket_.reset();  // before the client can know that its answer is complete, and send its next request
  if (plan_.options.stream) {
    http_->write(std::move(last));
    http_->finish();
  } else {
    http_->respond({.body = std::move(last)});
  }
}

void Generation::fail(const ApiError& error) {
  if (done_) return;
  cancel_all();
  ticket_.reset();
  if (plan_.options.stream) {
    http_->write(sse(error_json(error)) + sse("[DONE]"));
    http_->finish();
  } else {
    http_->respond(error_response(error));
  }
  done_ = true;  // last: without memory for the answer, the next tick tries again
}

void Generation::end(const ApiError& error) {
  std::lock_guard lock(mu_);
  fail(error);
}

void Generation::cancel_all() {
  for (const Choice& choice : choices_) {
    if (!choice.released) context_.engine.cancel(choice.id);
  }
}

// Often enough for the keep-alives, and to notice a stall not much later than it counts as one.
void Generation::schedule_tick() {
  const ApiOptions& options = context_.options;
  const auto interval = std::min(options.keep_alive_interval, std::max(options.stall_max / 4, kTickMin));
  tick_due_ = context_.clock.now() + interval;
  context_.http->post_after(interval, [weak = weak_from_this()] {
    if (auto g = weak.lock()) g->tick();
  });
}

// As long as the engine moves, a silent stream gets a comment; if it does not, every request gets an error.
void Generation::tick() {
  std::lock_guard lock(mu_);
  if (done_) return;
  const TimePoint due = tick_due_;
  schedule_tick();  // first: what follows may find no memory
  if (lost_output_.load()) return fail(no_memory_error());
  const TimePoint now = context_.clock.now();
  // The engine stood still with it, and gets its time anew.
  if (now - due > std::min(kTickLateMax, context_.options.stall_max / 2)) last_pause_ = now;
  if (now - std::max(last_pause_, context_.engine.stats().last_progress) > context_.options.stall_max) {
    return fail(ApiError{.http_status = 503,
                         .message = "the engine has stopped making progress",
                         .type = "server_error",
                         .code = "stalled"});
  }
  const bool silent = now - last_sent_ >= context_.options.keep_alive_interval;
  if (plan_.options.stream && silent && http_->unsent_bytes() == 0) {
    http_->write(": keep-alive\n\n");
    last_sent_ = now;
  }
}

Usage Generation::usage() const {
  Usage usage;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.answer.completion_tokens;
    usage.reasoning_tokens += choice.answer.reasoning_tokens;
    // A prompt counts once, however many choices it has.
    if (choice.answer.index % plan_.options.num_choices != 0) continue;
    usage.prompt_tokens += static_cast<int32_t>(plan_.prompts[choice.answer.prompt].size());
    usage.hit_tokens += choice.hit_tokens;
  }
  return usage;
}

}  // namespace fathom::serve
