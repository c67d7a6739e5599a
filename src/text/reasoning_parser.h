// Splits a model's text at <think>...</think> into reasoning and content, whatever pieces it comes in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fathom {

// Rules:
//  * Reasoning opens with a <think> that is the first thing in the text (white space before it is dropped),
//  or
//    is open from the start when the prompt ended with <think>; a <think> repeated there is dropped.
//  * It closes with the first </think>. Every later tag is content: a model may write about tags.
//  * Line breaks right after <think>, right before </think> and right after </think> belong to neither part.
//  * Without </think> all is reasoning; without <think> all is content.
class ReasoningParser {
 public:
  explicit ReasoningParser(bool starts_in_reasoning);

  // Appends what `text` decides. Each output's concatenation is the same for every way of cutting the text.
  void push(std::string_view text, std::string& reasoning, std::string& content);
  // The end: what was held is given out as what it turned out to be.
  void flush(std::string& reasoning, std::string& content);

  // The text so far ends inside open reasoning.
  bool in_reasoning() const { return state_ == State::kReasoning || state_ == State::kReasoningOpening; }

 private:
  enum class State {
    kOpening,           // held_: white space, then the first tag_size_ bytes of <think>; nothing else yet
    kReasoningOpening,  // the same, with reasoning open already
    kReasoning,         // held_: line breaks, then the first tag_size_ bytes of </think>
    kContentOpening,    // dropping line breaks
    kContent,
  };
  // Each looks at one byte and returns false when the byte is to be looked at again in the new state.
  bool push_byte(char byte, std::string& reasoning, std::string& content);
  bool push_opening_byte(char byte, std::string& reasoning, std::string& content);
  bool push_reasoning_byte(char byte, std::string& reasoning);
  // held_ holds no tag after all: in kOpening it is content, in kReasoningOpening it is reasoning.
  void leave_opening(std::string& reasoning, std::string& content);

  State state_;
  std::string held_;
  size_t tag_size_ = 0;  // bytes of the awaited tag that held_ ends with
};

}  // namespace fathom
