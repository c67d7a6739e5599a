// The cuts of a step into micro-batches by equal attention load.
#include "model/micro_batch.h"

#include "ep/overlap_split.h"

namespace fathom {
namespace {

void clear(MicroBatch& part) {
  part.share.chunks.clear();
  part.logit_index.clear();
}

void add(MicroBatch& part, const SequenceChunk& chunk, int64_t& next_logit) {
  part.share.chunks.push_back(chunk);
  if (chunk.want_logits) part.logit_index.push_back(next_logit++);
}

}  // namespace

void MicroBatch::start() {
  batch.assign(share);
  dispatched = combining = false;
}

void take_whole(const RankBatch& step, MicroBatch& whole) {
  clear(whole);
  int64_t next_logit = 0;
  for (const SequenceChunk& chunk : step.chunks) add(whole, chunk, next_logit);
}

void cut_prefill(const RankBatch& step, MicroBatch& leading, MicroBatch& other) {
  clear(leading);
  clear(other);
  std::vector<PrefillSlice> slices;
  for (const SequenceChunk& chunk : step.chunks) {
    slices.push_back({.new_tokens = static_cast<int64_t>(chunk.tokens.size()), .cached_tokens = chunk.start});
  }
  const PrefillSplit split = split_prefill(slices);
  int64_t next_logit = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(step.chunks.size()); ++i) {
    const SequenceChunk& chunk = step.chunks[i];
    const auto size = static_cast<int64_t>(chunk.tokens.size());
    const int64_t first = i < split.slice ? size : i == split.slice ? split.tokens : 0;
    if (first == size || first == 0) {
      add(first == size ? leading : other, chunk, next_logit);
      continue;
    }
    SequenceChunk head = chunk, tail = chunk;
    head.tokens = chunk.tokens.first(first);
    head.want_logits = false;
    tail.tokens = chunk.tokens.subspan(first);
    tail.start = chunk.start + static_cast<int32_t>(first);
    add(leading, head, next_logit);
    add(other, tail, next_logit);
  }
}

void cut_decode(const RankBatch& step, MicroBatch& first, MicroBatch& second) {
  clear(first);
  clear(second);
  std::vector<int64_t> kv_tokens;
  for (const SequenceChunk& chunk : step.chunks) {
    kv_tokens.push_back(chunk.start + static_cast<int64_t>(chunk.tokens.size()));
  }
  const std::vector<uint8_t> part = split_decode(kv_tokens);
  int64_t next_logit = 0;
  for (size_t i = 0; i < step.chunks.size(); ++i)
    add(part[i] == 0 ? first : second, step.chunks[i], next_logit);
}

}  // namespace fathom
