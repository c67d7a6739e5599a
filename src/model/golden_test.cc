// The whole forward pass against an independent implementation (tests/fixtures/README.md): hidden states
// after every layer, gate choices, logits, and 64 teacher-forced steps, for every kind of checkpoint and both
// attention forms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "model/rank_forward.h"
#include "model/testing.h"
#include "tensor/safetensors.h"
#include "transport/inproc.h"

namespace fathom {
namespace {

std::string fixture_path(const std::string& name) {
  return std::string(FATHOM_SOURCE_DIR) + "/tests/fixtures/" + name;
}

// Expected values of one checkpoint, by name.
class Expected {
 public:
  Expected(const std::string& folder, const std::string& file) {
    auto source = open_model_folder(folder).value();
    file_ = source->open(file).value();
    auto tensors = parse_safetensors(file, file_->bytes());
    for (TensorInfo& tensor : tensors.value()) tensors_.emplace(tensor.name, tensor);
  }
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  std::vector<float> floats(const std::string& name) const { return values<float>(name); }
  std::vector<int32_t> ints(const std::string& name) const { return values<int32_t>(name); }

 private:
  template <typename T>
  std::vector<T> values(const std::string& name) const {
    const TensorInfo& tensor = tensors_.at(name);
    CHECK(tensor.dtype == kDTypeOf<T>);
    std::vector<T> out(tensor.num_elements());
    std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
    return out;
  }
  std::shared_ptr<const ModelFile> file_;
  std::map<std::string, TensorInfo> tensors_;
};

// How far the arithmetic under test may be from the oracle's FP32.
struct Tolerance {
  double row;     // RMS of a row's difference / RMS of the row: hidden states and logits
  double margin;  // a logit margin beyond this share of the row's RMS is clear: both logits off by 4 typical
                  // errors
  double gate;    // gate margins beyond this must not change a choice; gate weights agree within it
  double steps;   // share of the steps with a clear logit margin that may differ, after a gate tie went the
                  // other way
};

// F32 arithmetic differs from the oracle in the order of sums only: some hundred roundings of 2^-24 a layer.
constexpr Tolerance kF32{.row = 1e-5, .margin = 1e-4, .gate = 2e-5, .steps = 0};
// BF16 rounds the input of every linear layer and the attention core to 8 bits (2^-9 each, about a dozen
// times a layer), which the oracle does not: about 0.5 % of a row after each layer, doubled for the spread of
// rows.
constexpr Tolerance kBf16{.row = 0.025, .margin = 0.15, .gate = 0.02, .steps = 0.1};
// FP8 activations as in the oracle, and the attention core in F32 as there: equal but for codes at a rounding
// edge, where one step of a code (1/8 of a value) changes a row by a few parts in a thousand.
constexpr Tolerance kFp8WideCore{.row = 0.01, .margin = 0.08, .gate = 0.01, .steps = 0.1};
// FP8 as served: the BF16 core shifts activations by 2^-9, and one code in twenty goes to its neighbour, 6 to
// 12 % away: 2 % of a row for each linear layer in turn.
constexpr Tolerance kFp8{.row = 0.15, .margin = 0.4, .gate = 0.1, .steps = 0.1};

// The same beside an oracle that rounds the latent before kv_b to FP8 too, which neither attention form here
// does: a second error of the size of kFp8's.
constexpr Tolerance kFp8OtherKvB{.row = 0.3, .margin = 0.4, .gate = 0.1, .steps = 0.1};

constexpr int64_t kRowsMin = 60;  // compared before a gate tie ends a sequence

enum class Arithmetic {
  kNative,    // as served
  kWide,      // the same weights widened to F32, everything in F32
  kWideCore,  // FP8 linear layers, attention core and KV in F32
};

struct GoldenCase {
  std::string folder;
  Arithmetic arithmetic;
  Tolerance tolerance;
  int steps_min;     // of 64 teacher-forced steps, how many have a clear logit margin at least
  int both_min = 0;  // how many have a clear gate margin over their whole prefix too
  std::string expected = "expected.safetensors";
};
std::ostream& operator<<(std::ostream& out, const GoldenCase& c) { return out << c.folder; }

std::unique_ptr<Model> load_fixture(const std::string& folder, std::optional<WeightFormat> weights) {
  ThreadTeam team(1);
  auto model = Model::load(*open_model_folder(fixture_path(folder)).value(), {.weights = weights}, team);
  CHECK_MSG(model.ok(), model.status().to_string());
  return std::move(model).value();
}

// `linear` with the attention core of `core`; both stay in use.
std::unique_ptr<Model> join_models(const Model& linear, const Model& core) {
  const ModelWeights& from = linear.weights();
  ModelWeights w;
  w.embed_dtype = from.embed_dtype;
  w.embed_tokens = from.embed_tokens;
  w.layers = from.layers;
  w.norm = from.norm;
  w.lm_head = from.lm_head;
  w.attention_act = from.attention_act;
  w.ffn_act = from.ffn_act;
  w.head_act = from.head_act;
  w.core_dtype = core.weights().core_dtype;
  for (size_t layer = 0; layer < w.layers.size(); ++layer) {
    const AttentionWeights& attention = core.weights().layers[layer].self_attn;
    w.layers[layer].self_attn.w_uk = attention.w_uk;
    w.layers[layer].self_attn.w_uk_t = attention.w_uk_t;
    w.layers[layer].self_attn.w_uv = attention.w_uv;
  }
  return std::make_unique<Model>(linear.config(), std::move(w));
}

// Gate choices of a run, by (layer, position).
using Choices = std::map<std::pair<int, int64_t>, std::vector<int32_t>>;

double rms(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum / static_cast<double>(n));
}

double row_error(const float* got, const float* want, int64_t n) {
  std::vector<float> difference(n);
  std::transform(got, got + n, want, difference.begin(), std::minus<>());
  return rms(difference.data(), n) / rms(want, n);
}

class Golden : public ::testing::TestWithParam<GoldenCase>, public ForwardObserver {
 protected:
  void SetUp() override {
    expected_ = std::make_unique<Expected>(fixture_path(GetParam().folder), GetParam().expected);
    load(GetParam().arithmetic);
  }

  void load(Arithmetic arithmetic) {
    const bool native = arithmetic == Arithmetic::kNative;
    model_ = load_fixture(GetParam().folder, native ? std::nullopt : std::optional(WeightFormat::kF32));
    if (arithmetic != Arithmetic::kWideCore) return;
    parts_[0] = std::move(model_);
    parts_[1] = load_fixture(GetParam().folder, std::nullopt);
    model_ = join_models(*parts_[1], *parts_[0]);
  }

  // A rank of its own for each form: an observer can be put there.
  void start(Phase phase) {
    options_ = {.phase = phase, .max_context = 256};
    storage_ = std::make_unique<KvStorage>(testing::kv_layout(*model_), 8);
    transport_ = InprocGroup::create({}).value();
    endpoint_ = transport_->endpoint(0);
    const ModelConfig& c = model_->config();
    const PlacementShape placement{.num_layers = static_cast<int>(c.num_moe_layers()),
                                   .num_experts = static_cast<int>(c.n_routed_experts)};
    rank_ = std::make_unique<RankForward>(RankSetup{.model = *model_,
                                                    .storage = *storage_,
                                                    .options = options_,
                                                    .placement_shape = placement,
                                                    .dispatch_format = model_->weights().ffn_act,
                                                    .threads = 1,
                                                    .max_context = 256,
                                                    .stop = stop_,
                                                    .last_progress = last_progress_},
                                          *endpoint_);
    rank_->set_observer(this);
    placement_ = PlacementTable(placement).snapshot();
    logits_.resize(c.vocab_size);
  }

  // Computes the next `count` tokens of the sequence; logits_ are those after the last of them.
  void advance(testing::TestSequence& sequence, int64_t count) {
    const RankBatch batch{{testing::next_chunk(sequence, count, true)}};
    const Status status =
        rank_->step(batch, placement_, false, {logits_.data(), 1, static_cast<int64_t>(logits_.size())});
    ASSERT_TRUE(status.ok()) << status.to_string();
    sequence.stored += static_cast<int32_t>(count);
  }

  void after_layer(int layer, ForwardActivations& a, const TokenBatch& batch) override {
    const bool is_moe = layer >= 0 && model_->config().is_moe_layer(layer);
    if (is_moe) note_choices(layer, a, batch);
    if (prefix_.empty()) return;
    const std::string name = layer < 0 ? prefix_ + "embed" : fmt::format("{}layer{}", prefix_, layer);
    if (is_moe) check_gate(name, a, batch);
    check_row(name, a.x.row(batch.num_rows() - 1), a.x.cols());
  }

  void note_choices(int layer, const ForwardActivations& a, const TokenBatch& batch) {
    const int64_t k = model_->config().num_experts_per_tok;
    for (int64_t row = 0; row < batch.num_rows(); ++row) {
      std::vector<int32_t> chosen(a.experts.begin() + row * k, a.experts.begin() + (row + 1) * k);
      std::sort(chosen.begin(), chosen.end());
      choices_[{layer, batch.position(row)}] = chosen;
    }
  }

  // One row against the kept position that the chunk ends at.
  void check_row(const std::string& name, const float* got, int64_t n) {
    if (diverged_) return;
    const std::vector<float> want = expected_->floats(name);
    const double error = row_error(got, want.data() + expected_row_ * n, n);
    EXPECT_LE(error, GetParam().tolerance.row) << name << ", kept row " << expected_row_;
    worst_error_ = std::max(worst_error_, error);
    ++rows_checked_;
  }

  void check_gate(const std::string& name, const ForwardActivations& a, const TokenBatch& batch) {
    const auto experts = expected_->ints(name + ".experts");
    const auto weights = expected_->floats(name + ".weights");
    const auto gate_margin = expected_->floats(name + ".gate_margin");
    const auto group_margin = expected_->floats(name + ".group_margin");
    const int64_t k = model_->config().num_experts_per_tok;
    for (int64_t row = 0; row < batch.num_rows() && !diverged_; ++row) {
      const int64_t position = batch.position(row);
      std::map<int32_t, float> chosen;
      for (int64_t i = row * k; i < (row + 1) * k; ++i) chosen[a.experts[i]] = a.gates[i];
      const double margin = std::min(gate_margin[position], group_margin[position]);
      int64_t i = position * k;
      for (auto [expert, weight] : chosen) {
        if (expert != experts[i]) {
          // A tie within the arithmetic: from here on both are right and different.
          EXPECT_LE(margin, GetParam().tolerance.gate) << name << ", position " << position;
          diverged_ = true;
          break;
        }
        const double scale = model_->config().routed_scaling_factor;
        EXPECT_NEAR(weight, weights[i], GetParam().tolerance.gate * scale)
            << name << ", position " << position;
        ++i;
      }
    }
  }

  // Every sequence in chunks that end at the kept positions.
  void check_sequences(Phase phase) {
    int64_t rows = 0;  // embedding, layers and logits at each kept position
    for (int n = 0; n < 3; ++n) {
      start(phase);
      const std::string seq = fmt::format("seq{}.", n);
      testing::TestSequence sequence = testing::test_sequence(expected_->ints(seq + "ids"), 0, 256);
      diverged_ = false;
      const auto kept = expected_->ints(seq + "rows");
      rows += static_cast<int64_t>(kept.size()) * (model_->config().num_hidden_layers + 2);
      for (size_t i = 0; i < kept.size(); ++i) {
        prefix_ = seq;
        expected_row_ = static_cast<int64_t>(i);
        advance(sequence, kept[i] + 1 - sequence.stored);
        check_row(seq + "logits", logits_.data(), static_cast<int64_t>(logits_.size()));
      }
    }
    prefix_.clear();
    const bool near = GetParam().tolerance.row <= kFp8WideCore.row;  // no gate tie may end a sequence early
    EXPECT_GE(rows_checked_, near ? rows : kRowsMin) << "of " << rows;
    RecordProperty("rows", static_cast<int>(rows_checked_));
    RecordProperty("largest_error", fmt::format("{:.2e}", worst_error_));
  }

  // Logits after each step of the oracle's own continuation.
  std::vector<std::vector<float>> run_steps(Phase phase) {
    start(phase);
    const auto steps = expected_->ints("steps.ids");
    std::vector<int32_t> tokens = expected_->ints("seq1.ids");
    const auto prompt = static_cast<int64_t>(tokens.size());
    tokens.insert(tokens.end(), steps.begin(), steps.end());
    testing::TestSequence sequence = testing::test_sequence(tokens, 0, 256);
    std::vector<std::vector<float>> logits;
    for (size_t i = 0; i < steps.size(); ++i) {
      advance(sequence, i == 0 ? prompt : 1);
      logits.push_back(logits_);
    }
    return logits;
  }

  // First position at which two runs' gates differ in some layer.
  static int64_t first_difference(const Choices& a, const Choices& b) {
    int64_t first = INT64_MAX;
    for (const auto& [where, chosen] : a) {
      if (b.at(where) != chosen) first = std::min(first, where.second);
    }
    return first;
  }

  // Where the logit margin and the gate margins of the whole prefix are clear, a step's argmax must be the
  // oracle's. Coarse arithmetic meets a gate tie early in 100 tokens, which leaves few such steps or none:
  // there a run in wide arithmetic tells where its choices part from the oracle's, and before that no clear
  // logit margin may come out otherwise either.
  void check_steps(Phase phase) {
    const auto logits = run_steps(phase);
    int64_t parted = INT64_MAX;
    if (GetParam().tolerance.steps > 0) {
      const Choices choices = std::exchange(choices_, {});
      load(GetParam().tolerance.row >= kFp8.row ? Arithmetic::kWideCore : Arithmetic::kWide);
      run_steps(phase);
      parted = first_difference(choices, choices_);
    }
    const auto steps = expected_->ints("steps.ids");
    const auto margin = expected_->floats("steps.margin");
    const auto gate_margin = expected_->floats("steps.gate_margin");
    const auto prompt = static_cast<int64_t>(expected_->ints("seq1.ids").size());
    int clear = 0, both_clear = 0, differ = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      const double scale = rms(logits[i].data(), static_cast<int64_t>(logits[i].size()));
      if (margin[i] <= GetParam().tolerance.margin * scale) continue;
      ++clear;
      const bool gates_clear = gate_margin[i] > GetParam().tolerance.gate;
      both_clear += gates_clear;
      const auto best = std::max_element(logits[i].begin(), logits[i].end()) - logits[i].begin();
      if (best == steps[i]) continue;
      ++differ;
      EXPECT_FALSE(gates_clear) << "step " << i << ", margins " << margin[i] << " and " << gate_margin[i];
      EXPECT_GE(prompt + static_cast<int64_t>(i) - 1, parted) << "step " << i << ", margin " << margin[i];
    }
    EXPECT_GE(clear, GetParam().steps_min);
    EXPECT_GE(both_clear, GetParam().both_min);
    EXPECT_LE(differ, GetParam().tolerance.steps * clear);
    fmt::print("{} of {} steps have a clear logit margin, {} clear gate margins too; {} differ\n", clear,
               steps.size(), both_clear, differ);
    RecordProperty("clear_steps", clear);
    RecordProperty("clear_steps_and_gates", both_clear);
  }

  // Prefixes whose margins are all clear for coarse arithmetic too: there the argmax must be the oracle's.
  void check_clear_steps(Phase phase) {
    const auto next = expected_->ints("clear.next");
    const auto ids = expected_->ints("clear.ids");
    const size_t length = ids.size() / next.size();
    ASSERT_EQ(next.size(), 64u);
    for (size_t i = 0; i < next.size(); ++i) {
      const auto first = ids.begin() + static_cast<int64_t>(i * length);
      std::vector<int32_t> prefix(first, std::find(first, first + static_cast<int64_t>(length), -1));
      const auto count = static_cast<int64_t>(prefix.size());
      start(phase);
      testing::TestSequence sequence = testing::test_sequence(prefix, 0, 256);
      advance(sequence, count);
      EXPECT_EQ(std::max_element(logits_.begin(), logits_.end()) - logits_.begin(), next[i])
          << "prefix " << i << " of " << count << " tokens, margins " << expected_->floats("clear.margin")[i]
          << " and " << expected_->floats("clear.gate_margin")[i];
    }
  }

  std::unique_ptr<Model> parts_[2];
  std::unique_ptr<Model> model_;
  std::unique_ptr<Expected> expected_;
  ForwardOptions options_;
  std::atomic<bool> stop_{false};
  std::atomic<TimePoint> last_progress_{};
  std::unique_ptr<KvStorage> storage_;
  std::unique_ptr<InprocGroup> transport_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<RankForward> rank_;
  PlacementSnapshot placement_;
  std::vector<float> logits_;

  std::string prefix_;        // of the expected tensors; empty: nothing is compared
  int64_t expected_row_ = 0;  // the kept position at which the chunk ends
  bool diverged_ = false;     // a gate tie went the other way in this sequence
  Choices choices_;
  int64_t rows_checked_ = 0;
  double worst_error_ = 0;
};

TEST_P(Golden, PrefillFormGivesTheOraclesStatesAndLogits) { check_sequences(Phase::kPrefill); }
TEST_P(Golden, DecodeFormGivesTheOraclesStatesAndLogits) { check_sequences(Phase::kDecode); }
TEST_P(Golden, PrefillFormChoosesTheOraclesTokens) { check_steps(Phase::kPrefill); }
TEST_P(Golden, DecodeFormChoosesTheOraclesTokens) { check_steps(Phase::kDecode); }

class GoldenCoarse : public Golden {};

TEST_P(GoldenCoarse, PrefillFormChoosesTheOraclesTokenWhereMarginsAreClear) {
  check_clear_steps(Phase::kPrefill);
}
TEST_P(GoldenCoarse, DecodeFormChoosesTheOraclesTokenWhereMarginsAreClear) {
  check_clear_steps(Phase::kDecode);
}

std::string case_name(const ::testing::TestParamInfo<GoldenCase>& info) {
  const std::string suffixes[] = {"", "_wide", "_wide_core"};
  std::string name = info.param.folder + suffixes[static_cast<int>(info.param.arithmetic)];
  if (info.param.expected != GoldenCase{}.expected) name += "_kv_b_fp8";
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Golden,
                         ::testing::Values(GoldenCase{"v3", Arithmetic::kNative, kF32, 64, 64},
                                           GoldenCase{"v3-bf16", Arithmetic::kNative, kBf16, 32},
                                           GoldenCase{"v3-bf16", Arithmetic::kWide, kF32, 64, 64},
                                           GoldenCase{"v3-fp8", Arithmetic::kNative, kFp8, 20},
                                           GoldenCase{"v3-fp8", Arithmetic::kWideCore, kFp8WideCore, 48, 16},
                                           GoldenCase{"v3-fp8", Arithmetic::kNative, kFp8OtherKvB, 20, 0,
                                                      "expected_kv_b_fp8.safetensors"},
                                           GoldenCase{"v3.1", Arithmetic::kNative, kFp8, 16},
                                           GoldenCase{"v3.1", Arithmetic::kWideCore, kFp8WideCore, 48, 48},
                                           GoldenCase{"v2-lite", Arithmetic::kNative, kF32, 64, 64},
                                           GoldenCase{"v2", Arithmetic::kNative, kF32, 64, 64},
                                           GoldenCase{"v2-f16", Arithmetic::kNative, kBf16, 32},
                                           GoldenCase{"v2-f16", Arithmetic::kWide, kF32, 64, 64},
                                           GoldenCase{"moonlight", Arithmetic::kNative, kF32, 64, 64},
                                           GoldenCase{"kimi-k2", Arithmetic::kNative, kF32, 64, 64},
                                           GoldenCase{"odd", Arithmetic::kNative, kF32, 64, 64}),
                         case_name);

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenCoarse,
                         ::testing::Values(GoldenCase{"v3-bf16", Arithmetic::kNative, kBf16, 0},
                                           GoldenCase{"v2-f16", Arithmetic::kNative, kBf16, 0},
                                           GoldenCase{"v3-fp8", Arithmetic::kNative, kFp8, 0},
                                           GoldenCase{"v3-fp8", Arithmetic::kNative, kFp8OtherKvB, 0, 0,
                                                      "expected_kv_b_fp8.safetensors"},
                                           GoldenCase{"v3.1", Arithmetic::kNative, kFp8, 0}),
                         case_name);

}  // namespace
}  // namespace fathom
