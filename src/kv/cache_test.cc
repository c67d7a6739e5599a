// The prefix cache: sharing, eviction, tenants; random use beside a tracked copy of every block's content.
#include "kv/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"

namespace fathom {
namespace {

constexpr KvAccount kRank0{1};
constexpr KvAccount kRank1{2};

std::vector<int32_t> tokens_of(int family, int num_tokens) {
  std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
  for (int i = 0; i < num_tokens; ++i) tokens[i] = family * 1000 + i / kBlockTokens;
  return tokens;
}

// A sequence as an engine keeps it.
struct Holder {
  Holder(const KvCache& cache, std::vector<int32_t> all_tokens, KvAccount holder,
         std::string_view tenant = "")
      : tokens(std::move(all_tokens)), keys(cache.key_chain(tenant)), account(holder) {
    keys.extend(tokens);
  }
  std::vector<int32_t> tokens;
  KeyChain keys;
  KvAccount account;
  std::vector<BlockId> blocks;
};

// Computes everything that is not cached. Returns the number of blocks that were.
int fill(KvCache& cache, Holder& h) {
  const int hit = cache.extend_match(h.keys, h.keys.size(), h.account, h.blocks);
  const int needed = blocks_for_tokens(static_cast<int64_t>(h.tokens.size()));
  EXPECT_TRUE(cache.reserve(needed - hit, h.account, h.blocks));
  for (int i = hit; i < h.keys.size(); ++i) cache.publish(h.keys, i, h.account, h.blocks);
  return hit;
}

TEST(KvCache, a_prefix_is_shared_without_copying_and_survives_its_writer) {
  KvCache cache(16, 3, "model", "layout");
  Holder a(cache, tokens_of(1, 200), kRank0);
  EXPECT_EQ(fill(cache, a), 0);
  EXPECT_EQ(a.blocks.size(), 4u);
  Holder b(cache, tokens_of(1, 200), kRank1);
  EXPECT_EQ(cache.peek(b.keys, 8), 3);
  EXPECT_EQ(cache.peek_used(b.keys, 8), 3);
  EXPECT_EQ(fill(cache, b), 3) << "the fourth block is not whole";
  EXPECT_TRUE(std::equal(b.blocks.begin(), b.blocks.begin() + 3, a.blocks.begin()));
  EXPECT_NE(a.blocks[3], b.blocks[3]);
  EXPECT_EQ(cache.num_free(), 16 - 5);
  EXPECT_EQ(cache.references_of(kRank0), 4);
  EXPECT_EQ(cache.references_of(kRank1), 4);
  cache.release(kRank0, a.blocks);
  cache.release(kRank1, b.blocks);
  EXPECT_EQ(cache.num_free(), 13);
  EXPECT_EQ(cache.num_cached_unused(), 3);
  EXPECT_EQ(cache.peek_used(b.keys, 8), 0);
  Holder c(cache, tokens_of(1, 128), kRank0);
  EXPECT_EQ(cache.extend_match(c.keys, 1, kRank0, c.blocks), 1) << "the limit holds";
  cache.release(kRank0, c.blocks);
  EXPECT_EQ(cache.flush(), 3);
  EXPECT_EQ(cache.num_free(), 16);
  EXPECT_TRUE(cache.check().ok());
}

TEST(KvCache, tenants_do_not_see_one_another) {
  KvCache cache(16, 3, "model", "layout");
  Holder a(cache, tokens_of(1, 128), kRank0, "alice");
  Holder b(cache, tokens_of(1, 128), kRank0, "bob");
  fill(cache, a);
  EXPECT_EQ(cache.peek(b.keys, 8), 0);
  cache.release(kRank0, a.blocks);
}

TEST(KvCache, prompts_below_a_block_are_never_cached) {
  KvCache cache(4, 3, "model", "layout");
  Holder a(cache, tokens_of(1, 63), kRank0);
  fill(cache, a);
  cache.release(kRank0, a.blocks);
  EXPECT_EQ(cache.num_free(), 4);
}

TEST(KvCache, the_least_recently_used_leaf_goes_first) {
  KvCache cache(6, 3, "model", "layout");
  Holder old_one(cache, tokens_of(1, 128), kRank0);
  Holder kept(cache, tokens_of(2, 128), kRank0);
  fill(cache, old_one);
  fill(cache, kept);
  cache.release(kRank0, old_one.blocks);
  cache.release(kRank0, kept.blocks);
  // Used again: now the other family is the oldest.
  EXPECT_EQ(cache.extend_match(old_one.keys, 2, kRank0, old_one.blocks), 2);
  cache.release(kRank0, old_one.blocks);
  std::vector<BlockId> fresh;
  EXPECT_TRUE(cache.reserve(3, kRank1, fresh)) << "two free, one evicted";
  EXPECT_EQ(cache.peek(kept.keys, 2), 1) << "the leaf went, its parent stayed";
  EXPECT_EQ(cache.peek(old_one.keys, 2), 2);
  EXPECT_FALSE(cache.reserve(4, kRank1, fresh)) << "all or nothing";
  EXPECT_EQ(fresh.size(), 3u);
  EXPECT_TRUE(cache.check().ok());
  cache.release(kRank1, fresh);
}

TEST(KvCache, two_writers_of_one_prefix_end_on_one_copy) {
  KvCache cache(8, 3, "model", "layout");
  Holder a(cache, tokens_of(1, 128), kRank0);
  Holder b(cache, tokens_of(1, 128), kRank1);
  ASSERT_TRUE(cache.reserve(2, kRank0, a.blocks));
  ASSERT_TRUE(cache.reserve(2, kRank1, b.blocks));
  cache.publish(a.keys, 0, kRank0, a.blocks);
  cache.publish(b.keys, 0, kRank1, b.blocks);
  cache.publish(b.keys, 1, kRank1, b.blocks);
  cache.publish(a.keys, 1, kRank0, a.blocks);
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(cache.num_free(), 6);
  EXPECT_TRUE(cache.check().ok());
  cache.release(kRank0, a.blocks);
  cache.release(kRank1, b.blocks);
  EXPECT_TRUE(cache.check().ok());
}

TEST(KvCache, the_name_of_a_broken_rule_stops_the_process) {
  KvCache cache(4, 3, "model", "layout");
  std::vector<BlockId> blocks;
  ASSERT_TRUE(cache.reserve(1, kRank0, blocks));
  EXPECT_DEATH(cache.release(kRank1, blocks), "released by an account that holds none");
  std::vector<BlockId> again = blocks;
  cache.release(kRank0, blocks);
  EXPECT_DEATH(cache.release(kRank0, again), "released twice");
}

// Random sequences of a few families, with contents tracked beside the cache: a holder must always find in
// its blocks what it wrote or what the prefix says, and every rule of pool and tree holds after every
// operation.
class Fuzz {
 public:
  explicit Fuzz(uint64_t seed) : rng_(seed), cache_(24, 3, "model", "layout"), contents_(24) {}

  void run(int num_operations) {
    cache_.remember_evicted();
    for (int i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
      switch (rng_.next_below(8)) {
        case 0:
        case 1:
          start();
          break;
        case 2:
        case 3:
        case 4:
          grow();
          break;
        case 5:
          finish();
          break;
        case 6:
          hand_over();
          break;
        case 7:
          if (rng_.next_below(20) == 0) cache_.flush();
          break;
      }
      verify();
    }
    while (!holders_.empty()) finish();
    cache_.flush();
    verify();
    EXPECT_EQ(cache_.num_free(), cache_.num_total());
    EXPECT_EQ(static_cast<int64_t>(cache_.take_evicted().size()), cache_.num_evicted());
    EXPECT_TRUE(cache_.take_evicted().empty());
    EXPECT_EQ(cache_.references_of(kRank0) + cache_.references_of(kRank1), 0);
  }
  int64_t num_hit_blocks() const { return num_hit_blocks_; }
  int64_t num_evicted() const { return cache_.num_evicted(); }

 private:
  KvAccount random_account() { return rng_.next_below(2) == 0 ? kRank0 : kRank1; }

  void start() {
    if (holders_.size() >= 6) return;
    const int family = static_cast<int>(rng_.next_below(4));
    const int num_tokens = 1 + static_cast<int>(rng_.next_below(400));
    Holder h(cache_, tokens_of(family, num_tokens), random_account());
    num_hit_blocks_ += cache_.extend_match(h.keys, (num_tokens - 1) / kBlockTokens, h.account, h.blocks);
    stored_.push_back(static_cast<int>(h.blocks.size()) * kBlockTokens);
    holders_.push_back(std::move(h));
  }
  void grow() {
    if (holders_.empty()) return;
    const size_t i = rng_.next_below(holders_.size());
    Holder& h = holders_[i];
    const int total = static_cast<int>(h.tokens.size());
    const int end = std::min(total, stored_[i] + 1 + static_cast<int>(rng_.next_below(150)));
    const int missing = blocks_for_tokens(end) - static_cast<int>(h.blocks.size());
    if (missing > 0 && !cache_.reserve(missing, h.account, h.blocks)) return;
    for (int t = stored_[i]; t < end; ++t) {
      auto& rows = contents_[index_of(h.blocks[t / kBlockTokens])];
      rows[t % kBlockTokens] = h.tokens[t];
    }
    for (int b = stored_[i] / kBlockTokens; b < end / kBlockTokens; ++b) {
      cache_.publish(h.keys, b, h.account, h.blocks);
    }
    stored_[i] = end;
  }
  void finish() {
    if (holders_.empty()) return;
    const size_t i = rng_.next_below(holders_.size());
    cache_.release(holders_[i].account, holders_[i].blocks);
    holders_.erase(holders_.begin() + static_cast<int64_t>(i));
    stored_.erase(stored_.begin() + static_cast<int64_t>(i));
  }
  void hand_over() {
    if (holders_.empty()) return;
    Holder& h = holders_[rng_.next_below(holders_.size())];
    const KvAccount target = random_account();
    std::vector<BlockId> moved = h.blocks;
    cache_.share(moved, target);
    cache_.release(h.account, h.blocks);
    h.blocks = moved;
    h.account = target;
  }
  void verify() {
    const Status status = cache_.check();
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t i = 0; i < holders_.size(); ++i) {
      for (int t = 0; t < stored_[i]; ++t) {
        const auto& rows = contents_[index_of(holders_[i].blocks[t / kBlockTokens])];
        ASSERT_EQ(rows[t % kBlockTokens], holders_[i].tokens[t]) << "token " << t;
      }
    }
  }

  Rng rng_;
  KvCache cache_;
  std::vector<std::array<int32_t, kBlockTokens>> contents_;
  std::vector<Holder> holders_;
  std::vector<int> stored_;
  int64_t num_hit_blocks_ = 0;
};

TEST(KvCache, random_use_keeps_every_rule_and_every_content) {
  int64_t num_hit_blocks = 0;
  int64_t num_evicted = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Fuzz fuzz(seed);
    fuzz.run(400);
    num_hit_blocks += fuzz.num_hit_blocks();
    num_evicted += fuzz.num_evicted();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_hit_blocks, 1000);
  EXPECT_GT(num_evicted, 100);
}

}  // namespace
}  // namespace fathom
