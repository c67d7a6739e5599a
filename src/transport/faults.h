// An endpoint that misbehaves on purpose, over any transport: for contract tests and fault drills.
// Messages are held back and posted later in random order (reorder, delay), twice (duplicates), or never
// (lost peers).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "transport/endpoint.h"

namespace fathom {

struct FaultPlan {
  uint64_t seed = 1;
  bool reorder = false;             // hold all messages until this rank waits, then post them shuffled
  double duplicate_share = 0;       // of messages posted twice
  std::vector<int> lost_peers;      // messages to these ranks vanish
  std::function<void(Rng&)> delay;  // called before each post, for example to sleep; may be empty
};

class FaultyEndpoint final : public Endpoint {
 public:
  FaultyEndpoint(std::unique_ptr<Endpoint> inner, FaultPlan plan);

  int rank() const override { return inner_->rank(); }
  int num_ranks() const override { return inner_->num_ranks(); }
  const RankMask& mask() const override { return inner_->mask(); }
  Status send(int peer, Channel channel, uint64_t sequence, const Message& message) override;
  Status wait_all(Channel channel, uint64_t sequence) override;
  const Message& received(int peer, Channel channel, uint64_t sequence) const override {
    return inner_->received(peer, channel, sequence);
  }
  void release(Channel channel, uint64_t sequence) override { inner_->release(channel, sequence); }

 private:
  struct Held {
    int peer;
    Channel channel;
    uint64_t sequence;
    Message message;
  };
  Status post(const Held& held);

  std::unique_ptr<Endpoint> inner_;
  FaultPlan plan_;
  Rng rng_;
  std::vector<Held> held_;
};

}  // namespace fathom
