// Sizing units, counting them over the day, pricing them, and saying what binds.
#include "sim/planner.h"

#include <algorithm>
#include <cmath>

#include "balance/eplb.h"
#include "base/check.h"
#include "base/det_math.h"
#include "base/rng.h"
#include "sim/fluid.h"

namespace fathom::sim {
namespace {

constexpr double kDaySeconds = 86400;
constexpr double kGiga = 1e9;
constexpr double kPopularitySigma = 0.5;
// Since the placement was made; chosen so that the published decode unit gets the f_ep of 1.20 the simulator
// uses.
constexpr double kPopularityDrift = 0.08;
constexpr int kMonteCarloLayers = 8;
// Time to first token over the forward's time, from the simulated day at 0.8-0.9 use: p50 1.37, p99 2.3.
constexpr double kTtftP99Forwards = 2.3;
constexpr double kPrefillPacking = 0.97;  // mean over largest cost of the ranks in a saturated forward
constexpr int kUnitNodes[] = {1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36};
constexpr double kWorthMore = 0.015;  // a larger unit or another slot per rank must save so much
constexpr int kExtraSlotsMax = 2;     // beyond the fewest slots per rank
constexpr double kBudgetTokens[] = {512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 24576, 32768};

bool with_mtp(const PlanInput& in) { return in.mtp_acceptance > 0 && in.model.mtp_layers > 0; }

DecodeUnitShape decode_shape(const PlanInput& in, const DecodeUnitPlan& unit) {
  return {static_cast<double>(unit.ranks), static_cast<double>(unit.slots), with_mtp(in) ? 2.0 : 1.0,
          unit.expert_imbalance, with_mtp(in)};
}

double kv_per_request(const PlanInput& in) {
  return in.input_tokens_mean + in.output_tokens_mean * (1 + in.output_cv2) / 2;
}

FluidPoint point_at(const PlanInput& in, const DecodeUnitPlan& unit, double requests) {
  const double tokens_per_step = with_mtp(in) ? 1 + in.mtp_acceptance : 1;
  const DecodeLoad load{requests * in.requests_imbalance, requests,
                        requests * kv_per_request(in) * in.kv_imbalance};
  FluidPoint point;
  point.requests_per_rank = requests;
  point.step_ms = decode_step_us(in.hw, in.model, decode_shape(in, unit), load, unit.ranks > 1) / 1e3;
  point.tokens_per_s_per_user = tokens_per_step / (point.step_ms / 1e3);
  return point;
}

std::array<double, 24> shares(const PlanInput& in) {
  std::array<double, 24> out = in.hourly_share;
  double sum = 0;
  for (const double s : out) sum += s;
  if (sum > 0) {
    for (double& s : out) s /= sum;
    return out;
  }
  // A day whose peak stands peak_over_mean above its mean: a triangle from trough to peak and back.
  const double swing = std::min(in.peak_over_mean - 1, 1.0);
  for (int h = 0; h < 24; ++h) {
    const double wave = 1 - std::abs(h - 12) / 6.0;  // -1 at midnight, 1 at noon
    out[h] = (1 + swing * wave) / 24;
  }
  double total = 0;
  for (const double s : out) total += s;
  for (double& s : out) s /= total;
  return out;
}

// The busiest rank's memory beside weights, in KV tokens.
double room_of(const PlanInput& in, int ranks, int slots) {
  return kv_room_tokens(in.hw, in.model, static_cast<double>(slots) / ranks, with_mtp(in));
}

std::optional<DecodeUnitPlan> size_decode(const PlanInput& in, int nodes, int slots_per_rank,
                                          std::string& reason) {
  DecodeUnitPlan unit;
  unit.nodes = nodes;
  unit.ranks = nodes * static_cast<int>(in.hw.gpus_per_node);
  unit.slots = unit.ranks * slots_per_rank;
  unit.redundant = unit.slots - static_cast<int>(in.model.experts);
  if (unit.slots > kSlotsMax) {
    reason = fmt::format("decode unit of {} nodes: {} expert slots, the expert balancer places at most {}",
                         nodes, unit.slots, kSlotsMax);
    return std::nullopt;
  }
  const double room = room_of(in, unit.ranks, unit.slots);
  const double kv_one = kv_per_request(in) * in.kv_imbalance;
  if (room < kv_one) {
    reason = fmt::format(
        "decode unit of {} nodes: weights leave room for {:.0f} KV tokens per rank, one request needs {:.0f}",
        nodes, room, kv_one);
    return std::nullopt;
  }
  const double fewest = 1.0 / unit.ranks;
  unit.expert_imbalance = 1;
  const FluidPoint alone = point_at(in, unit, fewest);
  if (alone.tokens_per_s_per_user < in.slo_tokens_per_s_per_user) {
    reason = fmt::format(
        "tokens/s per user: a single request gets {:.1f} on a decode unit of {} nodes, the objective is "
        "{:.1f}",
        alone.tokens_per_s_per_user, nodes, in.slo_tokens_per_s_per_user);
    return std::nullopt;
  }
  const double by_kv = room / kv_one;
  double low = fewest, high = std::min(by_kv, 4096.0);
  for (int round = 0; round < 2; ++round) {  // the imbalance depends on the batch, weakly
    low = fewest;
    high = std::min(by_kv, 4096.0);
    if (point_at(in, unit, high).tokens_per_s_per_user >= in.slo_tokens_per_s_per_user) {
      low = high;
    } else {
      for (int i = 0; i < 40; ++i) {
        const double middle = (low + high) / 2;
        (point_at(in, unit, middle).tokens_per_s_per_user >= in.slo_tokens_per_s_per_user ? low : high) =
            middle;
      }
    }
    const double tokens = std::max(1.0, low * (with_mtp(in) ? 2 : 1));
    unit.expert_imbalance =
        1 + (expert_imbalance_of(in.model, unit.ranks, unit.slots, tokens) - 1) * in.expert_imbalance_factor;
  }
  const FluidPoint at = point_at(in, unit, low);
  unit.requests_per_rank = low;
  unit.step_ms = at.step_ms;
  unit.tokens_per_s_per_user = at.tokens_per_s_per_user;
  unit.kv_use_share = low / by_kv;
  unit.output_tokens_per_s = unit.ranks * low * at.tokens_per_s_per_user;
  unit.bound = low >= by_kv * 0.999 ? "KV memory" : "speed per user";
  return unit;
}

// Tokens one computed token attends to: long prompts weigh more, half of the new part comes after it.
double context_per_token(const PlanInput& in) {
  return in.input_tokens_mean * (1 + in.input_cv2) * (1 - (1 - in.hit_share) / 2);
}

std::optional<PrefillUnitPlan> size_prefill(const PlanInput& in, int nodes, int slots_per_rank, double budget,
                                            std::string& reason) {
  PrefillUnitPlan unit;
  unit.nodes = nodes;
  unit.ranks = nodes * static_cast<int>(in.hw.gpus_per_node);
  unit.slots = unit.ranks * slots_per_rank;
  unit.redundant = unit.slots - static_cast<int>(in.model.experts);
  if (unit.slots > kSlotsMax) {
    reason = fmt::format("prefill unit of {} nodes: {} expert slots, the expert balancer places at most {}",
                         nodes, unit.slots, kSlotsMax);
    return std::nullopt;
  }
  unit.budget_tokens_per_rank = budget;
  const double room = room_of(in, unit.ranks, unit.slots);
  if (room < 2 * budget + in.input_tokens_mean) {
    reason = fmt::format("prefill unit of {} nodes: weights leave room for {:.0f} KV tokens per rank", nodes,
                         room);
    return std::nullopt;
  }
  unit.expert_imbalance =
      1 + (expert_imbalance_of(in.model, unit.ranks, unit.slots, budget) - 1) * in.expert_imbalance_factor;
  const double cached_per_computed = in.hit_share / (1 - in.hit_share);
  const PrefillUnitShape shape{static_cast<double>(unit.ranks), static_cast<double>(unit.slots),
                               unit.expert_imbalance, cached_per_computed};
  const PrefillLoad load{budget, budget * context_per_token(in)};
  const double layer_us = prefill_layer_us(in.hw, in.model, shape, load);
  unit.forward_s = in.hw.prefill_phi * (in.model.layers * layer_us / 1e6 + in.hw.prefill_host_ms / 1e3);
  unit.ttft_s_p99 = kTtftP99Forwards * unit.forward_s + in.hw.kv_handover_ms / 1e3;
  if (unit.ttft_s_p99 > in.slo_ttft_s) {
    reason = fmt::format(
        "time to first token: {:.2f} s at p99 on a prefill unit of {} nodes, the objective is {:.2f} s",
        unit.ttft_s_p99, nodes, in.slo_ttft_s);
    return std::nullopt;
  }
  const double computed = unit.ranks * budget * kPrefillPacking / unit.forward_s * in.utilisation_max;
  unit.input_tokens_per_s = computed / (1 - in.hit_share);
  const double read =
      unit.input_tokens_per_s * in.hit_share * in.model.kv_bytes_per_token(with_mtp(in)) / kGiga / nodes;
  unit.bound = "compute";
  unit.kv_read_gb_per_s_per_node = read;
  if (read > in.hw.kv_read_gb_per_s_per_node) {
    unit.input_tokens_per_s *= in.hw.kv_read_gb_per_s_per_node / read;
    unit.kv_read_gb_per_s_per_node = in.hw.kv_read_gb_per_s_per_node;
    unit.bound = "KV read bandwidth";
  }
  return unit;
}

struct Peak {
  double output_tokens_per_s = 0, input_tokens_per_s = 0;
};

template <typename Try>
auto best_unit(const PlanInput& in, int fixed_nodes, double peak_rate, Try try_size) {
  using Unit = typename decltype(try_size(1, 1))::value_type;
  std::optional<Unit> best;
  double best_cost = 0;
  for (const int nodes : kUnitNodes) {
    const int n = fixed_nodes > 0 ? fixed_nodes : nodes;
    const int ranks = n * static_cast<int>(in.hw.gpus_per_node);
    const int fewest_slots = static_cast<int>((in.model.experts + ranks - 1) / ranks);
    for (int extra = 0; extra <= (ranks > 1 ? kExtraSlotsMax : 0); ++extra) {
      const std::optional<Unit> unit = try_size(n, fewest_slots + extra);
      if (!unit) continue;
      double rate = 0;
      if constexpr (std::is_same_v<Unit, DecodeUnitPlan>) {
        rate = unit->output_tokens_per_s;
      } else {
        rate = unit->input_tokens_per_s;
      }
      // Whole units at the peak and fractions over the day: neither alone picks a sensible size.
      const double at_peak = std::ceil(peak_rate / rate - 1e-9) * n;
      const double cost = 0.5 * at_peak + 0.5 * peak_rate / rate * n;
      if (!best || cost < best_cost * (1 - kWorthMore)) {
        best = unit;
        best_cost = cost;
      }
    }
    if (fixed_nodes > 0) break;
  }
  return best;
}

void add_hours(const PlanInput& in, PlanResult& plan) {
  const std::array<double, 24> share = shares(in);
  for (int h = 0; h < 24; ++h) {
    HourPlan& hour = plan.hours[h];
    hour.requests_per_s = in.requests_per_day * share[h] / 3600;
    const double decode = hour.requests_per_s * in.output_tokens_mean / plan.decode.output_tokens_per_s;
    const double prefill = hour.requests_per_s * in.input_tokens_mean / plan.prefill.input_tokens_per_s;
    if (plan.colocated) {
      hour.decode_units = hour.prefill_units =
          std::max(1, static_cast<int>(std::ceil(decode + prefill - 1e-9)));
      hour.nodes = hour.decode_units * plan.decode.nodes;
      plan.node_hours_fluid += (decode + prefill) * plan.decode.nodes;
    } else {
      hour.decode_units = std::max(1, static_cast<int>(std::ceil(decode - 1e-9)));
      hour.prefill_units = std::max(1, static_cast<int>(std::ceil(prefill - 1e-9)));
      hour.nodes = hour.decode_units * plan.decode.nodes + hour.prefill_units * plan.prefill.nodes;
      plan.node_hours_fluid += decode * plan.decode.nodes + prefill * plan.prefill.nodes;
    }
    plan.node_hours += hour.nodes;
    plan.peak_decode_units = std::max(plan.peak_decode_units, hour.decode_units);
    plan.peak_prefill_units = std::max(plan.peak_prefill_units, hour.prefill_units);
    plan.peak_nodes = std::max(plan.peak_nodes, hour.nodes);
  }
  plan.nodes_mean = plan.node_hours / 24;
}

void add_costs(const PlanInput& in, const Peak& peak, PlanResult& plan) {
  plan.cost_usd_per_day = plan.node_hours * in.hw.gpus_per_node * in.hw.price_usd_per_gpu_hour;
  const double output = in.requests_per_day * in.output_tokens_mean / 1e6;
  const double all = output + in.requests_per_day * in.input_tokens_mean / 1e6;
  plan.cost_usd_per_million_output_tokens = plan.cost_usd_per_day / output;
  plan.cost_usd_per_million_tokens = plan.cost_usd_per_day / all;
  const double kv_bytes = in.model.kv_bytes_per_token(with_mtp(in));
  const double new_share = (1 - in.hit_share) * in.input_tokens_mean + in.output_tokens_mean;
  plan.kv_write_gb_per_s_peak =
      peak.output_tokens_per_s / in.output_tokens_mean * new_share * kv_bytes / kGiga;
  plan.kv_read_gb_per_s_peak = peak.input_tokens_per_s * in.hit_share * kv_bytes / kGiga;
  plan.kv_disk_tb = in.requests_per_day * new_share * kv_bytes * in.kv_retention_hours / 24 / 1e12;
}

void add_headroom(const PlanInput& in, const Peak& peak, PlanResult& plan) {
  plan.spare_nodes = plan.colocated ? plan.decode.nodes : plan.decode.nodes + plan.prefill.nodes;
  if (plan.peak_decode_units > 1) {
    FluidLoad load;
    load.output_tokens_per_s_per_rank =
        peak.output_tokens_per_s / ((plan.peak_decode_units - 1) * plan.decode.ranks);
    load.kv_tokens_per_request = kv_per_request(in);
    load.acceptance = in.mtp_acceptance;
    load.kv_imbalance = in.kv_imbalance;
    load.requests_imbalance = in.requests_imbalance;
    const auto point = solve_decode_fluid(in.hw, in.model, decode_shape(in, plan.decode), load);
    plan.speed_after_decode_loss = point ? point->tokens_per_s_per_user : 0;
  }
  if (plan.peak_prefill_units > 1) {
    plan.prefill_use_after_loss = peak.input_tokens_per_s /
                                  ((plan.peak_prefill_units - 1) * plan.prefill.input_tokens_per_s) *
                                  in.utilisation_max;
  }
}

}  // namespace

double expert_imbalance_of(const ModelShape& model, int ranks, int slots, double tokens_per_rank) {
  if (ranks <= 1) return 1;
  const int experts = static_cast<int>(model.experts);
  std::vector<float> placed(static_cast<size_t>(kMonteCarloLayers * experts));
  std::vector<double> now(placed.size());
  Rng rng(20250228);
  const auto normal = [&] { return normal_quantile(std::clamp(rng.next_double(), 1e-12, 1 - 1e-12)); };
  for (size_t i = 0; i < placed.size(); ++i) {
    const double popularity = det_exp(kPopularitySigma * normal());
    placed[i] = static_cast<float>(popularity * det_exp(kPopularityDrift * normal()));
    now[i] = popularity;
  }
  const auto placement = rebalance_experts({kMonteCarloLayers, experts, placed}, {slots, 1, 1, ranks});
  CHECK_MSG(placement.ok(), placement.status().message());
  double sum = 0;
  for (int layer = 0; layer < kMonteCarloLayers; ++layer) {
    std::vector<double> loads(static_cast<size_t>(ranks));
    double popularity_sum = 0;
    for (int e = 0; e < experts; ++e) popularity_sum += now[static_cast<size_t>(layer * experts + e)];
    const double copies = tokens_per_rank * ranks * model.experts_per_token;
    const auto slot_expert = placement->slots(layer);
    for (int s = 0; s < slots; ++s) {
      const int e = slot_expert[static_cast<size_t>(s)];
      const double share = now[static_cast<size_t>(layer * experts + e)] / popularity_sum /
                           placement->counts(layer)[static_cast<size_t>(e)];
      loads[static_cast<size_t>(s / (slots / ranks))] += share * copies;
    }
    double busiest = 0;
    for (double& load : loads) busiest = std::max(busiest, load + std::sqrt(load) * normal());
    sum += busiest / (copies / ranks);
  }
  return std::max(1.0, sum / kMonteCarloLayers);
}

Status validate_plan_input(const PlanInput& in) {
  const auto positive = [](const char* name, double value) {
    if (!(value > 0)) return invalid_argument("{}: {} must be above 0", name, value);
    return value < 1e18 ? ok_status() : invalid_argument("{}: {} is above 1e18", name, value);
  };
  const auto unit_nodes = [](const char* name, int value) {
    if (value >= 0 && value <= kUnitNodesMax) return ok_status();
    return invalid_argument("{}: {} is outside 0..{}", name, value, kUnitNodesMax);
  };
  RETURN_IF_ERROR(positive("requests_per_day", in.requests_per_day));
  RETURN_IF_ERROR(positive("input_tokens_mean", in.input_tokens_mean));
  RETURN_IF_ERROR(positive("output_tokens_mean", in.output_tokens_mean));
  RETURN_IF_ERROR(positive("slo_ttft_s", in.slo_ttft_s));
  RETURN_IF_ERROR(positive("slo_tokens_per_s_per_user", in.slo_tokens_per_s_per_user));
  RETURN_IF_ERROR(positive("input_cv2", in.input_cv2));
  RETURN_IF_ERROR(positive("output_cv2", in.output_cv2));
  if (!(in.hit_share >= 0 && in.hit_share < 1))
    return invalid_argument("hit_share: {} is outside 0..1", in.hit_share);
  if (!(in.mtp_acceptance >= 0 && in.mtp_acceptance <= 1)) {
    return invalid_argument("mtp_acceptance: {} is outside 0..1", in.mtp_acceptance);
  }
  if (!(in.peak_over_mean >= 1 && in.peak_over_mean <= 2)) {
    return invalid_argument("peak_over_mean: {} is outside 1..2; a sharper day needs its hours",
                            in.peak_over_mean);
  }
  if (!(in.kv_retention_hours >= 0 && in.kv_retention_hours <= 1e6)) {
    return invalid_argument("kv_retention_hours: {} is outside 0..1e6", in.kv_retention_hours);
  }
  RETURN_IF_ERROR(unit_nodes("decode_nodes", in.decode_nodes));
  RETURN_IF_ERROR(unit_nodes("prefill_nodes", in.prefill_nodes));
  if (in.nodes_max < 1) return invalid_argument("nodes_max: a budget below one unit");
  return ok_status();
}

PlanOutcome make_plan(const PlanInput& in) {
  const std::array<double, 24> share = shares(in);
  const double peak_requests = in.requests_per_day * *std::max_element(share.begin(), share.end()) / 3600;
  const Peak peak{peak_requests * in.output_tokens_mean, peak_requests * in.input_tokens_mean};
  std::string decode_reason, prefill_reason;
  const bool single_rank = in.hw.gpus_per_node < 2;
  const auto decode =
      best_unit(in, single_rank ? 1 : in.decode_nodes, peak.output_tokens_per_s,
                [&](int nodes, int slots) { return size_decode(in, nodes, slots, decode_reason); });
  if (!decode) return {std::nullopt, decode_reason};
  const auto prefill =
      best_unit(in, single_rank ? 1 : in.prefill_nodes, peak.input_tokens_per_s, [&](int nodes, int slots) {
        std::optional<PrefillUnitPlan> best;
        for (const double budget : kBudgetTokens) {
          const auto unit = size_prefill(in, nodes, slots, budget, prefill_reason);
          if (unit && (!best || unit->input_tokens_per_s > best->input_tokens_per_s)) best = unit;
        }
        return best;
      });
  if (!prefill) return {std::nullopt, prefill_reason};
  PlanResult plan;
  plan.decode = *decode;
  plan.prefill = *prefill;
  plan.colocated = single_rank;
  add_hours(in, plan);
  if (plan.peak_nodes > in.nodes_max) {
    return {std::nullopt,
            fmt::format("nodes: {} at the peak, the limit is {}", plan.peak_nodes, in.nodes_max)};
  }
  add_costs(in, peak, plan);
  add_headroom(in, peak, plan);
  const double decode_nodes = plan.peak_decode_units * plan.decode.nodes;
  const double prefill_nodes = plan.peak_prefill_units * plan.prefill.nodes;
  plan.binding_constraint = decode_nodes >= prefill_nodes ? fmt::format("decode: {}", plan.decode.bound)
                                                          : fmt::format("prefill: {}", plan.prefill.bound);
  return {plan, ""};
}

}  // namespace fathom::sim
