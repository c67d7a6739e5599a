// A rank's chunks laid out as rows, with the KV blocks of each.
#include "model/token_batch.h"

namespace fathom {

TokenBatch::TokenBatch(int64_t max_tokens) {
  tokens_.reserve(max_tokens);
  row_sequences_.reserve(max_tokens);
  sequences_.reserve(max_tokens);
  logit_rows_.reserve(max_tokens);
}

void TokenBatch::assign(const RankBatch& batch) {
  tokens_.clear();
  row_sequences_.clear();
  sequences_.clear();
  logit_rows_.clear();
  int64_t num_blocks = 0;
  for (const SequenceChunk& chunk : batch.chunks) {
    const TokenSequence sequence{.first_row = num_rows(),
                                 .num_rows = static_cast<int64_t>(chunk.tokens.size()),
                                 .start = chunk.start,
                                 .first_block = num_blocks,
                                 .blocks = chunk.blocks,
                                 .pass = chunk.pass,
                                 .ends_prompt = chunk.want_logits};
    tokens_.insert(tokens_.end(), chunk.tokens.begin(), chunk.tokens.end());
    row_sequences_.insert(row_sequences_.end(), chunk.tokens.size(), static_cast<int32_t>(sequences_.size()));
    if (chunk.want_logits) logit_rows_.push_back(num_rows() - 1);
    num_blocks += blocks_for_tokens(sequence.context());
    sequences_.push_back(sequence);
  }
  block_rows_.resize(num_blocks);
}

void TokenBatch::enter_layer(KvStorage& storage, int32_t layer) {
  storage_ = &storage;
  layer_ = layer;
  for (const TokenSequence& sequence : sequences_) {
    for (int32_t i = 0; i < blocks_for_tokens(sequence.context()); ++i) {
      block_rows_[sequence.first_block + i] = storage.row(sequence.blocks[i], layer, 0);
    }
  }
}

LatentBlocks TokenBatch::latent_blocks(const TokenSequence& sequence) const {
  const KvLayout& layout = storage_->layout();
  return {.block = block_rows_.data() + sequence.first_block,
          .dtype = layout.dtype,
          .row_stride = storage_->row_stride_bytes() / dtype_bytes(layout.dtype),
          .latent_dim = layout.latent_dim,
          .rope_dim = layout.rope_dim};
}

std::byte* TokenBatch::kv_row(int64_t row) const {
  const int64_t token = position(row);
  const BlockId block = sequence_of(row).blocks[token / kBlockTokens];
  return storage_->row(block, layer_, static_cast<int32_t>(token % kBlockTokens));
}

}  // namespace fathom
