// What an engine needs of a forward pass: one phase's ranks, stepping together. The model's forward groups
// stand behind it; tests put a scripted language model there.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/rank_costs.h"
#include "ep/exchange.h"
#include "kv/storage.h"
#include "model/batch.h"
#include "tensor/view.h"

namespace fathom {

class Executor {
 public:
  virtual ~Executor() = default;

  virtual int num_ranks() const = 0;
  // Blocking, one caller at a time. `ranks`: one batch per rank, some may be empty. `logits`: one F32 row of
  // the vocabulary per chunk that wants them, rank-major, then in chunk order; valid until the next step.
  // kCancelled: request_stop() was heard; the step's KV rows may be partly written.
  virtual Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) = 0;
  // Makes the step in progress return kCancelled soon, or the next one when none is. Thread-safe.
  virtual void request_stop() = 0;
  // When the step in progress, or the last one, last got on. Thread-safe.
  virtual TimePoint last_progress() const { return {}; }
  // What the last step sent between ranks.
  virtual ExchangeStats last_exchange() const { return {}; }
  // The steps so far were the warm-up's: their tokens say nothing of what will be asked.
  virtual void warmed_up() {}
  // MoE layers whose expert copies were placed anew so far.
  virtual int64_t layers_placed() const { return 0; }
};

// What an engine is built on.
struct EngineParts {
  std::unique_ptr<KvStorage> storage;  // the memory both executors read and write
  std::unique_ptr<Executor> prefill;
  std::unique_ptr<Executor> decode;
  std::string fingerprint;  // of the model, its weight format, numerics and mode; part of every KV key
  int32_t vocab_size = 0;   // columns of the logits
  RankCosts costs;          // of a request on this model
};

}  // namespace fathom
