// Placing ranks on machines this one is not, and pages on the nodes it has.
#include "base/numa.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <set>
#include <thread>

#include "base/cpu.h"

namespace fathom {
namespace {

const std::vector<NumaNode> kTwo = {{.id = 0, .cpus = {0, 1, 2, 3}}, {.id = 2, .cpus = {8, 9, 10, 11}}};

TEST(Numa, the_system_has_a_node_for_every_usable_cpu) {
  std::set<int> cpus;
  for (const NumaNode& node : numa_nodes()) {
    EXPECT_FALSE(node.cpus.empty());
    for (const int cpu : node.cpus) EXPECT_TRUE(cpus.insert(cpu).second) << "cpu " << cpu << " twice";
  }
  const std::vector<int> usable = available_cpus();
  EXPECT_EQ(cpus, std::set<int>(usable.begin(), usable.end()));
}

TEST(Numa, ranks_are_spread_over_nodes_and_stay_on_one) {
  const std::vector<RankCpus> ranks = place_ranks(kTwo, 4, 2);
  ASSERT_EQ(ranks.size(), 4u);
  EXPECT_EQ(ranks[0].node, 0);
  EXPECT_EQ(ranks[0].cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(ranks[1].node, 0);
  EXPECT_EQ(ranks[1].cpus, (std::vector<int>{2, 3}));
  EXPECT_EQ(ranks[2].node, 2);
  EXPECT_EQ(ranks[3].cpus, (std::vector<int>{10, 11}));
}

TEST(Numa, one_rank_takes_all_nodes_in_turn) {
  const std::vector<RankCpus> ranks = place_ranks(kTwo, 1, 6);
  EXPECT_EQ(ranks[0].node, kAnyNode);
  EXPECT_EQ(ranks[0].cpus, (std::vector<int>{0, 8, 1, 9, 2, 10}));
}

TEST(Numa, more_threads_than_processors_start_again) {
  const std::vector<RankCpus> ranks = place_ranks(kTwo, 3, 4);
  EXPECT_EQ(ranks[0].cpus, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(ranks[1].node, 0);
  EXPECT_EQ(ranks[1].cpus, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(ranks[2].node, 2);
}

TEST(Numa, every_rank_has_its_threads_whatever_the_numbers) {
  for (int num_nodes = 1; num_nodes <= 5; ++num_nodes) {
    std::vector<NumaNode> nodes;
    for (int id = 0; id < num_nodes; ++id)
      nodes.push_back({.id = id, .cpus = {3 * id, 3 * id + 1, 3 * id + 2}});
    for (int num_ranks = 1; num_ranks <= 12; ++num_ranks) {
      std::vector<int> ranks_of_node(static_cast<size_t>(num_nodes), 0);
      for (const RankCpus& rank : place_ranks(nodes, num_ranks, 2)) {
        ASSERT_EQ(rank.cpus.size(), 2u);
        if (rank.node == kAnyNode) {
          EXPECT_LT(num_ranks, num_nodes);
          EXPECT_NE(rank.cpus[0] / 3, rank.cpus[1] / 3);
          continue;
        }
        ++ranks_of_node[static_cast<size_t>(rank.node)];
        for (const int cpu : rank.cpus) EXPECT_EQ(cpu / 3, rank.node);
      }
      if (num_ranks < num_nodes) continue;
      for (const int count : ranks_of_node) {
        EXPECT_GE(count, num_ranks / num_nodes);
        EXPECT_LE(count, (num_ranks + num_nodes - 1) / num_nodes);
      }
    }
  }
}

TEST(Numa, pages_come_from_the_node_they_are_bound_to) {
  const std::vector<NumaNode> nodes = numa_nodes();
  for (const NumaNode& node : nodes) {
    std::vector<std::byte> memory(1 << 20);
    if (!bind_pages(memory, node.id)) GTEST_SKIP() << "the system binds no memory";
    std::memset(memory.data(), 1, memory.size());
    EXPECT_EQ(node_of_page(memory.data() + (1 << 19)), node.id);
  }
  std::vector<std::byte> memory(1 << 20);
  EXPECT_TRUE(interleave_pages(memory, nodes));
  EXPECT_FALSE(bind_pages(memory, 1 << 20)) << "no such node";
}

TEST(Numa, a_thread_runs_where_it_is_told) {
  for (const int cpu : available_cpus()) {
    std::thread([cpu] {
      const int only[] = {cpu};
      run_on_cpus(only);
      sched_yield();
      EXPECT_EQ(sched_getcpu(), cpu);
    }).join();
  }
}

}  // namespace
}  // namespace fathom
