// Names of channels, and sets of ranks.
#include "transport/endpoint.h"

#include "base/check.h"

namespace fathom {

std::string_view channel_name(Channel channel) {
  return channel == Channel::kDispatch ? "dispatch" : "combine";
}

RankMask RankMask::all(int num_ranks) {
  CHECK(num_ranks >= 0 && num_ranks <= kMaxRanks);
  RankMask mask;
  for (int rank = 0; rank < num_ranks; ++rank) mask.words_[rank / 64] |= uint64_t{1} << (rank % 64);
  return mask;
}

int RankMask::count() const {
  int count = 0;
  for (uint64_t word : words_) count += std::popcount(word);
  return count;
}

}  // namespace fathom
