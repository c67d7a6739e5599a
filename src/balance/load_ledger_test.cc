// The ledger behind a network that loses, repeats, delays and reorders, and the two indexes against plain
// scans.
#include "balance/load_ledger.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <deque>
#include <map>
#include <set>

#include "balance/fit_index.h"
#include "balance/min_tree.h"
#include "base/rng.h"

namespace fathom {
namespace {

TEST(LoadLedger, own_dispatches_count_until_a_report_acknowledges_them) {
  LoadLedger ledger;
  ledger.add_unit(2);
  const uint64_t first = ledger.charge({0, 0}, {1, 100, 10});
  const uint64_t second = ledger.charge({0, 1}, {1, 50, 5});
  const std::vector<RankLoad> seen{{3, 900, 0}, {1, 200, 0}};  // contains the first dispatch only
  EXPECT_EQ(ledger.apply({.unit = 0, .epoch = 1, .sequence = 4, .acked = first, .loads = seen}),
            ReportOutcome::kApplied);
  EXPECT_EQ(ledger.loads(0)[0], (RankLoad{3, 900, 0}));
  EXPECT_EQ(ledger.loads(0)[1], (RankLoad{2, 250, 5})) << "own_in_flight_counts";
  EXPECT_EQ(ledger.num_in_flight(0), 1);
  ledger.cancel(0, second);
  ledger.cancel(0, second);
  EXPECT_EQ(ledger.loads(0)[1], (RankLoad{1, 200, 0}));
  EXPECT_EQ(ledger.total(0), (RankLoad{4, 1100, 0}));
}

TEST(LoadLedger, a_restarted_unit_forgets_what_was_in_flight) {
  LoadLedger ledger;
  ledger.add_unit(1);
  const std::vector<RankLoad> none(1);
  EXPECT_EQ(ledger.apply({.unit = 0, .epoch = 1, .sequence = 9, .loads = none}), ReportOutcome::kApplied);
  ledger.charge({0, 0}, {1, 100, 0});
  EXPECT_EQ(ledger.apply({.unit = 0, .epoch = 2, .sequence = 1, .loads = none}), ReportOutcome::kApplied);
  EXPECT_EQ(ledger.loads(0)[0], RankLoad{});
  EXPECT_EQ(ledger.apply({.unit = 0, .epoch = 1, .sequence = 10, .loads = none}), ReportOutcome::kOldEpoch);
}

// A worker behind a network that delays, drops, repeats and reorders both dispatches and reports. Whatever it
// does, the ledger never counts a request twice for good, and once everything has settled it equals the
// worker's truth.
class BadNetwork {
 public:
  explicit BadNetwork(uint64_t seed) : rng_(seed), truth_(kRanks) { ledger_.add_unit(kRanks); }

  void step() {
    switch (rng_.next_below(5)) {
      case 0:
      case 1:
        return dispatch();
      case 2:
        return deliver_some();
      case 3:
        return report();
      default:
        return apply_some();
    }
  }

  void expect_sums() const {
    RankLoad sum;
    for (const RankLoad& load : ledger_.loads(0)) {
      ASSERT_GE(load.requests, 0) << "no_load_is_negative";
      ASSERT_GE(load.tokens, 0) << "no_load_is_negative";
      sum += load;
    }
    ASSERT_EQ(sum, ledger_.total(0));
  }

  // lost_reports_heal: one fresh report is enough; reports_are_states: old ones change nothing.
  void settle() {
    for (const Sent& sent : on_the_way_) deliver(sent);
    report();
    apply(reports_.back());
    expect_truth("lost_reports_heal");
    EXPECT_EQ(ledger_.num_in_flight(0), 0);
    for (const Report& old : reports_) apply(old);
    expect_truth("reports_are_states");
  }

 private:
  static constexpr int kRanks = 4;
  struct Sent {
    uint64_t dispatch;
    int rank;
    RankLoad load;
  };
  struct Report {
    uint64_t sequence, acked, beyond;
    std::vector<RankLoad> loads;
  };

  void dispatch() {
    const int rank = static_cast<int>(rng_.next_below(kRanks));
    const RankLoad load{1, static_cast<int64_t>(1 + rng_.next_below(5000)), 7};
    const uint64_t dispatch = ledger_.charge({0, rank}, load);
    if (rng_.next_below(10) == 0) {
      ledger_.cancel(0, dispatch);  // the send failed, and the caller knows
      acks_.accept(dispatch);       // the worker's transport reports the hole as closed
    } else {
      on_the_way_.push_back({dispatch, rank, load});
    }
  }
  // Out of order within a window, and sometimes twice.
  void deliver_some() {
    if (on_the_way_.empty()) return;
    const size_t at = rng_.next_below(std::min<size_t>(on_the_way_.size(), 8));
    deliver(on_the_way_[at]);
    if (rng_.next_below(4) != 0) on_the_way_.erase(on_the_way_.begin() + static_cast<ptrdiff_t>(at));
  }
  void deliver(const Sent& sent) {
    if (acks_.accept(sent.dispatch)) truth_[sent.rank] += sent.load;
  }
  void report() { reports_.push_back({++sequence_, acks_.acked(), acks_.acked_beyond(), truth_}); }
  // Any old one; half of them stay and come again.
  void apply_some() {
    if (reports_.empty()) return;
    const size_t at = rng_.next_below(reports_.size());
    apply(reports_[at]);
    if (rng_.next_below(2) == 0) reports_.erase(reports_.begin() + static_cast<ptrdiff_t>(at));
  }
  void apply(const Report& r) {
    ledger_.apply({.unit = 0,
                   .epoch = 1,
                   .sequence = r.sequence,
                   .acked = r.acked,
                   .acked_beyond = r.beyond,
                   .loads = r.loads});
  }
  void expect_truth(const char* rule) const {
    for (int r = 0; r < kRanks; ++r) EXPECT_EQ(ledger_.loads(0)[r], truth_[r]) << rule << ", rank " << r;
  }

  Rng rng_;
  LoadLedger ledger_;
  std::vector<RankLoad> truth_;  // what the worker has
  AckTracker acks_;
  std::vector<Sent> on_the_way_;
  std::vector<Report> reports_;
  uint64_t sequence_ = 0;
};

TEST(LoadLedger, settles_on_the_truth_behind_a_bad_network) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    BadNetwork network(seed);
    for (int i = 0; i < 400; ++i) {
      network.step();
      network.expect_sums();
    }
    network.settle();
  }
}

TEST(AckTracker, tells_repeats_and_gives_up_old_gaps) {
  AckTracker acks;
  EXPECT_TRUE(acks.accept(2));
  EXPECT_FALSE(acks.accept(2));
  EXPECT_EQ(acks.acked(), 0u);
  EXPECT_EQ(acks.acked_beyond(), 2u);
  EXPECT_TRUE(acks.accept(1));
  EXPECT_EQ(acks.acked(), 2u);
  EXPECT_TRUE(acks.accept(100));  // 3..35 are taken as lost
  EXPECT_EQ(acks.acked(), 36u);
  EXPECT_FALSE(acks.accept(20));
  EXPECT_TRUE(acks.accept(37));
  EXPECT_EQ(acks.acked(), 37u);
}

// ---- the two indexes the balancers choose from, against plain scans ----

TEST(MinTree, agrees_with_a_scan) {
  EXPECT_TRUE(rc::check("the least key, ties to the lowest index after the offset", [] {
    const int n = *rc::gen::inRange(1, 40);
    const int offset = *rc::gen::inRange(0, n);
    MinTree tree(n, offset);
    std::vector<int64_t> keys(n, MinTree::kExcluded);
    for (int step = 0; step < 50; ++step) {
      const int leaf = *rc::gen::inRange(0, n);
      keys[leaf] = *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, 6), rc::gen::just(MinTree::kExcluded));
      tree.set(leaf, keys[leaf]);
      int best = -1;
      for (int i = 0; i < n; ++i) {
        const int at = (i + offset) % n;
        if (keys[at] < MinTree::kExcluded && (best < 0 || keys[at] < keys[best])) best = at;
      }
      RC_ASSERT(tree.has_best() == (best >= 0));
      if (best >= 0) RC_ASSERT(tree.best() == best);
    }
  }));
}

TEST(FitIndex, agrees_with_a_scan_to_a_buckets_width) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int n = 1 + static_cast<int>(rng.next_below(50));
    const int64_t width = 1 + static_cast<int64_t>(rng.next_below(20));
    FitIndex index(n);
    index.reset(width);
    std::map<int, int64_t> loads;
    for (int step = 0; step < 300; ++step) {
      const int rank = static_cast<int>(rng.next_below(n));
      if (rng.next_below(4) == 0) {
        index.erase(rank);
        loads.erase(rank);
      } else {
        loads[rank] = static_cast<int64_t>(rng.next_below(25000));
        index.set(rank, loads[rank]);
      }
      const int64_t level = static_cast<int64_t>(rng.next_below(25000)) - 100;
      int64_t best = -1, least = INT64_MAX;
      for (const auto& [r, load] : loads) {
        if (load <= level) best = std::max(best, load);
        least = std::min(least, load);
      }
      const auto bucket = [&](int64_t load) {
        return std::min<int64_t>(load / width, FitIndex::kBuckets - 1);
      };
      const int found = index.largest_at_most(level);
      ASSERT_EQ(found >= 0, best >= 0);
      if (found >= 0) {
        ASSERT_LE(loads.at(found), level);
        ASSERT_EQ(bucket(loads.at(found)), bucket(best));
      }
      ASSERT_EQ(index.smallest() >= 0, !loads.empty());
      if (!loads.empty()) {
        ASSERT_EQ(bucket(loads.at(index.smallest())), bucket(least));
      }
    }
  }
}

}  // namespace
}  // namespace fathom
