// Delays, repeats and losses by a seeded generator.
#include "transport/faults.h"

#include <algorithm>
#include <utility>

namespace fathom {

FaultyEndpoint::FaultyEndpoint(std::unique_ptr<Endpoint> inner, FaultPlan plan)
    : inner_(std::move(inner)), plan_(std::move(plan)), rng_(mix64(plan_.seed) ^ inner_->rank()) {}

Status FaultyEndpoint::send(int peer, Channel channel, uint64_t sequence, const Message& message) {
  if (std::find(plan_.lost_peers.begin(), plan_.lost_peers.end(), peer) != plan_.lost_peers.end()) return {};
  const Held held{peer, channel, sequence, message};
  if (!plan_.reorder) return post(held);
  held_.push_back(held);
  return {};
}

Status FaultyEndpoint::wait_all(Channel channel, uint64_t sequence) {
  for (size_t i = held_.size(); i > 1; --i) std::swap(held_[i - 1], held_[rng_.next_below(i)]);
  for (const Held& held : std::exchange(held_, {})) RETURN_IF_ERROR(post(held));
  return inner_->wait_all(channel, sequence);
}

Status FaultyEndpoint::post(const Held& held) {
  if (plan_.delay) plan_.delay(rng_);
  RETURN_IF_ERROR(inner_->send(held.peer, held.channel, held.sequence, held.message));
  if (rng_.next_double() >= plan_.duplicate_share) return {};
  // Nothing is asked of the duplicate: it may be refused as well as dropped.
  (void)inner_->send(held.peer, held.channel, held.sequence, held.message).ok();
  return {};
}

}  // namespace fathom
