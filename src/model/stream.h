// A rank's ops in order. On CPUs an op is cut into tiles for the rank's thread team and has finished when the
// call returns: one barrier per dependency level, none inside. Results never depend on the cut or on the
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_team.h"
#include "kernels/formats.h"
#include "tensor/arena.h"

namespace fathom {

class Stream {
 public:
  // scratch_bytes: what the largest tile needs, per thread.
  Stream(const ThreadTeamOptions& team, int64_t scratch_bytes) : team_(team) {
    for (int thread = 0; thread < team_.num_threads(); ++thread) scratch_.emplace_back(scratch_bytes);
  }

  int num_threads() const { return team_.num_threads(); }

  // fn(tile, scratch) for each tile in [0, num_tiles); scratch is the calling thread's, aligned to 64. A
  // thread's tiles mostly follow one another, so that what is fetched beyond the end of one is what the next
  // begins with.
  template <typename Fn>
  void for_tiles(int64_t num_tiles, Fn&& fn) {
    team_.run(num_tiles, [&](int64_t tile, int thread) { fn(tile, scratch_[thread].data()); });
  }

  // fn(begin, end, scratch) over ranges that together are [0, num_rows), for ops of a row each. Few rows (up
  // to inline_max) stay on the calling thread: waking others would cost more than the rows.
  template <typename Fn>
  void for_rows(int64_t num_rows, Fn&& fn, int64_t inline_max = kRowsInline) {
    if (num_rows <= 0) return;
    const int64_t per_tile = num_rows <= inline_max ? num_rows : ceil_div(num_rows, 4 * num_threads());
    for_tiles(ceil_div(num_rows, per_tile), [&](int64_t tile, std::byte* scratch) {
      const int64_t begin = tile * per_tile;
      fn(begin, begin + per_tile < num_rows ? begin + per_tile : num_rows, scratch);
    });
  }

 private:
  static constexpr int64_t kRowsInline = 2;

  ThreadTeam team_;
  std::vector<AlignedBuffer> scratch_;
};

}  // namespace fathom
