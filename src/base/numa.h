// Memory nodes: which processors are near which memory. Threads stay on their rank's node and pages lie where
// they are used; on one node there is nothing to place, and threads stay free to avoid busy processors.
// All of it is advice to the system: where it refuses, things are merely slower.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace fathom {

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // those this process may use, ascending
};

// Nodes with processors this process may use, by id; one node with all of them where the system knows no
// NUMA.
std::vector<NumaNode> numa_nodes();

inline constexpr int kAnyNode = -1;

// Where a rank's threads run.
struct RankCpus {
  int node = kAnyNode;    // of all of them; kAnyNode: they are on several
  std::vector<int> cpus;  // thread i runs on cpus[i]
};

// One entry per rank. Ranks are spread evenly over the nodes, neighbours together; fewer ranks than nodes
// take several nodes each, their threads in turn. Processors are handed out in order and start again at the
// node's first when they run out.
std::vector<RankCpus> place_ranks(std::span<const NumaNode> nodes, int num_ranks, int threads_per_rank);

// Pages wholly inside `memory` come from this node, or from all in turn; call before they are first written.
// False when the system refuses.
bool bind_pages(std::span<std::byte> memory, int node);
bool interleave_pages(std::span<std::byte> memory, std::span<const NumaNode> nodes);
// The node of a page that has been written; kAnyNode when the system does not say.
int node_of_page(const std::byte* address);

// The calling thread runs on these processors only, from now on.
void run_on_cpus(std::span<const int> cpus);

// What the calling thread allocates and writes first comes from `node`, as long as this lives; kAnyNode: no
// wish.
class PreferNode {
 public:
  explicit PreferNode(int node);
  ~PreferNode();
  PreferNode(const PreferNode&) = delete;
  PreferNode& operator=(const PreferNode&) = delete;

 private:
  const bool active_;
};

}  // namespace fathom
