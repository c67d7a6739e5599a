// What the subcommands of `fathom simulate` share: options, the profile, what a run prints and writes.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/sim_files.h"
#include "sim/day_autoscaler.h"
#include "sim/fleet_sim.h"
#include "sim/synthetic.h"

namespace fathom::cli {

struct SimulateArgs {
  std::string profile = "profiles/h800-day.toml";
  std::string out_dir;
  std::string compare_dir;
  sim::Summary other;  // of compare_dir
  std::string decode = "kv-capped";
  std::string prefill = "fathom";
  std::string scale = "schedule";
  std::string load_file = "data/day_load.csv";
  std::string schedule_file = "data/day_schedule.csv";
  bool schedule_given = false, budget_given = false;
  std::optional<double> phi, price;                        // the profile's unless given
  std::optional<double> kv_imbalance, requests_imbalance;  // the decode policy's unless given
  int num_seeds = 1;
  sim::FleetOptions fleet;
  sim::DayAutoscaleOptions autoscale;
  // Block-exact replays.
  std::string trace_file;
  std::string fleet_file;
  std::vector<std::string> faults;
  bool all_policies = false;
  bool made_up = false;  // the load is `synthetic`, not a file's
  sim::BlockFleetOptions block;
  sim::SyntheticOptions synthetic;
  std::string arrivals = "poisson", hits = "conversations";
};

inline constexpr const char* kDecodePolicies[] = {"random", "round-robin", "least-requests",
                                                  "p2c-kv", "kv-capped",   "fathom"};

// Of --scale: one of none, schedule, autoscale.
Status check_scale(const std::string& scale);
Result<sim::HardwareProfile> profile_of(const SimulateArgs& args);
// That a unit of so many ranks takes, the last one perhaps in part.
int nodes_of(int ranks, const sim::HardwareProfile& hw);

// What a run needs beside its own input, looked at before the first event: the run to compare with (`fact` is
// what a summary of the same kind has), and a folder to write to.
Status prepare(SimulateArgs& args, const char* fact, const char* kind);
// Prints the figures and writes the report.
Status finish(sim::Report& report, const SimulateArgs& args);

void add_common_options(CLI::App& command, SimulateArgs& args);
// Options that mean something with one --scale or value of another option only: `wanted` says which.
struct OnlyWith {
  const CLI::Option* option;
  bool allowed;
  std::string wanted;  // "--scale autoscale"
};
Status check_only_with(const std::vector<OnlyWith>& options);
// --scale and what goes with it; the options of autoscale are returned.
std::vector<const CLI::Option*> add_scale_options(CLI::App& command, SimulateArgs& args);
// What these say beside capacity and budget: imbalance and times of units.
Status read_scale_options(SimulateArgs& args);
// Lengths of prompts and answers; the options of two classes of hits are returned.
std::vector<const CLI::Option*> add_length_options(CLI::App& command, sim::LengthOptions& lengths);
Status check_lengths(const sim::LengthOptions& lengths);

// A fault of the first part of each hour, at the clock that runs on without gaps is not at_s; this says which
// fault the fraction leaves out.
Status check_in_fraction(const std::string& text, double at_s, double fraction);

void add_published_day(CLI::App& simulate, Outcome& outcome);
void add_replays(CLI::App& simulate, Outcome& outcome);

}  // namespace fathom::cli
