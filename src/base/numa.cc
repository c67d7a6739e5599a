// Over libnuma, which reads the topology and knows the system calls.
#include "base/numa.h"

#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/check.h"
#include "base/cpu.h"

namespace fathom {
namespace {

using Bitmask = std::unique_ptr<bitmask, void (*)(bitmask*)>;

Bitmask node_mask() { return {numa_allocate_nodemask(), numa_free_nodemask}; }

// The whole pages inside.
std::span<std::byte> whole_pages(std::span<std::byte> memory) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + memory.size()) / page * page;
  if (end <= begin) return {};
  return memory.subspan(begin - address, end - begin);
}

bool apply(std::span<std::byte> memory, int policy, const bitmask& nodes) {
  const std::span<std::byte> pages = whole_pages(memory);
  if (pages.empty()) return true;
  return mbind(pages.data(), pages.size(), policy, nodes.maskp, nodes.size + 1, 0) == 0;
}

}  // namespace

std::vector<NumaNode> numa_nodes() {
  const std::vector<int> usable = available_cpus();
  if (numa_available() < 0) return {{.id = 0, .cpus = usable}};
  std::vector<NumaNode> nodes;
  for (int id = 0; id <= numa_max_node(); ++id) {
    NumaNode node{.id = id};
    for (const int cpu : usable) {
      if (numa_node_of_cpu(cpu) == id) node.cpus.push_back(cpu);
    }
    if (!node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.push_back({.id = 0, .cpus = usable});
  return nodes;
}

std::vector<RankCpus> place_ranks(std::span<const NumaNode> nodes, int num_ranks, int threads_per_rank) {
  CHECK(!nodes.empty() && num_ranks >= 1 && threads_per_rank >= 1);
  const int num_nodes = static_cast<int>(nodes.size());
  std::vector<size_t> next(nodes.size(), 0);
  std::vector<RankCpus> ranks(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int first = rank * num_nodes / num_ranks;
    const int last = std::max(first + 1, (rank + 1) * num_nodes / num_ranks);  // past the end
    RankCpus& out = ranks[static_cast<size_t>(rank)];
    out.node = num_ranks < num_nodes && last - first > 1 ? kAnyNode : nodes[static_cast<size_t>(first)].id;
    const int span = num_ranks < num_nodes ? last - first : 1;
    for (int thread = 0; thread < threads_per_rank; ++thread) {
      const auto node = static_cast<size_t>(first + thread % span);
      out.cpus.push_back(nodes[node].cpus[next[node]++ % nodes[node].cpus.size()]);
    }
  }
  return ranks;
}

bool bind_pages(std::span<std::byte> memory, int node) {
  if (numa_available() < 0 || node < 0 || node > numa_max_node()) return false;
  const Bitmask mask = node_mask();
  numa_bitmask_setbit(mask.get(), static_cast<unsigned>(node));
  // Preferred, not bound: a full node must slow the start down, not kill the process.
  return apply(memory, MPOL_PREFERRED, *mask);
}

bool interleave_pages(std::span<std::byte> memory, std::span<const NumaNode> nodes) {
  if (numa_available() < 0) return false;
  const Bitmask mask = node_mask();
  for (const NumaNode& node : nodes) {
    if (node.id > numa_max_node()) return false;
    numa_bitmask_setbit(mask.get(), static_cast<unsigned>(node.id));
  }
  return apply(memory, MPOL_INTERLEAVE, *mask);
}

int node_of_page(const std::byte* address) {
  int node = kAnyNode;
  if (numa_available() < 0) return kAnyNode;
  auto* const page = const_cast<std::byte*>(address);
  return get_mempolicy(&node, nullptr, 0, page, MPOL_F_NODE | MPOL_F_ADDR) == 0 ? node : kAnyNode;
}

void run_on_cpus(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

PreferNode::PreferNode(int node) : active_(node >= 0 && numa_available() >= 0 && node <= numa_max_node()) {
  if (active_) numa_set_preferred(node);
}

PreferNode::~PreferNode() {
  if (active_) numa_set_localalloc();
}

}  // namespace fathom
