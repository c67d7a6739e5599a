// Charts and figures that every simulated fleet's report has, the published day's and a replay's: made from
// the cells that both record.
#pragma once

#include <string>
#include <vector>

#include "sim/cost_model.h"
#include "sim/fleet_metrics.h"
#include "sim/report.h"

namespace fathom::sim {

// R1's prices of the published income, USD per million tokens.
struct TokenPrices {
  double hit = 0.14, miss = 0.55, output = 2.19;

  double usd(double hit_tokens, double input_tokens, double output_tokens) const {
    return (hit_tokens * hit + (input_tokens - hit_tokens) * miss + output_tokens * output) / 1e6;
  }
};

// Time along the x axis of a fleet's charts.
struct TimeAxis {
  double cell_x = 1;  // length of a cell
  std::string label;
  std::vector<std::pair<double, std::string>> ticks;
};
// Seconds, minutes or hours since the start, whichever gives short numbers for a load of that length.
TimeAxis axis_since_start(double cell_s, size_t num_cells, double load_s);

// The value of each cell, drawn at its middle; a NaN leaves a gap.
template <typename Value>
Series cell_series(const FleetMetrics& metrics, double cell_x, std::string name, Value value) {
  Series series{std::move(name), {}, false};
  for (size_t i = 0; i < metrics.cells.size(); ++i)
    series.points.emplace_back((static_cast<double>(i) + 0.5) * cell_x, value(metrics.cells[i]));
  return series;
}

// Mean of largest over mean of the ranks; NaN where no step or forward was full enough.
double kv_max_over_mean(const FleetCell& c);
double requests_max_over_mean(const FleetCell& c);
double prefill_tokens_max_over_mean(const FleetCell& c);
// Of prompt tokens; NaN without any.
double hit_share(const FleetCell& c);

struct FleetPage {
  const FleetMetrics& metrics;
  TimeAxis axis;
  double usd_per_node_hour = 0;
  TokenPrices prices = {};
  double slo_ttft_s = 0, slo_tokens_per_s_per_user = 0;
  double kv_room_tokens = 0;  // of a decode rank
  std::string decode_policy = {};
  std::vector<Series> planned_nodes = {};  // beside those that ran
  bool block_exact = false;                // requests expire at a deadline, ranks refuse hand-overs
};
void add_fleet_charts(const FleetPage& page, Report& report);

// A line for each decode balancer, along the time of another chart.
Chart kv_by_balancer(std::vector<Series> kv, const Chart& axis);

// ttft_s_* and queue_wait_s_*.
void add_wait_figures(const FleetCell& total, Report& report);
// decode_tokens_per_s_per_user_*, kv_tokens_per_output_token, step, batch, and exposed communication; the
// published values stand beside them on the published day.
void add_speed_figures(const FleetCell& total, double decode_ranks, bool published, Report& report);
// slo_*_attainment and goodput_*.
void add_objective_figures(const FleetCell& total, double slo_ttft_s, double slo_tokens_per_s_per_user,
                           Report& report);

// The mean load of the decode steps in a cell, its slowest rank as unequal as the cell's ranks were.
DecodeLoad decode_load_of(const FleetCell& cell, double decode_ranks);
// The stages of one decode layer as it is charged: of both micro-batches, or one after another where that is
// shorter.
Timeline decode_layer_timeline(const DecodeStages& halves, const DecodeStages& whole);

}  // namespace fathom::sim
