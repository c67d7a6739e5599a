// A step's tokens as the layers see them: rows of all sequences one after the other, and where their KV is.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kv/storage.h"
#include "model/batch.h"

namespace fathom {

// Rows [first_row, first_row + num_rows) are tokens start, start + 1, … of one sequence.
struct TokenSequence {
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t start = 0;
  int64_t first_block = 0;  // of TokenBatch::block_rows
  std::span<const BlockId> blocks;
  uint64_t pass = 0;  // as SequenceChunk
  bool ends_prompt = false;

  int64_t context() const { return start + num_rows; }
};

class TokenBatch {
 public:
  explicit TokenBatch(int64_t max_tokens);

  // Takes up a rank's share of a step. The spans of `batch` stay valid until the step is over.
  void assign(const RankBatch& batch);
  // Points the sequences' blocks at one layer of the storage.
  void enter_layer(KvStorage& storage, int32_t layer);

  int64_t num_rows() const { return static_cast<int64_t>(tokens_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<TokenSequence>& sequences() const { return sequences_; }
  const TokenSequence& sequence_of(int64_t row) const { return sequences_[row_sequences_[row]]; }
  int64_t position(int64_t row) const { return sequence_of(row).start + row - sequence_of(row).first_row; }
  const std::vector<int64_t>& logit_rows() const { return logit_rows_; }

  // Of the layer entered last.
  LatentBlocks latent_blocks(const TokenSequence& sequence) const;
  std::byte* kv_row(int64_t row) const;
  DType kv_dtype() const { return storage_->layout().dtype; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int32_t> row_sequences_;  // [rows] index into sequences_
  std::vector<TokenSequence> sequences_;
  std::vector<int64_t> logit_rows_;
  std::vector<const void*> block_rows_;  // [all sequences' blocks] row 0 of the layer
  KvStorage* storage_ = nullptr;
  int32_t layer_ = 0;
};

}  // namespace fathom
