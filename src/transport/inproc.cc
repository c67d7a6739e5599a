// Ranks as threads of one process: messages are handed over by pointer, waiting parks.
#include "transport/inproc.h"

#include <string>

#include "base/check.h"
#include "base/cpu.h"

namespace fathom {
namespace {

constexpr int kNumBuffers = 2;  // exchanges of a channel in flight
constexpr uint64_t kEmpty = ~uint64_t{0};
constexpr int kMissingRanksShown = 8;
// A wait is cut into so many parts, and a part counts once however long it took: while the whole process
// stood still (stopped, frozen, suspended), the peers could not have answered, and time without them is no
// silence.
constexpr int kWaitParts = 100;

}  // namespace

// What one rank receives. The sender of each cell is its only writer between two exchanges.
struct InprocGroup::Mailbox {
  struct Cell {
    std::atomic<uint64_t> sequence{kEmpty};  // exchange whose message is in `message`
    Message message;
  };
  struct Buffer {
    std::vector<Cell> cells;  // by sender
    std::atomic<int> arrived{0};
    std::atomic<uint64_t> released{kEmpty};  // last exchange the owner has read completely
  };

  explicit Mailbox(int num_ranks) {
    for (auto& channel : buffers) {
      for (Buffer& buffer : channel) buffer.cells = std::vector<Cell>(num_ranks);
    }
  }
  Buffer& buffer(Channel channel, uint64_t sequence) {
    return buffers[static_cast<int>(channel)][sequence % kNumBuffers];
  }
  void clear() {
    for (auto& channel : buffers) {
      for (Buffer& buffer : channel) {
        buffer.arrived.store(0);
        buffer.released.store(kEmpty);
        for (Cell& cell : buffer.cells) cell.sequence.store(kEmpty);
      }
    }
  }
  void wake() {
    if (!parked.load(std::memory_order_seq_cst)) return;
    // Taken so that the owner is either before its predicate or already asleep, never in between.
    std::lock_guard lock(mu);
    complete.notify_one();
  }

  std::array<std::array<Buffer, kNumBuffers>, kNumChannels> buffers;
  std::atomic<bool> parked{false};
  std::mutex mu;
  std::condition_variable complete;
};

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(InprocGroup& group, int rank)
      : group_(group), rank_(rank), epoch_(group.epoch()), mask_(group.mask_) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return group_.num_ranks(); }
  const RankMask& mask() const override { return mask_; }

  Status send(int peer, Channel channel, uint64_t sequence, const Message& message) override {
    RETURN_IF_ERROR(check_epoch());
    InprocGroup::Mailbox& mailbox = *group_.mailboxes_[peer];
    auto& buffer = mailbox.buffer(channel, sequence);
    const uint64_t must_be_read = sequence >= kNumBuffers ? sequence - kNumBuffers : kEmpty;
    if (buffer.released.load(std::memory_order_acquire) != must_be_read) {
      return make_status(StatusCode::kFailedPrecondition,
                         "rank {}: {} {} to rank {}, which has not released {} {} yet", rank_,
                         channel_name(channel), sequence, peer, channel_name(channel), must_be_read);
    }
    auto& cell = buffer.cells[rank_];
    if (cell.sequence.load(std::memory_order_relaxed) == sequence)
      return {};  // a duplicate: the first one counts
    cell.message = message;
    cell.sequence.store(sequence, std::memory_order_release);
    if (buffer.arrived.fetch_add(1, std::memory_order_seq_cst) + 1 == group_.num_live_) mailbox.wake();
    return {};
  }

  Status wait_all(Channel channel, uint64_t sequence) override {
    InprocGroup::Mailbox& mailbox = *group_.mailboxes_[rank_];
    auto& buffer = mailbox.buffer(channel, sequence);
    const auto complete = [&] { return buffer.arrived.load(std::memory_order_seq_cst) >= group_.num_live_; };
    for (int spin = 0; spin < group_.options_.spin_iterations && !complete(); ++spin) pause_cpu();
    bool arrived = complete();
    if (!arrived) {
      std::unique_lock lock(mailbox.mu);
      mailbox.parked.store(true, std::memory_order_seq_cst);
      const auto over = [&] { return complete() || group_.aborted_.load(); };
      for (int part = 0; part < kWaitParts; ++part) {
        if (mailbox.complete.wait_for(lock, group_.options_.timeout / kWaitParts, over)) break;
      }
      arrived = complete();
      mailbox.parked.store(false, std::memory_order_relaxed);
    }
    RETURN_IF_ERROR(check_epoch());
    return arrived ? check_complete(buffer, channel, sequence) : missing(buffer, channel, sequence);
  }

  const Message& received(int peer, Channel channel, uint64_t sequence) const override {
    const auto& cell = group_.mailboxes_[rank_]->buffer(channel, sequence).cells[peer];
    CHECK(cell.sequence.load(std::memory_order_relaxed) == sequence);
    return cell.message;
  }

  void release(Channel channel, uint64_t sequence) override {
    auto& buffer = group_.mailboxes_[rank_]->buffer(channel, sequence);
    buffer.arrived.store(0, std::memory_order_relaxed);
    buffer.released.store(sequence, std::memory_order_release);
  }

 private:
  Status check_epoch() const {
    if (group_.aborted_.load(std::memory_order_acquire)) {
      std::lock_guard lock(group_.abort_mu_);
      return make_status(StatusCode::kUnavailable, "rank {}: {}", rank_, group_.abort_reason_);
    }
    if (group_.epoch() != epoch_) {
      return make_status(StatusCode::kFailedPrecondition, "rank {}: endpoint of epoch {}, the group is at {}",
                         rank_, epoch_, group_.epoch());
    }
    return {};
  }

  // The count says complete; a message of another exchange among them would be a duplicate or a stray.
  Status check_complete(const InprocGroup::Mailbox::Buffer& buffer, Channel channel,
                        uint64_t sequence) const {
    for (int peer = 0; peer < num_ranks(); ++peer) {
      if (!mask_.contains(peer)) continue;
      if (buffer.cells[peer].sequence.load(std::memory_order_acquire) != sequence) {
        return missing(buffer, channel, sequence);
      }
    }
    return {};
  }

  Status missing(const InprocGroup::Mailbox::Buffer& buffer, Channel channel, uint64_t sequence) const {
    std::string ranks;
    int num_missing = 0;
    for (int peer = 0; peer < num_ranks(); ++peer) {
      if (!mask_.contains(peer)) continue;
      if (buffer.cells[peer].sequence.load(std::memory_order_acquire) == sequence) continue;
      if (++num_missing <= kMissingRanksShown) ranks += fmt::format(" {}", peer);
    }
    if (num_missing > kMissingRanksShown)
      ranks += fmt::format(" and {} more", num_missing - kMissingRanksShown);
    return make_status(StatusCode::kDeadlineExceeded, "rank {}: {} {} misses rank(s){} after {:.3f} s", rank_,
                       channel_name(channel), sequence, ranks, to_seconds(group_.options_.timeout));
  }

  InprocGroup& group_;
  const int rank_;
  const uint32_t epoch_;
  const RankMask mask_;
};

InprocGroup::InprocGroup(const InprocOptions& options)
    : options_(options), mask_(RankMask::all(options.num_ranks)), num_live_(options.num_ranks) {
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    mailboxes_.push_back(std::make_unique<Mailbox>(options.num_ranks));
  }
}

InprocGroup::~InprocGroup() = default;

Result<std::unique_ptr<InprocGroup>> InprocGroup::create(const InprocOptions& options) {
  if (options.num_ranks < 1 || options.num_ranks > kMaxRanks) {
    return invalid_argument("{} ranks in a group; supported are 1 to {}", options.num_ranks, kMaxRanks);
  }
  return std::unique_ptr<InprocGroup>(new InprocGroup(options));
}

std::unique_ptr<Endpoint> InprocGroup::endpoint(int rank) {
  CHECK(rank >= 0 && rank < num_ranks());
  return std::make_unique<InprocEndpoint>(*this, rank);
}

void InprocGroup::abort(const std::string& reason) {
  {
    std::lock_guard lock(abort_mu_);
    if (aborted_.load()) return;  // the first reason is the cause
    abort_reason_ = reason;
    aborted_.store(true);
  }
  for (auto& mailbox : mailboxes_) {
    std::lock_guard lock(mailbox->mu);
    mailbox->complete.notify_all();
  }
}

void InprocGroup::reconfigure(const RankMask& mask) {
  mask_ = mask;
  num_live_ = mask.count();
  for (auto& mailbox : mailboxes_) mailbox->clear();
  aborted_.store(false);
  epoch_.fetch_add(1);
}

}  // namespace fathom
