// The stages in their order, and what each event carries.
#include "text/output_pipeline.h"

#include <utility>

#include "text/utf8.h"

namespace fathom {

OutputPipeline::OutputPipeline(Tokenizer tokenizer, OutputOptions options)
    : options_(std::move(options)),
      detokenizer_(std::move(tokenizer), options_.skip_special_tokens),
      stop_matcher_(options_.stop),
      reasoning_parser_(options_.starts_in_reasoning),
      position_(options_.starts_in_reasoning) {}

std::vector<OutputEvent> OutputPipeline::push(int32_t id) { return push_token(id, /*is_silent=*/false); }

std::vector<OutputEvent> OutputPipeline::push_silent(int32_t id) {
  return push_token(id, /*is_silent=*/true);
}

std::vector<OutputEvent> OutputPipeline::push_token(int32_t id, bool is_silent) {
  if (finished_) return {};
  OutputToken token{.index = num_tokens_, .id = id, .text_offset = num_characters_};
  const bool began_inside = options_.parse_reasoning && position_.in_reasoning();
  if (!is_silent) {
    std::string text;
    detokenizer_.push(id, text);
    decode(text);
  }
  token.is_reasoning = began_inside || (options_.parse_reasoning && position_.in_reasoning());
  ++num_tokens_;
  if (token.is_reasoning) ++num_reasoning_tokens_;
  new_tokens_.push_back(token);

  if (stop_matcher_.matched()) flush_reasoning();
  std::vector<OutputEvent> events = take_events();
  if (stop_matcher_.matched()) add_finish(events, "stop");
  return events;
}

void OutputPipeline::decode(std::string_view text) {
  num_characters_ += static_cast<int64_t>(count_code_points(text));
  if (options_.parse_reasoning) {
    std::string unused;
    position_.push(text, unused, unused);
  }
  std::string passed;
  stop_matcher_.push(text, passed);
  split(passed);
}

void OutputPipeline::split(std::string_view text) {
  if (options_.parse_reasoning) {
    reasoning_parser_.push(text, new_reasoning_, new_content_);
  } else {
    new_content_.append(text);
  }
}

void OutputPipeline::flush_reasoning() {
  if (options_.parse_reasoning) reasoning_parser_.flush(new_reasoning_, new_content_);
}

std::vector<OutputEvent> OutputPipeline::finish(std::string_view reason) {
  if (finished_) return {};
  std::string text;
  detokenizer_.flush(text);
  decode(text);
  if (!stop_matcher_.matched()) {
    std::string held;
    stop_matcher_.flush(held);
    split(held);
  }
  flush_reasoning();
  std::vector<OutputEvent> events = take_events();
  add_finish(events, stop_matcher_.matched() ? "stop" : reason);
  return events;
}

std::vector<OutputEvent> OutputPipeline::take_events() {
  std::vector<OutputEvent> events;
  const auto take = [&](OutputEvent::Kind kind, std::string& text) {
    if (text.empty()) return;
    events.push_back(
        {.kind = kind, .text = std::exchange(text, {}), .tokens = std::exchange(new_tokens_, {})});
  };
  take(OutputEvent::Kind::kReasoning, new_reasoning_);
  take(OutputEvent::Kind::kContent, new_content_);
  return events;
}

void OutputPipeline::add_finish(std::vector<OutputEvent>& events, std::string_view reason) {
  finished_ = true;
  events.push_back({.kind = OutputEvent::Kind::kFinish,
                    .finish_reason = std::string(reason),
                    .tokens = std::exchange(new_tokens_, {})});
}

}  // namespace fathom
