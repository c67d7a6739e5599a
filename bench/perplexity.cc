// Perplexity of a model on evaluation text, per weight format: what quantising costs, beside what it gains.
//
//   perplexity FOLDER EVAL.jsonl [WEIGHTS...]      WEIGHTS: native, bf16, fp8, int8, int4 (the first is the
//   base)
//
// Each line of the file is a conversation with the working and the answer that should follow; their tokens
// are scored, fed one by one as decode steps do, many conversations at a time.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/cpu.h"
#include "engine/model_parts.h"
#include "model/forward.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace fathom {
namespace {

constexpr int64_t kBatch = 64;
constexpr int32_t kContextMax = 1024;

struct Passage {
  std::vector<int32_t> ids;
  size_t scored_from = 0;  // first token that the model should have written
};

struct Score {
  double log_loss = 0;  // nats, summed
  int64_t tokens = 0;
  double perplexity() const { return std::exp(log_loss / static_cast<double>(tokens)); }
};

std::vector<int32_t> prompt_ids(const ChatTemplate& chat_template, const nlohmann::json& item) {
  std::vector<ChatMessage> messages;
  for (const auto& m : item["messages"]) {
    ChatMessage message{.role = m["role"].get<std::string>()};
    if (m["content"].is_string()) message.content = m["content"].get<std::string>();
    if (m.contains("tool_calls")) message.tool_calls_json = m["tool_calls"].dump();
    messages.push_back(std::move(message));
  }
  ChatTemplateOptions options{.thinking = true};
  if (item.contains("tools")) options.tools_json = item["tools"].dump();
  return chat_template.render(messages, options).value().ids;
}

std::vector<Passage> read_passages(const std::string& path, const Tokenizer& tokenizer,
                                   const ChatTemplate& chat_template) {
  std::ifstream file(path);
  CHECK_MSG(file.good(), "cannot read the evaluation text");
  std::vector<Passage> passages;
  for (std::string line; std::getline(file, line);) {
    const auto item = nlohmann::json::parse(line);
    const auto thought = item["thought"].get<std::string>();
    const std::string target =
        (thought.empty() ? "" : thought + "</think>") + item["answer"].get<std::string>();
    Passage passage{.ids = prompt_ids(chat_template, item)};
    passage.scored_from = passage.ids.size();
    const std::vector<int32_t> rest = tokenizer.encode_with_special(target).value();
    passage.ids.insert(passage.ids.end(), rest.begin(), rest.end());
    passage.ids.push_back(tokenizer.eos_id().value());
    if (passage.ids.size() <= kContextMax) passages.push_back(std::move(passage));
  }
  return passages;
}

double log_loss(const float* logits, int64_t vocab, int32_t id) {
  const float most = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i] - most));
  return std::log(sum) - (logits[id] - most);
}

// Steps all passages of a batch at once, token by token.
void score_batch(ForwardGroup& group, std::span<const Passage> passages, int64_t vocab, Score& score) {
  constexpr int32_t kBlocksEach = kContextMax / kBlockTokens;
  std::vector<std::vector<BlockId>> blocks(passages.size());
  size_t longest = 0;
  for (size_t i = 0; i < passages.size(); ++i) {
    for (int32_t b = 0; b < kBlocksEach; ++b)
      blocks[i].push_back(BlockId{static_cast<int32_t>(i) * kBlocksEach + b});
    longest = std::max(longest, passages[i].ids.size());
  }
  for (size_t at = 0; at + 1 < longest; ++at) {
    RankBatch batch;
    std::vector<int32_t> wanted;
    for (size_t i = 0; i < passages.size(); ++i) {
      const Passage& p = passages[i];
      if (at + 1 >= p.ids.size()) continue;
      const bool scored = at + 1 >= p.scored_from;
      batch.chunks.push_back({.tokens = std::span(p.ids).subspan(at, 1),
                              .start = static_cast<int32_t>(at),
                              .blocks = blocks[i],
                              .want_logits = scored});
      if (scored) wanted.push_back(p.ids[at + 1]);
    }
    MatrixView<const float> logits;
    CHECK(group.step({&batch, 1}, &logits).ok());
    for (size_t row = 0; row < wanted.size(); ++row) {
      score.log_loss += log_loss(logits.data + static_cast<int64_t>(row) * logits.stride, vocab, wanted[row]);
    }
    score.tokens += static_cast<int64_t>(wanted.size());
  }
}

Score score_model(const std::string& folder, const std::string& weights, std::span<const Passage> passages) {
  const auto source = open_model_folder(folder).value();
  ThreadTeam team(static_cast<int>(available_cpus().size()));
  LoadOptions load{.weights = parse_weights_option(weights).value()};
  const auto model = Model::load(*source, load, team).value();
  KvStorage storage(kv_layout_of(*model), static_cast<int32_t>(kBatch * kContextMax / kBlockTokens));
  const ForwardOptions options{.phase = Phase::kDecode,
                               .threads = team.num_threads(),
                               .max_tokens_per_rank = kBatch,
                               .max_logit_rows = kBatch,
                               .max_context = kContextMax};
  const auto group = ForwardGroup::create(*model, storage, options).value();
  Score score;
  for (size_t begin = 0; begin < passages.size(); begin += kBatch) {
    score_batch(*group, passages.subspan(begin, std::min<size_t>(kBatch, passages.size() - begin)),
                model->config().vocab_size, score);
  }
  return score;
}

int run(const std::string& folder, const std::string& path, std::vector<std::string> formats) {
  if (formats.empty()) formats = {"native", "fp8", "int8", "int4"};
  const TextAssets assets = read_text_assets(folder).value();
  const Tokenizer tokenizer = Tokenizer::load(assets).value();
  const ChatTemplate chat_template = ChatTemplate::load(assets, tokenizer).value();
  const std::vector<Passage> passages = read_passages(path, tokenizer, chat_template);
  double base = 0;
  for (const std::string& weights : formats) {
    const Score score = score_model(folder, weights, passages);
    const double perplexity = score.perplexity();
    if (base == 0) base = perplexity;
    fmt::print("{:8} perplexity {:.5f} over {} tokens of {} passages, {:+.3f} %\n", weights, perplexity,
               score.tokens, passages.size(), 100 * (perplexity / base - 1));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: perplexity FOLDER EVAL.jsonl [WEIGHTS...]\n");
    return 2;
  }
  return fathom::run(argv[1], argv[2], {argv + 3, argv + argc});
}
