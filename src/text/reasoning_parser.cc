// A state machine over bytes: tags are never split, whatever the pieces.
#include "text/reasoning_parser.h"

#include <algorithm>

namespace fathom {
namespace {
constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

bool is_line_break(char c) { return c == '\n' || c == '\r'; }
bool is_white_space(char c) { return is_line_break(c) || c == ' ' || c == '\t'; }
}  // namespace

ReasoningParser::ReasoningParser(bool starts_in_reasoning)
    : state_(starts_in_reasoning ? State::kReasoningOpening : State::kOpening) {}

void ReasoningParser::push(std::string_view text, std::string& reasoning, std::string& content) {
  for (size_t i = 0; i < text.size();) {
    if (state_ == State::kContent) {
      content.append(text.substr(i));
      return;
    }
    if (push_byte(text[i], reasoning, content)) ++i;
  }
}

bool ReasoningParser::push_byte(char byte, std::string& reasoning, std::string& content) {
  switch (state_) {
    case State::kOpening:
    case State::kReasoningOpening:
      return push_opening_byte(byte, reasoning, content);
    case State::kReasoning:
      return push_reasoning_byte(byte, reasoning);
    case State::kContentOpening:
      if (is_line_break(byte)) return true;
      state_ = State::kContent;
      return false;
    case State::kContent:
      break;
  }
  content.push_back(byte);
  return true;
}

bool ReasoningParser::push_opening_byte(char byte, std::string& reasoning, std::string& content) {
  if (byte == kOpen[tag_size_]) {
    held_.push_back(byte);
    if (++tag_size_ == kOpen.size()) {
      held_.clear();
      tag_size_ = 0;
      state_ = State::kReasoningOpening;
    }
    return true;
  }
  if (tag_size_ == 0 && is_white_space(byte)) {
    held_.push_back(byte);
    return true;
  }
  leave_opening(reasoning, content);
  return false;
}

void ReasoningParser::leave_opening(std::string& reasoning, std::string& content) {
  std::string held;
  held.swap(held_);
  tag_size_ = 0;
  if (state_ == State::kOpening) {
    state_ = State::kContent;
    content.append(held);
    return;
  }
  state_ = State::kReasoning;
  held.erase(0, std::min(held.find_first_not_of("\r\n"), held.size()));
  for (const char byte : held) {
    while (!push_reasoning_byte(byte, reasoning)) {
    }
  }
}

bool ReasoningParser::push_reasoning_byte(char byte, std::string& reasoning) {
  if (byte == kClose[tag_size_]) {
    held_.push_back(byte);
    if (++tag_size_ == kClose.size()) {
      held_.clear();
      tag_size_ = 0;
      state_ = State::kContentOpening;
    }
    return true;
  }
  if (tag_size_ > 0) {
    // Only its first byte is '<', so a broken tag cannot hold the beginning of another.
    reasoning.append(held_);
    held_.clear();
    tag_size_ = 0;
    return false;
  }
  if (is_line_break(byte)) {
    held_.push_back(byte);
    return true;
  }
  reasoning.append(held_);
  held_.clear();
  reasoning.push_back(byte);
  return true;
}

void ReasoningParser::flush(std::string& reasoning, std::string& content) {
  if (state_ == State::kOpening || state_ == State::kReasoningOpening) leave_opening(reasoning, content);
  reasoning.append(held_);
  held_.clear();
  tag_size_ = 0;
}

}  // namespace fathom
