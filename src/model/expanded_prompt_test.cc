// Whose keys and values are kept from step to step, and how many.
#include "model/expanded_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/testing.h"

namespace fathom {
namespace {

struct Chunk {
  uint64_t pass;
  int32_t start, count;
  bool ends = false;
};

class ExpandedPromptTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLayers = 2;

  static MlaShape shape() { return MlaShape(testing::tiny_config()); }
  static int64_t token_bytes() {
    return kLayers * shape().heads * dtype_bytes(DType::kBf16, shape().nope + shape().v);
  }
  // Room for `tokens` and not quite a block more.
  static ExpandedPrompt with_room(int64_t tokens) {
    return ExpandedPrompt(shape(), kLayers, DType::kBf16, 4096, (tokens + 63) * token_bytes());
  }

  // Computes a step; what its chunks find.
  std::vector<ExpandedPrompt::HeadPart> step(ExpandedPrompt& expanded, const std::vector<Chunk>& chunks,
                                             bool fails = false) {
    RankBatch ranks;
    for (const Chunk& chunk : chunks) {
      ranks.chunks.push_back({.tokens = std::span(tokens_).first(static_cast<size_t>(chunk.count)),
                              .start = chunk.start,
                              .blocks = blocks_,
                              .want_logits = chunk.ends,
                              .pass = chunk.pass});
    }
    batch_.assign(ranks);
    expanded.begin_step(batch_);
    std::vector<ExpandedPrompt::HeadPart> parts;
    for (const TokenSequence& sequence : batch_.sequences()) parts.push_back(expanded.part(sequence, 1, 2));
    if (!fails) expanded.end_step();
    return parts;
  }
  int64_t kept(ExpandedPrompt& expanded, const std::vector<Chunk>& chunks, size_t which = 0) {
    return step(expanded, chunks)[which].num_kept;
  }

  const std::vector<int32_t> tokens_ = std::vector<int32_t>(512);
  const std::vector<BlockId> blocks_ = std::vector<BlockId>(64);
  TokenBatch batch_{2048};
};

TEST_F(ExpandedPromptTest, whole_blocks_of_the_steps_before_are_found) {
  ExpandedPrompt expanded = with_room(1024);
  EXPECT_EQ(kept(expanded, {{7, 0, 100}}), 0);
  EXPECT_EQ(kept(expanded, {{7, 100, 156}}), 64);
  EXPECT_EQ(kept(expanded, {{7, 256, 30}}), 256);
  const auto last = step(expanded, {{7, 286, 30, /*ends=*/true}})[0];
  EXPECT_EQ(last.num_kept, 256);
  EXPECT_EQ(last.capacity, 0) << "nobody comes after the end of a prompt";
  EXPECT_EQ(kept(expanded, {{7, 316, 30}}), 0) << "and if somebody does, nothing is there";
}

TEST_F(ExpandedPromptTest, the_first_tokens_are_kept_where_there_is_no_room_for_all) {
  ExpandedPrompt expanded = with_room(128);
  EXPECT_EQ(step(expanded, {{1, 0, 300}})[0].capacity, 128);
  EXPECT_EQ(kept(expanded, {{1, 300, 300}}), 128);
  ExpandedPrompt none = with_room(0);
  EXPECT_EQ(step(none, {{1, 0, 300}})[0].capacity, 0);
  EXPECT_EQ(kept(none, {{1, 300, 300}}), 0);
}

TEST_F(ExpandedPromptTest, heads_and_layers_do_not_overlap) {
  ExpandedPrompt expanded = with_room(64);
  step(expanded, {{1, 0, 64}});
  std::vector<std::pair<std::byte*, int64_t>> places;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (int64_t head = 0; head < shape().heads; ++head) {
      const auto part = expanded.part(batch_.sequences()[0], layer, head);
      places.emplace_back(part.k, dtype_bytes(DType::kBf16, 64 * shape().nope));
      places.emplace_back(part.v, dtype_bytes(DType::kBf16, 64 * shape().v));
    }
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i)
    EXPECT_EQ(places[i].first - places[i - 1].first, places[i - 1].second);
  const int64_t all = places.back().first + places.back().second - places.front().first;
  EXPECT_EQ(all, 64 * token_bytes());
}

TEST_F(ExpandedPromptTest, a_prompt_stays_while_it_is_in_every_step) {
  ExpandedPrompt expanded = with_room(1024);
  step(expanded, {{1, 0, 128}, {2, 0, 128}});
  EXPECT_EQ(kept(expanded, {{2, 128, 64}, {1, 128, 64}}, 1), 128);
  EXPECT_EQ(kept(expanded, {{2, 192, 64}, {1, 192, 64}}, 0), 0);
  EXPECT_EQ(kept(expanded, {{2, 256, 64}}), 0) << "takes the place of 1";
  EXPECT_EQ(kept(expanded, {{2, 320, 64}}), 320) << "with all its tokens, also those of earlier steps";
  EXPECT_EQ(kept(expanded, {{1, 256, 64}}), 0) << "begins again";
}

TEST_F(ExpandedPromptTest, chunks_without_a_pass_and_whole_prompts_keep_nothing) {
  ExpandedPrompt expanded = with_room(1024);
  EXPECT_EQ(step(expanded, {{0, 0, 128}})[0].capacity, 0);
  EXPECT_EQ(step(expanded, {{5, 0, 128, true}})[0].capacity, 0);
  EXPECT_EQ(kept(expanded, {{0, 128, 64}}), 0);
}

TEST_F(ExpandedPromptTest, tokens_of_a_failed_step_do_not_count) {
  ExpandedPrompt expanded = with_room(1024);
  step(expanded, {{1, 0, 128}});
  step(expanded, {{1, 128, 128}}, /*fails=*/true);
  EXPECT_EQ(kept(expanded, {{1, 128, 128}}), 128);
  EXPECT_EQ(kept(expanded, {{1, 256, 128}}), 256);
}

TEST_F(ExpandedPromptTest, a_start_before_or_behind_what_is_kept) {
  ExpandedPrompt expanded = with_room(1024);
  step(expanded, {{1, 0, 128}});
  EXPECT_EQ(kept(expanded, {{1, 320, 64}}), 128) << "tokens between were computed by another";
  EXPECT_EQ(kept(expanded, {{1, 384, 64}}), 384);
  EXPECT_EQ(kept(expanded, {{1, 64, 64}}), 0) << "rows are written again";
  expanded.forget();
  EXPECT_EQ(kept(expanded, {{1, 128, 64}}), 0);
}

}  // namespace
}  // namespace fathom
