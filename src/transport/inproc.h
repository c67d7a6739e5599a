// The transport between the ranks of one process: a message is a view of its sender's memory, nothing is
// copied. Written for ranks that far outnumber the cores: a receiver sleeps on its own condition variable and
// is woken once per exchange, by the sender whose message makes it complete.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/endpoint.h"

namespace fathom {

struct InprocOptions {
  int num_ranks = 1;  // 1..kMaxRanks
  // How long wait_all waits for a peer, as DeepEP does; time in which the whole process stood still excepted.
  Duration timeout = std::chrono::seconds(100);
  int spin_iterations = 2000;  // pauses before parking; 0 when ranks outnumber cores
};

class InprocGroup {
 public:
  static Result<std::unique_ptr<InprocGroup>> create(const InprocOptions& options);
  ~InprocGroup();
  InprocGroup(const InprocGroup&) = delete;
  InprocGroup& operator=(const InprocGroup&) = delete;

  int num_ranks() const { return options_.num_ranks; }
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }

  // The endpoint of `rank` in the current epoch; it outlives neither the group nor the epoch's use.
  std::unique_ptr<Endpoint> endpoint(int rank);

  // Ends every wait of this epoch with kUnavailable("... reason"): a rank failed, and the others must not
  // wait for the deadline. Thread-safe.
  void abort(const std::string& reason);

  // Starts the next epoch with these live ranks and empty mailboxes. No endpoint may be in a call; endpoints
  // of older epochs only get kFailedPrecondition afterwards.
  void reconfigure(const RankMask& mask);

 private:
  friend class InprocEndpoint;
  struct Mailbox;

  explicit InprocGroup(const InprocOptions& options);

  const InprocOptions options_;
  std::atomic<uint32_t> epoch_{1};
  std::atomic<bool> aborted_{false};
  RankMask mask_;                                    // changes only in reconfigure
  int num_live_ = 0;                                 // mask_.count()
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // one per rank
  std::mutex abort_mu_;
  std::string abort_reason_;  // guarded by abort_mu_
};

}  // namespace fathom
