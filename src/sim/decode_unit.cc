// Count-only decode: a time wheel of completions, so that a step costs its ranks and not its requests.
#include "sim/decode_unit.h"

#include <algorithm>

#include "base/check.h"

namespace fathom::sim {

DecodeUnit::DecodeUnit(int num_ranks, int32_t growth_milli, int64_t kv_room_milli)
    : num_ranks_(num_ranks),
      growth_milli_(growth_milli),
      kv_room_milli_(kv_room_milli),
      requests_((num_ranks + 3) / 4 * 4),
      kv_milli_((num_ranks + 3) / 4 * 4),
      wheel_(kWheelSize) {
  CHECK(num_ranks > 0 && num_ranks <= INT16_MAX && growth_milli > 0);
  CHECK_MSG(kv_room_milli > 0 && kv_room_milli <= kRoomTokensMax * kMilli,
            "KV room of a rank must be within 2 M tokens");
}

void DecodeUnit::add(int rank, const DecodeJob& job) {
  CHECK(rank >= 0 && rank < num_ranks_ && job.steps > 0);
  joining_.push_back({rank, job});
}

void DecodeUnit::push(Bucket& bucket, const Live& live) {
  if (bucket.head == kNone || bucket.used == kChunkSize) {
    uint32_t idx = free_;
    if (idx == kNone) {
      idx = static_cast<uint32_t>(chunks_.size());
      chunks_.emplace_back();
    } else {
      free_ = chunks_[idx].next;
    }
    chunks_[idx].next = bucket.head;
    bucket = {idx, 0};
  }
  chunks_[bucket.head].live[bucket.used++] = live;
}

DecodeUnit::Live DecodeUnit::pop(Bucket& bucket) {
  Chunk& chunk = chunks_[bucket.head];
  const Live live = chunk.live[--bucket.used];
  if (bucket.used == 0) {
    const uint32_t emptied = bucket.head;
    bucket.head = chunk.next;
    bucket.used = bucket.head == kNone ? 0 : kChunkSize;
    chunk.next = free_;
    free_ = emptied;
  }
  return live;
}

void DecodeUnit::insert(int rank, const DecodeJob& job) {
  const uint32_t end_step = step_ + static_cast<uint32_t>(job.steps);
  const int32_t release = job.kv_milli + job.steps * growth_milli_;
  push(wheel_[end_step % kWheelSize],
       {end_step, release, job.joined_ticks, job.output_tokens, static_cast<int16_t>(rank), job.ttft_met});
  ++requests_[rank];
  kv_milli_[rank] += job.kv_milli;
  ++live_;
}

void DecodeUnit::remove(const Live& live, int32_t held_kv_milli) {
  kv_milli_[live.rank] -= held_kv_milli;
  --requests_[live.rank];
  --live_;
  CHECK(kv_milli_[live.rank] >= 0 && requests_[live.rank] >= 0);
}

DecodeJob DecodeUnit::current_state(const Live& live) const {
  DecodeJob job;
  job.joined_ticks = live.joined_ticks;
  job.kv_milli = held_kv_milli(live);
  job.steps = static_cast<int32_t>(live.end_step - step_);
  job.output_tokens = live.output_tokens;
  job.ttft_met = live.ttft_met;
  return job;
}

void DecodeUnit::retract_newest(int rank, std::vector<DecodeJob>& retracted) {
  Bucket* found = nullptr;
  Live newest{};
  for (Bucket& bucket : wheel_) {
    int used = bucket.used;
    for (uint32_t c = bucket.head; c != kNone; c = chunks_[c].next, used = kChunkSize) {
      for (int i = 0; i < used; ++i) {
        const Live& live = chunks_[c].live[i];
        if (live.rank != rank || (found != nullptr && live.joined_ticks <= newest.joined_ticks)) continue;
        found = &bucket;
        newest = live;
      }
    }
  }
  CHECK(found != nullptr);
  retracted.push_back(current_state(newest));
  remove(newest, held_kv_milli(newest));
  later_.clear();
  while (found->head != kNone) later_.push_back(pop(*found));
  bool dropped = false;
  for (const Live& live : later_) {
    const bool same = live.rank == rank && live.joined_ticks == newest.joined_ticks &&
                      live.release_kv_milli == newest.release_kv_milli && live.end_step == newest.end_step;
    if (same && !dropped) {
      dropped = true;
    } else {
      push(*found, live);
    }
  }
  CHECK(dropped);
}

StepLoad DecodeUnit::begin_step(int64_t now_ns, std::vector<DecodeJob>& retracted) {
  // Where a request is filed is far apart from the last one's place: fetch ahead, first the bucket, then its
  // chunk.
  const size_t num_joining = joining_.size();
  const auto bucket_of = [&](size_t i) -> Bucket& {
    return wheel_[(step_ + static_cast<uint32_t>(joining_[i].job.steps)) % kWheelSize];
  };
  for (size_t i = 0; i < num_joining; ++i) {
    if (i + 8 < num_joining) __builtin_prefetch(&bucket_of(i + 8));
    if (i + 4 < num_joining && bucket_of(i + 4).head != kNone) {
      __builtin_prefetch(&chunks_[bucket_of(i + 4).head].live[bucket_of(i + 4).used], 1);
    }
    Joining& joining = joining_[i];
    if (joining.job.joined_ticks == 0) joining.job.joined_ticks = static_cast<uint32_t>(now_ns / kTickNs);
    insert(joining.rank, joining.job);
  }
  joining_.clear();
  const int n = static_cast<int>(requests_.size());
  const int32_t* requests = requests_.data();
  const int32_t* kv = kv_milli_.data();
  int32_t fullest = 0;
  for (int r = 0; r < n; ++r) fullest = std::max(fullest, kv[r] + requests[r] * growth_milli_);
  for (int r = 0; fullest > kv_room_milli_ && r < num_ranks_; ++r) {
    while (int64_t{kv_milli_[r]} + int64_t{requests_[r]} * growth_milli_ > kv_room_milli_)
      retract_newest(r, retracted);
  }
  StepLoad load;
  load.requests = live_;
  int32_t requests_max = 0;
  int32_t kv_max = 0;
  for (int r = 0; r < n; ++r) {
    requests_max = std::max(requests_max, requests[r]);
    kv_max = std::max(kv_max, kv[r]);
  }
  load.requests_max = requests_max;
  load.kv_milli_max = kv_max;
  load.kv_milli = kv_milli_total();
  return load;
}

void DecodeUnit::end_step(std::vector<FinishedJob>& finished) {
  const int n = static_cast<int>(requests_.size());
  int32_t* kv = kv_milli_.data();
  const int32_t* requests = requests_.data();
  for (int r = 0; r < n; ++r) kv[r] += requests[r] * growth_milli_;
  ++step_;
  Bucket& bucket = wheel_[step_ % kWheelSize];
  later_.clear();
  while (bucket.head != kNone) {
    const Live live = pop(bucket);
    if (live.end_step != step_) {
      later_.push_back(live);
      continue;
    }
    finished.push_back({live.joined_ticks, live.output_tokens, live.ttft_met});
    remove(live, live.release_kv_milli);
  }
  for (const Live& live : later_) push(bucket, live);
}

int64_t DecodeUnit::kv_milli_total() const {
  int64_t total = 0;
  for (const int32_t kv : kv_milli_) total += kv;
  return total;
}

int64_t DecodeUnit::kv_milli_owned() const {
  int64_t total = 0;
  for (const Bucket& bucket : wheel_) {
    int used = bucket.used;
    for (uint32_t c = bucket.head; c != kNone; c = chunks_[c].next, used = kChunkSize) {
      for (int i = 0; i < used; ++i) total += held_kv_milli(chunks_[c].live[i]);
    }
  }
  return total;
}

void DecodeUnit::lose_all(std::vector<DecodeJob>& lost) {
  for (Bucket& bucket : wheel_) {
    while (bucket.head != kNone) {
      const Live live = pop(bucket);
      lost.push_back(current_state(live));
      remove(live, held_kv_milli(live));
    }
  }
  for (const Joining& joining : joining_) lost.push_back(joining.job);
  joining_.clear();
}

}  // namespace fathom::sim
