// Runs cells of the peer benchmark on Fathom: one model, prefill or decode steps through the engines that
// serve, greedy choice left out. Prints one JSON line for each cell.
//
//   peer_cell FOLDER WEIGHTS CELL... [--threads N]    CELL: prefill:TOKENS or decode:BATCH@CONTEXT
//   peer_cell FOLDER WEIGHTS --logits N               logits after N fixed tokens, for the cross-check
//   peer_cell --peaks [--threads N]                   what the machine can do
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "engine/arbiter.h"
#include "engine/decode_engine.h"
#include "engine/memory_estimate.h"
#include "engine/model_parts.h"
#include "engine/prefill_engine.h"
#include "kernels/peaks.h"
#include "model/forward.h"
#include "model/weights.h"

namespace fathom {
namespace {

constexpr double kCellSeconds = 2.5;  // of decode steps
constexpr double kPrefillSeconds = 1.5;
constexpr int kStepsMin = 3, kStepsMax = 48, kPrefillRunsMin = 2, kPrefillRunsMax = 8;
constexpr double kWatchSeconds = 0.2;  // between two looks at what the machine can do
constexpr int32_t kWarmUpTokens = 512;
constexpr int kTokenFirst = 256, kTokensReserved = 512;  // ids are drawn from [256, vocabulary - 256)
constexpr KvAccount kAccount{1};

// Processor time of the process, which other processes do not stretch; with one thread a measure of the work.
class ProcessorClock final : public Clock {
 public:
  TimePoint now() const override {
    return TimePoint(from_seconds(static_cast<double>(std::clock()) / CLOCKS_PER_SEC));
  }
  int64_t unix_seconds() const override { return 0; }
};

bool processor_time = false;  // --processor-time

const Clock& bench_clock() {
  static const SystemClock system;
  static const ProcessorClock processor;
  return processor_time ? static_cast<const Clock&>(processor) : system;
}
double seconds() { return to_seconds(bench_clock().now().time_since_epoch()); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// A forward group that keeps what its steps report.
class MeasuredExecutor final : public Executor {
 public:
  explicit MeasuredExecutor(std::unique_ptr<ForwardGroup> group) : group_(std::move(group)) {}

  int num_ranks() const override { return group_->num_ranks(); }
  void request_stop() override { group_->request_stop(); }
  Status step(std::span<const RankBatch> ranks, MatrixView<const float>* logits) override {
    const double begin = seconds();
    RETURN_IF_ERROR(group_->step(ranks, logits));
    forward_seconds += seconds() - begin;
    const StepStats& stats = group_->last_stats();
    for (int i = 0; i < kNumStages; ++i) stage_seconds[i] += to_seconds(stats.stage_time[i]);
    for (const int64_t tokens : stats.expert_tokens) distinct_experts += tokens > 0 ? 1 : 0;
    return {};
  }
  void reset() {
    std::fill(std::begin(stage_seconds), std::end(stage_seconds), 0.0);
    forward_seconds = 0;
    distinct_experts = 0;
  }

  double stage_seconds[kNumStages] = {};
  double forward_seconds = 0;
  int64_t distinct_experts = 0;  // summed over layers and steps

 private:
  const std::unique_ptr<ForwardGroup> group_;
};

// What the machine can do in the seconds of a cell: on a shared host that changes from second to second, so a
// cell's share of its bound divides by figures from between its own steps.
class MachineWatch {
 public:
  explicit MachineWatch(int threads) : team_(threads), meter_(active_isa(), team_, seconds) {}

  void reset() {
    samples_.clear();
    look();
  }
  // Between two timed spans.
  void look_at_times() {
    if (seconds() - last_ > kWatchSeconds) look();
  }
  MachinePeaks median_peaks() const {
    const auto at = [&](double MachinePeaks::* figure) {
      std::vector<double> values;
      for (const MachinePeaks& sample : samples_) values.push_back(sample.*figure);
      return median(std::move(values));
    };
    return {at(&MachinePeaks::read_bytes_per_s), at(&MachinePeaks::fma_flops), at(&MachinePeaks::bf16_flops),
            at(&MachinePeaks::int8_ops)};
  }

 private:
  void look() {
    samples_.push_back(meter_.sample());
    last_ = seconds();
  }

  ThreadTeam team_;
  PeakMeter meter_;
  std::vector<MachinePeaks> samples_;
  double last_ = 0;
};

// Resident memory less clean file pages; at the end nothing has been given back yet.
double resident_anonymous_bytes() {
  std::ifstream file("/proc/self/status");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stod(line.substr(8)) * 1024;
  }
  return 0;
}

struct Cell {
  std::string name;
  Phase phase = Phase::kPrefill;
  int32_t tokens = 0;  // prefill
  int32_t batch = 1;
  int32_t context = 0;
};

std::optional<Cell> parse_cell(const std::string& text) {
  Cell cell{.name = text};
  if (std::sscanf(text.c_str(), "prefill:%d", &cell.tokens) == 1 && cell.tokens > 0) return cell;
  cell.phase = Phase::kDecode;
  if (std::sscanf(text.c_str(), "decode:%d@%d", &cell.batch, &cell.context) == 2 && cell.batch > 0 &&
      cell.context > 0) {
    return cell;
  }
  return std::nullopt;
}

struct Figures {
  double tokens_per_s = 0;
  int64_t steps = 0;  // of the model
  int64_t runs = 0;   // timed spans
};

// One model's engines with memory for the cells that come.
class Bench {
 public:
  Bench(const Model& model, int threads, int32_t max_batch, int64_t max_context)
      : vocab_(static_cast<int32_t>(model.config().vocab_size)),
        storage_(kv_layout_of(model), max_batch * blocks_for_tokens(max_context)),
        cache_(storage_.num_blocks(), 2, model.weights().fingerprint, storage_.layout().to_string()) {
    ForwardOptions options{
        .phase = Phase::kPrefill,
        .threads = threads,
        .max_tokens_per_rank = serving_.prefill_tokens_per_rank(),
        .max_logit_rows = max_batch,
        .max_context = max_context,
        .expanded_bytes = expanded_bytes(serving_.kv_memory_bytes, model.weights().bytes.total()),
        .clock = &bench_clock()};
    prefill_executor_.emplace(ForwardGroup::create(model, storage_, options).value());
    options.phase = Phase::kDecode;
    options.max_tokens_per_rank = max_batch;
    decode_executor_.emplace(ForwardGroup::create(model, storage_, options).value());
    const auto only_rank = [](std::span<const RankLoad>, const RankLoad&) { return 0; };
    const PrefillCost cost = rank_costs_of(model.config(), options.deterministic).prefill;
    prefill_.emplace(*prefill_executor_, cache_, static_cast<int32_t>(kAccount), cost);
    decode_.emplace(*decode_executor_, cache_, static_cast<int32_t>(kAccount), only_rank);
  }

  MeasuredExecutor& executor(Phase phase) {
    return phase == Phase::kPrefill ? *prefill_executor_ : *decode_executor_;
  }

  Figures prefill(int32_t tokens, MachineWatch& watch) {
    // Warm-up: first touches, and what steps cost, from which the server's rule takes their length.
    for (int run = 0; run < 2; ++run) prefill_once(make_sequence(std::min(tokens, kWarmUpTokens)), &watch);
    prefill_executor_->reset();
    watch.reset();
    Figures figures;
    std::vector<double> times;
    for (double sum = 0; figures.runs < kPrefillRunsMin || sum < kPrefillSeconds; sum += times.back()) {
      if (figures.runs == kPrefillRunsMax) break;
      const PrefillRun run = prefill_once(make_sequence(tokens), &watch);
      times.push_back(run.seconds);
      figures.steps += run.steps;
      ++figures.runs;
    }
    figures.tokens_per_s = tokens / median(times);
    return figures;
  }

  Figures decode(int32_t batch, int32_t context, MachineWatch& watch) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<StepShare> shares;
    for (int32_t i = 0; i < batch; ++i) {
      sequences.push_back(make_sequence(context + 1));
      CHECK(cache_.reserve(blocks_for_tokens(context), kAccount, sequences.back()->blocks));
      fill(sequences.back()->blocks);
      sequences.back()->num_stored = context;
      decode_->reserve(*sequences.back(), 0);
      cache_.release(kAccount, sequences.back()->blocks);
      decode_->start(*sequences.back());
      shares.push_back({.sequence = sequences.back().get(), .num_tokens = 1});
    }
    Figures figures;
    std::vector<double> times;
    for (int step = 0;; ++step) {  // the first warms up
      if (step > 0 && step % kStepsMax == 0) {
        for (auto& sequence : sequences) rewind(*sequence, context);
      }
      if (step == 1) {
        decode_executor_->reset();
        watch.reset();
      }
      const double begin = seconds();
      CHECK(decode_->run(shares).ok());
      for (auto& sequence : sequences) sequence->tokens.push_back(random_token());
      if (step > 0) times.push_back(seconds() - begin);
      watch.look_at_times();
      double sum = 0;
      for (const double t : times) sum += t;
      if (step >= kStepsMin && sum > kCellSeconds) break;
    }
    for (auto& sequence : sequences) decode_->release(*sequence);
    cache_.flush();
    figures.steps = figures.runs = static_cast<int64_t>(times.size());
    figures.tokens_per_s = batch / median(times);
    return figures;
  }

  // Logits after the last of `tokens`, through prefill.
  std::vector<float> logits(std::vector<int32_t> tokens) {
    auto sequence = make_sequence(std::move(tokens));
    std::vector<float> last;
    prefill_once(std::move(sequence), nullptr, &last);
    return last;
  }
  int32_t vocab() const { return vocab_; }
  int64_t kv_bytes() const { return storage_.num_blocks() * storage_.block_bytes(); }

 private:
  int32_t random_token() {
    return kTokenFirst +
           static_cast<int32_t>(rng_.next_below(static_cast<uint64_t>(vocab_ - kTokensReserved)));
  }
  std::unique_ptr<Sequence> make_sequence(int32_t num_tokens) {
    std::vector<int32_t> tokens(static_cast<size_t>(num_tokens));
    for (int32_t& token : tokens) token = random_token();
    return make_sequence(std::move(tokens));
  }
  std::unique_ptr<Sequence> make_sequence(std::vector<int32_t> tokens) {
    GenerationRequest request{.prompt = std::move(tokens), .max_new_tokens = kStepsMax + 2};
    request.sampling.temperature = 0;
    ++next_id_;
    return std::make_unique<Sequence>(RequestId{next_id_}, std::move(request), nullptr,
                                      cache_.key_chain(std::to_string(next_id_)));
  }

  struct PrefillRun {
    int64_t steps = 0;
    double seconds = 0;  // without looks at the machine between the steps
  };
  PrefillRun prefill_once(std::unique_ptr<Sequence> sequence, MachineWatch* watch,
                          std::vector<float>* logits = nullptr) {
    PrefillRun run;
    double begin = seconds();
    prefill_->start(*sequence);
    while (sequence->num_stored < sequence->num_tokens()) {
      const int32_t left = sequence->num_tokens() - sequence->num_stored;
      const int32_t most = choose_chunk_tokens(serving_, costs_, /*decoding=*/false, 1);
      StepShare share{.sequence = sequence.get(), .num_tokens = std::min(left, most)};
      const double step_begin = seconds();
      CHECK(prefill_->run({&share, 1}).ok());
      costs_.observe_prefill(share.num_tokens, seconds() - step_begin);
      ++run.steps;
      if (logits != nullptr) logits->assign(share.logits.begin(), share.logits.end());
      run.seconds += seconds() - begin;
      if (watch != nullptr) watch->look_at_times();
      begin = seconds();
    }
    prefill_->release(*sequence);
    cache_.flush();
    run.seconds += seconds() - begin;
    return run;
  }

  // Back to where its decoding began, with the memory it has.
  void rewind(Sequence& sequence, int32_t context) {
    CHECK_MSG(context % kBlockTokens + kStepsMax < kBlockTokens, "a whole block would have been published");
    sequence.tokens.resize(static_cast<size_t>(context) + 1);
    sequence.num_stored = context;
  }

  // Stored rows of plausible size: what they hold changes no time, but NaN might.
  void fill(const std::vector<BlockId>& blocks) {
    const KvLayout& layout = storage_.layout();
    if (row_.empty()) {
      row_.resize(static_cast<size_t>(layout.row_stride_bytes()) * kBlockTokens);
      std::vector<float> values(static_cast<size_t>(dtype_elements(row_.size(), layout.dtype)));
      for (float& value : values) value = static_cast<float>(rng_.next_double() * 2 - 1);
      from_f32_ref(values, layout.dtype, row_.data());
    }
    for (const BlockId block : blocks) {
      for (int32_t layer = 0; layer < layout.num_layers; ++layer)
        std::memcpy(storage_.row(block, layer, 0), row_.data(), row_.size());
    }
  }
  static int64_t dtype_elements(size_t bytes, DType dtype) {
    return static_cast<int64_t>(bytes) / dtype_bytes(dtype, 1);
  }
  static void from_f32_ref(const std::vector<float>& values, DType dtype, std::byte* out) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::kF32) {
        std::memcpy(out + 4 * i, &values[i], 4);
      } else {
        const Bf16 rounded = f32_to_bf16(values[i]);
        std::memcpy(out + 2 * i, &rounded, 2);
      }
    }
  }

  const int32_t vocab_;
  const EngineOptions serving_;  // as `fathom serve` runs by default
  StepCosts costs_;
  KvStorage storage_;
  KvCache cache_;
  std::optional<MeasuredExecutor> prefill_executor_, decode_executor_;
  std::optional<PrefillEngine> prefill_;
  std::optional<DecodeEngine> decode_;
  Rng rng_{7};
  uint64_t next_id_ = 1;
  std::vector<std::byte> row_;
};

void print_peaks_fields(const MachinePeaks& peaks) {
  fmt::print("\"read\":{:.4g},\"fma\":{:.4g},\"bf16\":{:.4g},\"int8\":{:.4g}", peaks.read_bytes_per_s,
             peaks.fma_flops, peaks.bf16_flops, peaks.int8_ops);
}

// Stage seconds per timed span: dense parts with the head, experts, attention, and what is around the model;
// then what the machine could do meanwhile.
void print_cell(const Cell& cell, const Figures& figures, const MeasuredExecutor& executor,
                const MachinePeaks& peaks) {
  const auto at = [&](Stage stage) {
    return executor.stage_seconds[static_cast<int>(stage)] / static_cast<double>(figures.runs);
  };
  const double core = at(Stage::kCore);
  const double dense = at(Stage::kEmbed) + at(Stage::kAttn0) + at(Stage::kAttn1) - core + at(Stage::kShared) +
                       at(Stage::kDense) + at(Stage::kHead);
  fmt::print("{{\"cell\":\"{}\",\"tokens_per_s\":{:.3f},\"steps\":{},\"distinct_experts\":{:.2f},", cell.name,
             figures.tokens_per_s, figures.steps,
             static_cast<double>(executor.distinct_experts) / static_cast<double>(figures.runs));
  fmt::print("\"model_s\":{:.6f},\"dense_s\":{:.6f},\"attention_s\":{:.6f},",
             executor.forward_seconds / static_cast<double>(figures.runs), dense, core);
  fmt::print("\"mlp_s\":{:.6f},\"exchange_s\":{:.6f},", at(Stage::kMlp),
             at(Stage::kDispatch) + at(Stage::kCombine));
  print_peaks_fields(peaks);
  fmt::print("}}\n");
  std::fflush(stdout);
}

int print_peaks(int threads) {
  ThreadTeam team(threads);
  fmt::print("{{\"isa\":\"{}\",\"threads\":{},", isa_name(active_isa()), threads);
  print_peaks_fields(measure_peaks(active_isa(), team, seconds));
  fmt::print("}}\n");
  return 0;
}

void print_logits(Bench& bench, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(kTokenFirst + i * 37 % (bench.vocab() - kTokensReserved));
  fmt::print("{{\"cell\":\"logits\",\"logits\":[");
  const char* separator = "";
  for (const float value : bench.logits(std::move(tokens))) {
    fmt::print("{}{:.6g}", separator, value);
    separator = ",";
  }
  fmt::print("]}}\n");
}

void measure_cells(Bench& bench, const std::vector<Cell>& cells, int threads) {
  MachineWatch watch(threads);
  for (const Cell& cell : cells) {
    const Figures figures = cell.phase == Phase::kPrefill ? bench.prefill(cell.tokens, watch)
                                                          : bench.decode(cell.batch, cell.context, watch);
    print_cell(cell, figures, bench.executor(cell.phase), watch.median_peaks());
  }
}

int fail(const std::string& message) {
  fmt::print(stderr, "peer_cell: {}\n", message);
  return 1;
}

int run(const std::vector<std::string>& args) {
  std::vector<std::string> words;
  int threads = 2, logits = 0;
  bool peaks = false;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--threads" && i + 1 < args.size()) {
      threads = std::max(1, std::atoi(args[++i].c_str()));
    } else if (args[i] == "--logits" && i + 1 < args.size()) {
      logits = std::max(1, std::atoi(args[++i].c_str()));
    } else if (args[i] == "--peaks") {
      peaks = true;
    } else if (args[i] == "--processor-time") {
      processor_time = true;
    } else {
      words.push_back(args[i]);
    }
  }
  if (peaks) return print_peaks(threads);
  if (words.size() < 2)
    return fail("usage: peer_cell FOLDER WEIGHTS CELL... [--threads N] [--logits N] [--processor-time]");
  std::vector<Cell> cells;
  int32_t max_batch = 1;
  int64_t max_context = 64;
  for (size_t i = 2; i < words.size(); ++i) {
    const auto cell = parse_cell(words[i]);
    if (!cell) return fail("no such cell: " + words[i]);
    cells.push_back(*cell);
    max_batch = std::max(max_batch, cell->batch);
    max_context = std::max<int64_t>({max_context, cell->tokens, cell->context + kStepsMax + 2});
  }
  max_context = std::max<int64_t>(max_context, logits);

  const auto source = open_model_folder(words[0]);
  if (!source.ok()) return fail(source.status().message());
  const auto format = parse_weights_option(words[1]);
  if (!format.ok()) return fail(format.status().message());
  ThreadTeam team(threads);
  const double begin = seconds();
  const auto model = Model::load(**source, {.weights = *format}, team);
  if (!model.ok()) return fail(model.status().message());
  Bench bench(**model, threads, max_batch, max_context);
  fmt::print(
      "{{\"cell\":\"load\",\"seconds\":{:.3f},\"weight_bytes\":{},\"mapped_bytes\":{},\"isa\":\"{}\"}}\n",
      seconds() - begin, (*model)->weights().bytes.total(), (*model)->weights().mapped_bytes,
      isa_name(active_isa()));
  if (logits > 0) print_logits(bench, logits);
  measure_cells(bench, cells, threads);
  fmt::print("{{\"cell\":\"memory\",\"resident_bytes\":{:.0f},\"kv_bytes\":{}}}\n",
             resident_anonymous_bytes(), bench.kv_bytes());
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::run({argv + 1, argv + argc}); }
