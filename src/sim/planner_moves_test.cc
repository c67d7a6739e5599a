// What moves a plan: every figure with every input, in the right direction; which constraint binds, in cases
// made so that one does; and that more is never less.
#include "sim/planner_moves.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/check.h"
#include "sim/plan_report.h"
#include "sim/test_plan.h"

namespace fathom::sim {
namespace {

size_t figure_idx(std::string_view name) {
  const auto figures = plan_figures();
  for (size_t i = 0; i < figures.size(); ++i) {
    if (figures[i].name == name) return i;
  }
  ADD_FAILURE() << name;
  return 0;
}

struct Moved {
  PlanInput input;
  PlanResult plan;
  std::vector<Sensitivity> all;

  const Sensitivity& of(std::string_view input) const {
    return *std::find_if(all.begin(), all.end(), [&](const Sensitivity& s) { return s.input == input; });
  }
  // Inputs that move any figure.
  std::set<std::string> movers() const {
    std::set<std::string> out;
    for (const Sensitivity& s : all) {
      for (const MovedPlan* moved : {&s.minus, &s.plus}) {
        if (moved->figures.empty()) out.insert(s.input);
        for (size_t i = 0; i < moved->figures.size(); ++i) {
          const double base = plan_figures()[i].value(plan);
          if (std::abs(moved->figures[i] - base) > 1e-9 * std::abs(base)) out.insert(s.input);
        }
      }
    }
    return out;
  }
};

Moved move(const PlanInput& in, ExpertSpreads& spreads) {
  const PlanOutcome outcome = make_plan(in, spreads);
  CHECK_MSG(outcome.plan.has_value(), outcome.reason);
  return {in, *outcome.plan, plan_sensitivities(in, *outcome.plan, spreads)};
}

const Moved& published() {
  static ExpertSpreads spreads;
  static const Moved moved = move(published_layout(), spreads);
  return moved;
}

TEST(Moves, EveryInputAndEveryConstantIsListed) {
  std::set<std::string> names;
  for (const Sensitivity& s : published().all) EXPECT_TRUE(names.insert(s.input).second) << s.input;
  for (const char* input : {"requests_per_day",
                            "peak_over_mean",
                            "input_tokens_mean",
                            "input_cv2",
                            "output_tokens_mean",
                            "output_cv2",
                            "hit_share",
                            "kv_retention_hours",
                            "slo_ttft_s",
                            "slo_tokens_per_s_per_user",
                            "mtp_acceptance",
                            "kv_imbalance",
                            "requests_imbalance",
                            "expert_popularity_sigma",
                            "expert_popularity_drift",
                            "expert_imbalance_scale",
                            "prefill_use_max",
                            "prefill_packing",
                            "ttft_p99_forwards",
                            "redundancy_gain_min"}) {
    EXPECT_EQ(names.count(input), 1u) << input;
  }
  for (const auto& [name, value] : profile_constants(published().input.hw)) {
    EXPECT_EQ(names.count(std::string(name)), name == "hardware.gpus_per_node" ? 0u : 1u) << name;
  }
}

TEST(Moves, DirectionsAreRight) {
  const std::map<std::string_view, int> directions = {{"requests_per_day", 1},
                                                      {"input_tokens_mean", 1},
                                                      {"input_cv2", 1},
                                                      {"output_tokens_mean", 1},
                                                      {"output_cv2", 1},
                                                      {"hit_share", -1},
                                                      {"slo_ttft_s", -1},
                                                      {"ttft_p99_forwards", 1},
                                                      {"slo_tokens_per_s_per_user", 1},
                                                      {"mtp_acceptance", -1},
                                                      {"kv_imbalance", 1},
                                                      {"requests_imbalance", 1},
                                                      {"expert_imbalance_scale", 1},
                                                      {"prefill_use_max", -1},
                                                      {"prefill_packing", -1},
                                                      {"residual.decode_phi", 1},
                                                      {"residual.prefill_phi", 1},
                                                      {"gemm.peak_tflops", -1},
                                                      {"gemm.hbm_tb_per_s", -1},
                                                      {"hardware.hbm_gb", -1},
                                                      {"decode_step.host_ms", 1},
                                                      {"kv.read_gb_per_s_per_node", -1},
                                                      {"mla_decode.peak_tflops", -1}};
  const size_t hours = figure_idx("node_hours"), cost = figure_idx("cost_usd");
  const double base_hours = published().plan.node_hours, base_cost = published().plan.cost_usd_per_day;
  for (const auto& [name, sign] : directions) {
    const Sensitivity& s = published().of(name);
    EXPECT_GE(sign * *s.plus.node_hours_change, -1e-9) << name;
    EXPECT_LE(sign * *s.minus.node_hours_change, 1e-9) << name;
    EXPECT_GE(sign * (s.plus.figures[hours] - base_hours), 0) << name;
    EXPECT_LE(sign * (s.minus.figures[hours] - base_hours), 0) << name;
    EXPECT_GE(sign * (s.plus.figures[cost] - base_cost), 0) << name;
  }
  const Sensitivity& load = published().of("requests_per_day");
  EXPECT_NEAR(*load.plus.node_hours_change, 0.10, 1e-9);
  EXPECT_NEAR(*load.plus.cost_change, 0, 1e-9);
  EXPECT_NEAR(*published().of("hardware.price_usd_per_gpu_hour").plus.cost_change, 0.10, 1e-9);
  EXPECT_DOUBLE_EQ(*published().of("hardware.price_usd_per_gpu_hour").plus.node_hours_change, 0);
  EXPECT_DOUBLE_EQ(load.plus.value, 1.1 * load.value);
  EXPECT_DOUBLE_EQ(published().of("prefill_packing").plus.value, 1);  // a share stops there
  EXPECT_DOUBLE_EQ(published().of("gemm.k_half").minus.value, 0.9 * 543);
  const double disk = published().plan.kv_disk_tb;
  EXPECT_NEAR(published().of("kv_retention_hours").plus.figures[figure_idx("kv_disk_tb")], 1.1 * disk,
              1e-9 * disk);
  const double peak = published().plan.peak_nodes;
  EXPECT_GT(published().of("peak_over_mean").plus.figures[figure_idx("nodes_peak")], peak);
}

// Where a tenth more of redundancy_gain_min decides that one slot less per rank is enough.
PlanInput at_the_gain_of_a_slot(ExpertSpreads& spreads) {
  PlanInput in = published_layout();
  in.decode_slots_per_rank = in.prefill_slots_per_rank = 0;
  const auto slots_at = [&](double gain) {
    in.redundancy_gain_min = gain;
    const PlanResult plan = *make_plan(in, spreads).plan;
    return plan.decode.slots + plan.prefill.slots;
  };
  double gain = 0.002;
  for (int slots = slots_at(gain); gain < 0.2 && slots_at(1.05 * gain) == slots; gain *= 1.05) {
  }
  in.redundancy_gain_min = gain;
  return in;
}

// A constant that moves nothing in one plan moves another, in which it is not slack.
TEST(Moves, EveryInputReachesTheModel) {
  ExpertSpreads spreads;
  std::set<std::string> movers = published().movers();
  PlanInput starved = published_layout();  // of disk and of one direction of the network
  starved.hw.kv_read_gb_per_s_per_node = 1;
  starved.hw.combine_gb_per_s /= 4;
  PlanInput full = published_layout();  // of KV, late with first tokens, and short of the prefill network
  full.slo_tokens_per_s_per_user = 5;
  full.slo_ttft_s = 7;
  full.output_tokens_mean = 10000;
  full.hw.prefill_dispatch_gb_per_s = full.hw.prefill_combine_gb_per_s = 10;
  PlanInput wired = published_layout();  // a network faster than what it hides behind, slow small kernels
  wired.hw.dispatch_gb_per_s *= 10;
  wired.hw.mla_hbm_tb_per_s /= 4;
  wired.hw.bmm_peak_tflops /= 10;
  PlanInput one_node = published_layout();  // decode that never leaves a node
  one_node.hw = test_profile("h200");
  one_node.decode_nodes = 1;
  PlanInput at_once = published_layout();  // prompts wait for nothing but the store
  at_once.ttft_p99_forwards = 1;
  for (const PlanInput& in : {starved, full, wired, one_node, at_once})
    movers.merge(move(in, spreads).movers());
  movers.merge(move(at_the_gain_of_a_slot(spreads), spreads).movers());
  for (const Sensitivity& s : published().all) EXPECT_EQ(movers.count(s.input), 1u) << s.input;
}

TEST(Moves, TheTableHasEveryFigureOfEveryRow) {
  const PlanStory story{"m", published().input, published().plan, {}, published().all};
  const std::string csv = sensitivities_csv(story);
  const std::string header = csv.substr(0, csv.find('\n'));
  for (const PlanFigure& figure : plan_figures()) {
    EXPECT_NE(header.find(fmt::format(",{},", figure.name)), std::string::npos) << figure.name;
  }
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), static_cast<long>(2 + 2 * published().all.size()));
  const Report report = plan_report(story);
  EXPECT_EQ(report.csv_files.back().text, csv);
  size_t columns = 0;
  for (const Table& table : report.tables) {
    if (table.columns[0] != "input" || table.columns[1] == "a tenth lower") continue;
    EXPECT_EQ(table.rows.size(), 1 + published().all.size());
    columns += table.columns.size() - 1;
  }
  EXPECT_EQ(columns, plan_figures().size());
}

// What binds, by label.
class Binding {
 public:
  explicit Binding(const PlanInput& in) {
    ExpertSpreads spreads;
    const PlanOutcome outcome = make_plan(in, spreads);
    EXPECT_TRUE(outcome.plan.has_value()) << outcome.reason;
    all_ = binding_constraints(in, *outcome.plan, spreads);
    for (const BindingConstraint& b : all_) {
      std::printf("  %-36s %5.2f %% of node-hours, %5.2f %% of the peak\n", b.label().c_str(),
                  100 * b.node_hours_saved_share, 100 * b.peak_nodes_saved_share);
    }
  }
  bool has(std::string_view label) const {
    return std::any_of(all_.begin(), all_.end(), [&](const auto& b) { return b.label() == label; });
  }
  std::string first() const { return all_.empty() ? "" : all_[0].label(); }
  std::string first_at_peak() const {
    std::map<std::string, double> saved;
    for (const BindingConstraint& b : all_) saved[b.constraint] += b.peak_nodes_saved_share;
    return std::max_element(saved.begin(), saved.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }

 private:
  std::vector<BindingConstraint> all_;
};

TEST(BindingConstraints, TimeToFirstToken) {
  PlanInput in = published_layout();
  in.slo_ttft_s = 2.4;
  const Binding tight(in);
  EXPECT_TRUE(tight.has("prefill: time to first token"));
  EXPECT_FALSE(tight.has("prefill: tokens of a forward"));
  in.slo_ttft_s = 30;
  EXPECT_FALSE(Binding(in).has("prefill: time to first token"));
  in.hw.prefill_rank_budget_ms_per_layer = 3;
  EXPECT_TRUE(Binding(in).has("prefill: tokens of a forward"));
}

TEST(BindingConstraints, SpeedOrMemoryOfDecode) {
  PlanInput in = published_layout();
  in.slo_tokens_per_s_per_user = 35;
  const Binding fast(in);
  EXPECT_EQ(fast.first(), "decode: tokens/s per user");
  EXPECT_FALSE(fast.has("decode: KV memory"));
  in.slo_tokens_per_s_per_user = 5;
  in.output_tokens_mean = 10000;
  const Binding full(in);
  EXPECT_TRUE(full.has("decode: KV memory"));
  EXPECT_FALSE(full.has("decode: tokens/s per user"));
}

TEST(BindingConstraints, WholeUnitsOfASmallLoad) {
  PlanInput in = published_layout();
  in.requests_per_day = 1e5;
  EXPECT_EQ(Binding(in).first(), "decode: whole units and hours");
  in = published_layout();
  in.requests_per_day = 168e7;
  EXPECT_NE(Binding(in).first(), "decode: whole units and hours");
}

TEST(BindingConstraints, ThePeakOfASpikyDay) {
  PlanInput in = published_layout();
  in.hourly_share.fill(1);
  EXPECT_NE(Binding(in).first_at_peak(), "peak of the load");
  in.hourly_share[20] = 20;
  const Binding spiky(in);
  EXPECT_EQ(spiky.first_at_peak(), "peak of the load");
  EXPECT_NE(spiky.first(), "decode: peak of the load");  // units follow the load
}

TEST(BindingConstraints, SparesAndPinnedSizes) {
  PlanInput in = published_layout();
  EXPECT_FALSE(Binding(in).has("decode: N+1 spare units"));
  in.spare_units = 1;
  EXPECT_TRUE(Binding(in).has("decode: N+1 spare units"));
  in = published_layout();
  in.requests_per_day = 1e6;
  in.decode_nodes = 36;
  EXPECT_TRUE(Binding(in).has("decode: the unit size asked for"));
  in.decode_nodes = 0;
  EXPECT_FALSE(Binding(in).has("decode: the unit size asked for"));
}

TEST(BindingConstraints, NetworkAndDisk) {
  PlanInput in = published_layout();
  EXPECT_FALSE(Binding(in).has("prefill: KV read bandwidth"));
  in.hw.kv_read_gb_per_s_per_node = 1;
  const Binding disk(in);
  EXPECT_EQ(disk.first(), "prefill: KV read bandwidth");
  EXPECT_FALSE(disk.has("prefill: compute"));
  in = published_layout();
  in.hw.dispatch_gb_per_s /= 4;
  in.hw.combine_gb_per_s /= 4;
  const Binding network(in);
  EXPECT_TRUE(network.has("decode: network bandwidth"));
  EXPECT_FALSE(network.has("decode: compute"));
}

// Any input a plan may get.
PlanInput any_input() {
  static const HardwareProfile profiles[] = {test_profile("h800-day"), test_profile("h200"),
                                             test_profile("h800")};
  const auto between = [](double low, double high) {  // evenly in the logarithm
    return low * std::pow(high / low, *rc::gen::inRange(0, 1001) / 1000.0);
  };
  PlanInput in;
  in.hw = profiles[*rc::gen::inRange(0, 3)];
  in.requests_per_day = between(1e5, 3e8);
  in.peak_over_mean = between(1, 2);
  in.input_tokens_mean = between(200, 15000);
  in.input_cv2 = between(0.3, 2);
  in.output_tokens_mean = between(50, 2000);
  in.output_cv2 = between(0.3, 2);
  in.hit_share = *rc::gen::inRange(0, 90) / 100.0;
  in.slo_ttft_s = between(1, 20);
  in.slo_tokens_per_s_per_user = between(6, 40);
  in.mtp_acceptance = *rc::gen::inRange(0, 95) / 100.0;
  in.spare_units = *rc::gen::inRange(0, 2);
  in.nodes_max = kNodesMax;
  return in;
}

// More load, longer answers, stricter objectives: never fewer node-hours, and never a plan where there was
// none.
TEST(PlanProperties, MoreIsNeverLess) {
  static ExpertSpreads spreads;
  int planned = 0;
  EXPECT_TRUE(rc::check("more is never less", [&planned] {
    const PlanInput in = any_input();
    const double f = 1 + *rc::gen::inRange(1, 100) / 100.0;
    const PlanOutcome base = make_plan(in, spreads);
    const auto never_less = [&](const char* what, const PlanInput& harder) {
      const PlanOutcome outcome = make_plan(harder, spreads);
      if (!outcome.plan) return;
      RC_LOG() << what << " times " << f << "\n";
      RC_ASSERT(base.plan.has_value());
      RC_ASSERT(outcome.plan->node_hours >= base.plan->node_hours);
      RC_ASSERT(outcome.plan->cost_usd_per_day >= base.plan->cost_usd_per_day);
      ++planned;
    };
    PlanInput harder = in;
    harder.requests_per_day *= f;
    never_less("load", harder);
    harder = in;
    harder.slo_ttft_s /= f;
    never_less("time to first token", harder);
    harder = in;
    harder.slo_tokens_per_s_per_user *= f;
    never_less("tokens/s per user", harder);
    harder = in;
    harder.spare_units += 1;
    never_less("spares", harder);
    if (!base.plan) return;
    RC_ASSERT(base.plan->tokens_per_s_per_user_peak >= in.slo_tokens_per_s_per_user * (1 - 1e-6));
    RC_ASSERT(base.plan->prefill.ttft_s_p99 <= in.slo_ttft_s);
    RC_ASSERT(base.plan->prefill_use_peak <= in.prefill_use_max * (1 + 1e-6));
    RC_ASSERT(base.plan->decode.kv_use_share <= 1 + 1e-9);
  }));
  EXPECT_GT(planned, 50);
}

}  // namespace
}  // namespace fathom::sim
