// A rank's threads. Ops are cut into tiles; a team runs the tiles of one dependency level and returns when
// all are done. Each thread has a run of neighbouring tiles, which it takes one at a time, then what is left
// of the others': memory is read in streams, and a thread that the kernel descheduled delays only its tile.
// Waiting spins briefly, then parks: ranks may far outnumber cores.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace fathom {

struct ThreadTeamOptions {
  int num_threads = 1;         // the caller counts as one; 1 means everything runs inline
  int spin_iterations = 2000;  // pause instructions before parking; 0 parks at once (ranks > cores)
  std::vector<int> cpus;  // pin thread i to cpus[i]; empty: no pinning. cpus[0] is not applied to the caller
};

// One owner calls run() at a time; tile functions may run on any of the team's threads.
class ThreadTeam {
 public:
  // The one exception that leaves our code: std::system_error when the system refuses a thread; those started
  // before it have ended by then. A command turns it into its error line.
  explicit ThreadTeam(const ThreadTeamOptions& options);
  explicit ThreadTeam(int num_threads) : ThreadTeam(ThreadTeamOptions{.num_threads = num_threads}) {}
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(tile, thread) once for each tile in [0, num_tiles), in unspecified order and on unspecified
  // threads, and returns when all have returned. `thread` in [0, num_threads) names the calling thread, for
  // scratch memory. Writes made by tiles are visible to the caller afterwards.
  template <typename Fn>
  void run(int64_t num_tiles, Fn&& fn) {
    if (num_tiles <= 0) return;
    if (workers_.empty() || num_tiles == 1) {
      for (int64_t tile = 0; tile < num_tiles; ++tile) fn(tile, 0);
      return;
    }
    using Plain = std::remove_reference_t<Fn>;
    run_tiles(
        num_tiles,
        [](void* context, int64_t tile, int thread) { (*static_cast<Plain*>(context))(tile, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using TileFn = void (*)(void* context, int64_t tile, int thread);
  void end_workers();
  void run_tiles(int64_t num_tiles, TileFn fn, void* context);
  void worker_main(int thread);
  void take_tiles(uint64_t generation, int thread);
  void take_run(uint64_t generation, size_t run, int thread);
  // Of the tiles of run 0, 1, …; that of run num_threads() is num_tiles.
  uint64_t run_begin(int64_t num_tiles, size_t run) const {
    return static_cast<uint64_t>(num_tiles) * run / runs_.size();
  }

  const int spin_iterations_;
  std::vector<std::thread> workers_;

  // The job in flight. A worker may look at these fields after its job has ended, so they are atomic, and it
  // owns a tile only once it has moved its run's ticket on from the very value it read (see take_run).
  std::atomic<TileFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> num_tiles_{0};
  struct alignas(64) Run {
    std::atomic<uint64_t> ticket{0};  // generation << 32 | next tile, or kClosed
  };
  std::vector<Run> runs_;  // [threads]
  alignas(64) std::atomic<int64_t> tiles_done_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};
  std::atomic<int> parked_workers_{0};
  std::atomic<bool> caller_parked_{false};
  std::atomic<bool> stop_{false};
  std::mutex mu_;
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
};

}  // namespace fathom
