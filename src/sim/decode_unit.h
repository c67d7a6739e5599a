// One simulated decode unit, count-only: per rank the number of live requests and their KV tokens, and a time
// wheel of completions keyed by the unit's step number. A step costs O(ranks); no event per token or per live
// request.
#pragma once

#include <cstdint>
#include <vector>

namespace fathom::sim {

// KV is counted in thousandths of a token, because a step with MTP adds 1.85 tokens to each request.
inline constexpr int64_t kMilli = 1000;
inline constexpr int64_t kRoomTokensMax = 2'000'000;  // of a rank: its thousandths fit 32 bits
// Times kept per live request are in units of 0.1 ms, so that a day fits 32 bits.
inline constexpr int64_t kTickNs = 100'000;

struct DecodeJob {
  int64_t ready_ns = 0;  // prefill done and KV handed over
  uint32_t joined_ticks =
      0;                 // start of its first decode step, in kTickNs; 0: not yet. Kept over a retraction
  int32_t kv_milli = 0;  // KV tokens it brings
  int32_t steps = 0;     // decode steps it still needs
  int32_t output_tokens = 0;
  bool ttft_met = true;  // its first token came within the objective
};

struct FinishedJob {
  uint32_t joined_ticks = 0;
  int32_t output_tokens = 0;
  bool ttft_met = true;
};

// What one step looked like when it started.
struct StepLoad {
  int64_t requests = 0;
  int64_t kv_milli = 0;
  int32_t requests_max = 0;
  int32_t kv_milli_max = 0;
};

class DecodeUnit {
 public:
  DecodeUnit(int num_ranks, int32_t growth_milli, int64_t kv_room_milli);

  int num_ranks() const { return num_ranks_; }
  // Joins `rank` when the next step starts.
  void add(int rank, const DecodeJob& job);
  // Admits what was added and retracts the newest requests of any rank whose KV would pass the room during
  // the step. Retracted jobs are appended, with the KV they hold now and the steps they still need.
  StepLoad begin_step(int64_t now_ns, std::vector<DecodeJob>& retracted);
  // Grows every live request by one step and appends those that finish.
  void end_step(std::vector<FinishedJob>& finished);

  // KV that no request holds: a deliberate error.
  void leak(int rank, int32_t kv_milli) { kv_milli_[rank] += kv_milli; }

  bool idle() const { return live_ == 0 && joining_.empty(); }
  int64_t live() const { return live_; }
  int64_t num_requests() const { return live_ + static_cast<int64_t>(joining_.size()); }
  int64_t kv_milli_total() const;
  // The same, summed over the live requests: what is more has no owner.
  int64_t kv_milli_owned() const;
  uint32_t step_number() const { return step_; }
  // Per rank, padded to a multiple of four with zeros.
  const std::vector<int32_t>& requests() const { return requests_; }
  const std::vector<int32_t>& kv_milli() const { return kv_milli_; }
  // Unit loss: every live and joining request is given back as it stands; the unit is empty afterwards.
  void lose_all(std::vector<DecodeJob>& lost);

 private:
  static constexpr uint32_t kWheelSize = 4096;  // steps; longer requests stay in their bucket for more turns
  static constexpr uint32_t kNone = UINT32_MAX;
  // A live request, filed under the step in which it finishes. What it holds now follows from what it will
  // release.
  struct Live {
    uint32_t end_step;
    int32_t release_kv_milli;  // KV it holds when it finishes
    uint32_t joined_ticks;
    int32_t output_tokens;
    int16_t rank;
    bool ttft_met;
  };
  // Buckets are lists of chunks, so that a step reads its completions in sequence.
  static constexpr int kChunkSize = 6;
  struct Chunk {
    Live live[kChunkSize];
    uint32_t next = kNone;
    int32_t used = 0;
  };
  struct Bucket {
    uint32_t head = kNone;
    int32_t used = 0;  // entries in the head chunk; chunks behind it are full
  };

  void insert(int rank, const DecodeJob& job);
  void push(Bucket& bucket, const Live& live);
  Live pop(Bucket& bucket);
  void remove(const Live& live, int32_t held_kv_milli);
  DecodeJob current_state(const Live& live) const;
  int32_t held_kv_milli(const Live& live) const {
    return live.release_kv_milli - static_cast<int32_t>(live.end_step - step_) * growth_milli_;
  }
  void retract_newest(int rank, std::vector<DecodeJob>& retracted);

  const int num_ranks_;
  const int32_t growth_milli_;
  const int64_t kv_room_milli_;
  uint32_t step_ = 0;  // steps completed
  int64_t live_ = 0;
  std::vector<int32_t> requests_;
  std::vector<int32_t> kv_milli_;
  std::vector<Bucket> wheel_;
  std::vector<Chunk> chunks_;
  uint32_t free_ = kNone;
  std::vector<Live> later_;  // scratch: entries of a bucket that finish a turn later
  struct Joining {
    int rank;
    DecodeJob job;
  };
  std::vector<Joining> joining_;
};

}  // namespace fathom::sim
