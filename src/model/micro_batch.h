// One of the parts of a step that a rank's forward pass takes turns with: its tokens, buffers and exchange in
// flight.
#pragma once

#include <vector>

#include "ep/exchange.h"
#include "model/activations.h"
#include "model/batch.h"
#include "model/token_batch.h"

namespace fathom {

struct MicroBatch {
  MicroBatch(const ModelConfig& config, const ActFormats& formats, const ForwardMaxima& maxima)
      : a(config, formats, maxima), batch(maxima.tokens) {}

  // Takes up `share`, a part of the rank's step, and forgets the last step.
  void start();
  int64_t num_rows() const { return batch.num_rows(); }

  RankBatch share;
  std::vector<int64_t> logit_index;  // of share's chunks that want logits: which row of the rank's logits
  ForwardActivations a;
  TokenBatch batch;

  // The exchange of the layer it is in.
  ExpertExchange::Ticket ticket;
  bool dispatched = false;  // sent, its combine not yet
  bool combining = false;   // results are on their way
  int combine_layer = 0;
};

// The rank's whole step as one share.
void take_whole(const RankBatch& step, MicroBatch& whole);
// Cuts a prefill step where both parts attend to equally much; `leading` gets the earlier tokens, a chunk may
// be cut.
void cut_prefill(const RankBatch& step, MicroBatch& leading, MicroBatch& other);
// Deals a decode step's sequences out, equal in number and level in KV tokens.
void cut_decode(const RankBatch& step, MicroBatch& first, MicroBatch& second);

}  // namespace fathom
