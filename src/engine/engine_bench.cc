// What the engine itself adds to a decode step: everything but the forward pass, greedy, vocabulary of 4,096.
#include <benchmark/benchmark.h>

#include "engine/core.h"

namespace fathom {
namespace {

class NullExecutor final : public Executor {
 public:
  NullExecutor() : logits_(4096 * 512) {}
  int num_ranks() const override { return 1; }
  void request_stop() override {}
  Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) override {
    *logits = {logits_.data(), ranks[0].num_logit_rows(), 4096};
    return {};
  }

 private:
  std::vector<float> logits_;
};

class SilentListener final : public GenerationListener {
 public:
  void on_tokens(std::span<const TokenEvent>) override {}
  void on_finished(const FinishInfo&) override {}
};

void bench_decode_step(benchmark::State& state) {
  const auto num_sequences = static_cast<int32_t>(state.range(0));
  constexpr KvLayout kLayout{.num_layers = 1, .latent_dim = 1, .rope_dim = 1};
  constexpr int32_t kContext = 1 << 16;
  SystemClock clock;
  const EngineOptions options{.max_context = kContext, .max_running = num_sequences};
  EngineParts parts;
  parts.storage = std::make_unique<KvStorage>(kLayout, (num_sequences + 1) * kContext / kBlockTokens);
  parts.prefill = std::make_unique<NullExecutor>();
  parts.decode = std::make_unique<NullExecutor>();
  parts.vocab_size = 4096;
  EngineCore core(options, std::move(parts), clock);
  for (int32_t i = 0; i < num_sequences; ++i) {
    GenerationRequest request{.prompt = std::vector<int32_t>(100, i), .max_new_tokens = kContext};
    request.sampling.temperature = 0;
    core.add(RequestId{static_cast<uint64_t>(i)}, std::move(request), std::make_shared<SilentListener>(),
             clock.now());
  }
  while (core.stats().num_decoding < num_sequences) core.run_once();
  for (auto _ : state) core.run_once();
  state.SetItemsProcessed(state.iterations() * num_sequences);
}
BENCHMARK(bench_decode_step)->Arg(1)->Arg(32)->Arg(256)->Iterations(2000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace fathom
