// Workers that take numbered tasks from a counter each, then from the others', spin for a while between jobs,
// then park.
#include "base/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/check.h"
#include "base/cpu.h"

namespace fathom {
namespace {

constexpr uint64_t kTileMask = 0xffffffff;
constexpr uint64_t kClosed = kTileMask;

void pin_to(std::thread& thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  // Best effort: a container may forbid it, and unpinned threads are merely slower.
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

ThreadTeam::ThreadTeam(const ThreadTeamOptions& options)
    : spin_iterations_(options.spin_iterations),
      runs_(static_cast<size_t>(std::max(1, options.num_threads))) {
  CHECK(options.num_threads >= 1);
  for (Run& run : runs_) run.ticket.store(kClosed, std::memory_order_relaxed);
  try {
    for (int thread = 1; thread < options.num_threads; ++thread) {
      workers_.emplace_back([this, thread] { worker_main(thread); });
      if (thread < static_cast<int>(options.cpus.size())) pin_to(workers_.back(), options.cpus[thread]);
    }
  } catch (...) {
    end_workers();  // the destructor does not run
    throw;
  }
}

ThreadTeam::~ThreadTeam() { end_workers(); }

void ThreadTeam::end_workers() {
  {
    std::lock_guard lock(mu_);
    stop_.store(true);
  }
  work_ready_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run_tiles(int64_t num_tiles, TileFn fn, void* context) {
  CHECK(num_tiles < static_cast<int64_t>(kTileMask));
  const uint64_t generation = (generation_.load(std::memory_order_relaxed) + 1) & kTileMask;
  fn_.store(fn, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  num_tiles_.store(num_tiles, std::memory_order_release);
  tiles_done_.store(0, std::memory_order_relaxed);
  for (size_t run = 0; run < runs_.size(); ++run) {
    runs_[run].ticket.store(generation << 32 | run_begin(num_tiles, run), std::memory_order_release);
  }
  generation_.store(generation, std::memory_order_seq_cst);
  if (parked_workers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(mu_);
    work_ready_.notify_all();
  }

  take_tiles(generation, 0);

  for (int spin = 0; spin < spin_iterations_; ++spin) {
    if (tiles_done_.load(std::memory_order_acquire) == num_tiles) break;
    pause_cpu();
  }
  if (tiles_done_.load(std::memory_order_acquire) != num_tiles) {
    std::unique_lock lock(mu_);
    caller_parked_.store(true, std::memory_order_seq_cst);
    work_done_.wait(lock, [&] { return tiles_done_.load(std::memory_order_seq_cst) == num_tiles; });
    caller_parked_.store(false, std::memory_order_relaxed);
  }
  // Closed before the next job's fields are written: a worker that read the old ticket can no longer win a
  // tile.
  for (Run& run : runs_) run.ticket.store(generation << 32 | kClosed, std::memory_order_release);
}

void ThreadTeam::take_tiles(uint64_t generation, int thread) {
  for (size_t i = 0; i < runs_.size(); ++i)
    take_run(generation, (static_cast<size_t>(thread) + i) % runs_.size(), thread);
}

void ThreadTeam::take_run(uint64_t generation, size_t run, int thread) {
  std::atomic<uint64_t>& ticket_of_run = runs_[run].ticket;
  uint64_t ticket = ticket_of_run.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t tile = ticket & kTileMask;
    if (ticket >> 32 != generation || tile == kClosed) return;
    const TileFn fn = fn_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const int64_t num_tiles = num_tiles_.load(std::memory_order_acquire);
    if (tile >= run_begin(num_tiles, run + 1)) return;
    if (!ticket_of_run.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                             std::memory_order_acquire)) {
      continue;
    }
    fn(context, static_cast<int64_t>(tile), thread);
    // Read before the increment: once the last tile counts as done, the caller may start another job.
    if (tiles_done_.fetch_add(1, std::memory_order_seq_cst) + 1 == num_tiles &&
        caller_parked_.load(std::memory_order_seq_cst)) {
      std::lock_guard lock(mu_);
      work_done_.notify_all();
    }
    ticket = ticket_of_run.load(std::memory_order_acquire);
  }
}

void ThreadTeam::worker_main(int thread) {
  uint64_t seen = 0;
  for (;;) {
    uint64_t generation = generation_.load(std::memory_order_acquire);
    for (int spin = 0;
         generation == seen && spin < spin_iterations_ && !stop_.load(std::memory_order_relaxed); ++spin) {
      pause_cpu();
      generation = generation_.load(std::memory_order_acquire);
    }
    if (generation == seen) {
      std::unique_lock lock(mu_);
      parked_workers_.fetch_add(1, std::memory_order_seq_cst);
      work_ready_.wait(lock, [&] {
        generation = generation_.load(std::memory_order_seq_cst);
        return generation != seen || stop_.load();
      });
      parked_workers_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (stop_.load()) return;
    seen = generation;
    take_tiles(generation, thread);
  }
}

}  // namespace fathom
