// Nodes, money, speed, waiting, balance and the bias of a fraction, of one simulated day.
#include "sim/day_figures.h"

#include <algorithm>
#include <limits>

namespace fathom::sim {
namespace {

constexpr double kHourSeconds = 3600;

double ratio(double a, double b) { return b != 0 ? a / b : 0; }

// Node hours of the day: the schedule's own integral when it ran, what was measured when something else
// decided.
struct Nodes {
  double hours = 0, decode_hours = 0, prefill_hours = 0;
};

Nodes nodes_of(const DayPage& page, const FleetCell& total) {
  const FleetOptions& o = page.run.options;
  const DaySchedule& schedule = page.day.schedule;
  Nodes nodes;
  if (!page.run.inputs.autoscaled()) {
    nodes.hours = schedule.node_hours();
    nodes.decode_hours = schedule.decode_units_mean() * o.shape.decode_nodes * 24;
    nodes.prefill_hours = schedule.prefill_units_mean() * o.shape.prefill_nodes * 24;
    return nodes;
  }
  const double scale = 1 / o.fraction / kHourSeconds;
  nodes.decode_hours = total.decode_node_seconds * scale;
  nodes.prefill_hours = total.prefill_node_seconds * scale;
  nodes.hours = nodes.decode_hours + nodes.prefill_hours;
  return nodes;
}

// What the schedule's units take to drain: each that closes, for as long as a unit of its kind does.
double drain_node_hours(const DaySchedule& schedule, const FleetShape& shape, const UnitTimes& times) {
  double seconds = 0;
  const std::vector<DaySchedule::Change>& changes = schedule.changes();
  for (size_t i = 1; i < changes.size(); ++i) {
    const UnitCounts from = changes[i - 1].units, to = changes[i].units;
    seconds += std::max(0, from.decode - to.decode) * shape.decode_nodes * times.decode_drain_s;
    seconds += std::max(0, from.prefill - to.prefill) * shape.prefill_nodes * times.prefill_drain_s;
  }
  return seconds / kHourSeconds;
}

class DayFigures {
 public:
  DayFigures(const DayPage& page, Report& report)
      : page_(page),
        run_(page.run),
        o_(page.run.options),
        marks_(page.marks),
        t_(page.result.metrics.total()),
        nodes_(nodes_of(page, t_)),
        report_(report) {}

  void add_all() {
    nodes();
    if (run_.inputs.autoscaled()) saving();
    money();
    speed();
    waiting();
    balance();
    if (o_.fraction < 1) bias();
  }

 private:
  void add(std::string name, double value, Origin origin = Origin::kPrediction, std::string note = {}) {
    report_.figures.push_back({std::move(name), value, origin, {}, std::move(note)});
  }
  // With the published value beside it, where `published` says that it is of the same thing.
  void add_beside(std::string name, double value, Origin origin, bool published, double published_value,
                  std::string note) {
    add(std::move(name), value, origin, std::move(note));
    if (published) report_.figures.back().published = published_value;
  }
  double drains() const {
    return (t_.decode_drain_node_seconds + t_.prefill_drain_node_seconds) / kHourSeconds;
  }
  const char* who_chose() const {
    if (run_.inputs.autoscaled()) return "the autoscaler's choice";
    return run_.inputs.scale == "none" ? "all units, throughout" : "the schedule";
  }

  void nodes() {
    const Origin origin = marks_.units_origin;
    const bool published = marks_.units;
    const std::string note = who_chose();
    add_beside("nodes_mean", nodes_.hours / 24, origin, published, 226.75, note);
    add_beside("node_hours", nodes_.hours, origin, published, 5442, note);
    add_beside("nodes_peak", page_.result.nodes_peak, Origin::kPrediction, published, 278,
               "at one instant: serving, starting and draining");
    add_beside("decode_nodes_mean", nodes_.decode_hours / 24, origin, published, 131.25, note);
    add_beside("prefill_nodes_mean", nodes_.prefill_hours / 24, origin, published, 95.5, note);
    add("drain_node_hours", drains(), Origin::kPrediction,
        "nodes that left and still finish requests; beside node_hours, not scaled by 1/fraction");
  }

  // Against the schedule, drains counted on both sides, and against what no autoscaler can pass.
  void saving() {
    add("node_hours_freed", 24.0 * run_.budget_nodes - nodes_.hours - drains(), Origin::kPrediction,
        fmt::format("of a budget of {} nodes, left to others: neither serving, starting nor draining",
                    run_.budget_nodes));
    const DaySchedule& schedule = page_.day.schedule;
    const bool measured = run_.schedule_drain_node_hours.has_value();
    const double schedule_drains =
        measured ? *run_.schedule_drain_node_hours : drain_node_hours(schedule, o_.shape, run_.times);
    add("schedule_node_hours", schedule.node_hours(), Origin::kInput,
        run_.inputs.other_schedule || run_.inputs.other_fleet ? "the schedule of this fleet"
                                                              : "the published schedule");
    add("schedule_drain_node_hours", schedule_drains, measured ? Origin::kPrediction : Origin::kInput,
        measured
            ? "measured by the run compared with"
            : fmt::format("an estimate: each unit it closes drains for {:g} s (decode) or {:g} s (prefill); "
                          "--compare with a run of the schedule takes what was measured there",
                          run_.times.decode_drain_s, run_.times.prefill_drain_s));
    add("node_hours_saved_share", 1 - ratio(nodes_.hours + drains(), schedule.node_hours() + schedule_drains),
        Origin::kPrediction, "against the schedule, drains counted on both sides");
    const Clairvoyant& bound = run_.clairvoyant;
    add("node_hours_clairvoyant_bound", bound.node_hours, Origin::kInput,
        "whole units that know the load, start at once and are filled to capacity; a bound where the budget "
        "carries the load");
    add("node_hours_saved_share_clairvoyant_bound",
        1 - ratio(bound.node_hours, schedule.node_hours() + schedule_drains), Origin::kInput,
        "the same of the bound, whose units drain in no time");
    for (int k = 0; k < kNumUnitKinds; ++k) {
      add(fmt::format("clairvoyant_{}_not_carried_share", unit_kind_name(static_cast<UnitKind>(k))),
          bound.not_carried_share[k], Origin::kInput,
          "of the day's tokens: what the budget holds has no capacity for it in time");
    }
  }

  void money() {
    const double price = page_.hw.price_usd_per_gpu_hour;
    const double cost = nodes_.hours * page_.hw.gpus_per_node * price;
    const double per_day = 1 / o_.fraction;
    const double hit = static_cast<double>(t_.cached_tokens) * per_day;
    const double input = static_cast<double>(t_.input_tokens) * per_day;
    const double output = static_cast<double>(t_.finished_output_tokens) * per_day;
    const double income = page_.prices.usd(hit, input, output);
    const Origin served = marks_.served_origin;
    const std::string of_load = served == Origin::kInput ? "the load" : "what was served of the load";
    const std::string follows = fmt::format("follows from {} and {}", of_load, who_chose());
    const bool priced = marks_.units && marks_.price;
    add_beside("cost_usd", cost, marks_.units_origin, priced, 87072,
               fmt::format("{} USD per GPU hour, an input", price));
    add_beside("theoretical_income_usd", income, served, marks_.load, 562027,
               fmt::format("tokens times R1's prices; of {}", of_load));
    add_beside("margin_percent", ratio(income - cost, cost) * 100, marks_.both(), priced, 545, follows);
    add("requests", static_cast<double>(t_.arrived_requests) * per_day, Origin::kInput,
        fmt::format("{:g} output tokens each on average", o_.lengths.output_mean_tokens));
    add_beside("input_tokens", input, served, marks_.load, 608e9, of_load);
    add_beside("output_tokens", output, served, marks_.load, 168e9, of_load);
    add_beside("hit_share", ratio(hit, input), Origin::kInput, marks_.load, 0.563,
               "two classes of prompts, whole 64-token blocks");
    add_beside("input_tokens_per_s_per_prefill_node", ratio(input, nodes_.prefill_hours * kHourSeconds),
               marks_.both(), marks_.units, 73700, follows);
    add_beside("output_tokens_per_s_per_decode_node", ratio(output, nodes_.decode_hours * kHourSeconds),
               marks_.both(), marks_.units, 14800, follows);
    add("cost_usd_per_million_output_tokens", ratio(cost, output / 1e6), marks_.both(), follows);
  }

  std::string speed_note() const {
    if (marks_.fit) return "published 20-22; token-weighted; one fitted constant, decode_phi, was set for it";
    if (page_.hw.decode_phi == 1) return "token-weighted; no constant was fitted to it";
    return fmt::format("token-weighted; decode_phi is {}, {}", page_.hw.decode_phi,
                       run_.inputs.phi_given ? "as given" : "the profile's, not fitted to this run");
  }

  void speed() {
    add_beside("decode_tokens_per_s_per_user", ratio(t_.tokens_x_speed, t_.tokens),
               marks_.fit ? Origin::kFit : Origin::kPrediction, marks_.reference, 21, speed_note());
    add_speed_figures(t_, o_.shape.decode_ranks, marks_.reference, report_);
  }

  void waiting() {
    add_wait_figures(t_, report_);
    add_objective_figures(t_, o_.slo_ttft_s, o_.slo_tokens_per_s_per_user, report_);
    add("refused_requests", static_cast<double>(t_.refused_requests) / o_.fraction, Origin::kPrediction,
        fmt::format("a prefill rank's queue held {} prompts", o_.queued_prompts_max));
    add("lost_requests", static_cast<double>(page_.result.lost_requests), Origin::kPrediction,
        "arrived, not refused, not finished and nowhere in the fleet; must be 0");
    add("decode_admission_waits", static_cast<double>(t_.admission_waits) / o_.fraction);
    add("decode_admission_wait_s_mean", ratio(t_.admission_wait_s, static_cast<double>(t_.admission_waits)));
    add("replays", static_cast<double>(t_.replays), Origin::kPrediction,
        "requests of lost units, not scaled");
    add("retractions", static_cast<double>(t_.retractions) / o_.fraction);
    HourEnd worst;
    double forwards_late = 0;
    for (const HourEnd& end : page_.result.metrics.hour_ends) {
      worst.oldest_prefill_s = std::max(worst.oldest_prefill_s, end.oldest_prefill_s);
      worst.oldest_decode_s = std::max(worst.oldest_decode_s, end.oldest_decode_s);
      const double oldest = std::max(end.oldest_prefill_s, end.oldest_decode_s);
      forwards_late = std::max(forwards_late, ratio(oldest, end.forward_s));
    }
    add("hour_end_oldest_prefill_wait_s_max", worst.oldest_prefill_s);
    add("hour_end_oldest_decode_wait_s_max", worst.oldest_decode_s);
    add("hour_end_oldest_wait_forwards_max", forwards_late, Origin::kPrediction,
        "oldest queued request at any hour's end, in prefill forwards");
  }

  void balance() {
    const auto steps = static_cast<double>(t_.balanced_steps);
    add("kv_max_over_mean", ratio(t_.kv_ratio_sum, steps), Origin::kPrediction,
        "over ranks, mean over steps");
    add("requests_max_over_mean", ratio(t_.requests_ratio_sum, steps));
    add("kv_room_tokens_per_rank", page_.result.kv_room_tokens, Origin::kInput,
        o_.decode_blocks_per_rank > 0 ? "the fleet's blocks" : "HBM less weights and reserve");
    add("kv_use_share_max", t_.kv_milli_max / kMilli / page_.result.kv_room_tokens, Origin::kPrediction,
        "fullest rank");
    add("kv_over_room_steps", static_cast<double>(page_.result.kv_over_room_steps), Origin::kPrediction,
        "must be 0");
    // Without such a forward there is no value: a 0 would read as the worst one.
    const auto of_saturated = [&](double sum) {
      return t_.saturated_forwards > 0 ? sum / static_cast<double>(t_.saturated_forwards)
                                       : std::numeric_limits<double>::quiet_NaN();
    };
    add("prefill_efficiency_saturated", of_saturated(t_.efficiency_sum), Origin::kPrediction,
        "mean over largest cost of the ranks, forwards that left prompts waiting");
    add("prefill_tokens_max_over_mean_saturated", of_saturated(t_.token_ratio_sum));
    add("prefill_forwards", static_cast<double>(t_.forwards) / o_.fraction);
    add("simulated_decode_rank_steps", static_cast<double>(t_.rank_steps), Origin::kPrediction, "not scaled");
  }

  // What the transients of a fraction (the fleet starts empty, hours follow one another without their rest)
  // add to a figure takes as long in every fraction, so its share goes as 1/fraction.
  template <typename Value>
  void bias_of(const char* name, Value value) {
    const double here = value(t_), half = value(*run_.half_fraction);
    const double whole = here - (half - here) * (1 - o_.fraction);
    add(name, 100 * (ratio(here, whole) - 1), Origin::kPrediction,
        fmt::format("an estimate: {} here, {} at half the fraction, so about {} over the whole day",
                    pretty_number(here), pretty_number(half), pretty_number(whole)));
  }

  void bias() {
    add("bias_requests_percent",
        100 * (static_cast<double>(t_.arrived_requests) / o_.fraction / o_.requests_per_day - 1),
        Origin::kInput, "this run's requests, scaled, against the whole day's");
    const bool scaled = run_.inputs.autoscaled();
    const double simulated = (t_.decode_node_seconds + t_.prefill_node_seconds) / t_.seconds;
    const double whole = scaled ? run_.whole_day_nodes_mean : page_.day.schedule.node_hours() / 24;
    add("bias_nodes_percent", 100 * (ratio(simulated, whole) - 1), marks_.units_origin,
        scaled ? "mean nodes of the simulated parts against those decided for the whole day"
               : "mean nodes of the simulated parts against the schedule's");
    add("bias_unfinished_share",
        ratio(static_cast<double>(page_.result.unfinished_requests),
              static_cast<double>(t_.arrived_requests)),
        Origin::kPrediction,
        "requests still running at the end: the ramp from an empty fleet makes users faster");
    if (!run_.half_fraction) {
      if (!o_.faults.empty())
        report_.facts.emplace_back(kBiasNotEstimated,
                                   "speed and KV per output token: not estimated beside faults");
      return;
    }
    bias_of("bias_decode_tokens_per_s_per_user_percent",
            [](const FleetCell& c) { return ratio(c.tokens_x_speed, c.tokens); });
    bias_of("bias_kv_tokens_per_output_token_percent",
            [](const FleetCell& c) { return ratio(c.tokens_x_kv, c.tokens); });
  }

  const DayPage& page_;
  const DayRun& run_;
  const FleetOptions& o_;
  const DayMarks& marks_;
  const FleetCell t_;
  const Nodes nodes_;
  Report& report_;
};

}  // namespace

void add_day_figures(const DayPage& page, Report& report) { DayFigures(page, report).add_all(); }

}  // namespace fathom::sim
