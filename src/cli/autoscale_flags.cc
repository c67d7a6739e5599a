// One table of flags, with the range and the meaning of each.
#include "cli/autoscale_flags.h"

#include "cli/sim_files.h"

namespace fathom::cli {
namespace {

constexpr const char* kGroup = "Autoscaler";
constexpr double kDay_s = 86400;

template <typename Owner>
struct Flag {
  const char* name;
  const char* fact;
  double Owner::* value;
  double min, max;
  const char* help;
};

constexpr Flag<AutoscaleRules> kRules[] = {
    {"--headroom", "headroom", &AutoscaleRules::headroom, 0, 0.9,
     "Autoscale: share of capacity kept spare over the forecast"},
    {"--hysteresis", "hysteresis", &AutoscaleRules::hysteresis, 0, 0.9,
     "Autoscale: further share that must stay spare after a unit has left"},
    {"--minimum-stay", "minimum_stay_s", &AutoscaleRules::minimum_stay_s, 0, kDay_s,
     "Autoscale: seconds between a growth and a shrink, either way"},
    {"--catch-up", "catch_up_s", &AutoscaleRules::catch_up_s, 1, kDay_s,
     "Autoscale: seconds in which a queue is to be worked off"},
    {"--decide-every", "interval_s", &AutoscaleRules::interval_s, 1, 3600,
     "Autoscale: seconds between decisions"},
    {"--look-ahead", "look_ahead_s", &AutoscaleRules::look_ahead_s, 0, kDay_s,
     "Autoscale: seconds of forecast for which a unit must not be needed before it leaves"},
    {"--trend-window", "trend_window_s", &AutoscaleRules::trend_window_s, 1, kDay_s,
     "Autoscale: seconds of the past whose trend is the forecast, where there is no yesterday"},
    {"--start-timeout", "start_timeout_s", &AutoscaleRules::start_timeout_s, 1, kDay_s,
     "Autoscale: seconds after which a start that is not up is given up"},
    {"--backoff", "backoff_s", &AutoscaleRules::backoff_s, 1, kDay_s,
     "Autoscale: seconds without starts after a failed one; doubles with each further one"},
    {"--backoff-max", "backoff_s_max", &AutoscaleRules::backoff_s_max, 1, 10 * kDay_s,
     "Autoscale: the most of these"},
};

constexpr Flag<sim::UnitTimes> kTimes[] = {
    {"--unit-start", "unit_start_s", &sim::UnitTimes::start_s, 0, kDay_s,
     "Autoscale: seconds from asking for a unit's nodes to serving"},
    {"--decode-drain", "decode_drain_s", &sim::UnitTimes::decode_drain_s, 0, kDay_s,
     "Autoscale: seconds a decode unit takes to drain"},
    {"--prefill-drain", "prefill_drain_s", &sim::UnitTimes::prefill_drain_s, 0, kDay_s,
     "Autoscale: the same of a prefill unit"},
};

}  // namespace

std::vector<CLI::Option*> add_autoscale_flags(CLI::App& command, AutoscaleRules& rules,
                                              sim::UnitTimes& times) {
  std::vector<CLI::Option*> options;
  const auto add = [&](const auto& flags, auto& owner) {
    for (const auto& flag : flags) {
      options.push_back(
          command.add_option(flag.name, owner.*flag.value, flag.help)->capture_default_str()->group(kGroup));
    }
  };
  add(kRules, rules);
  add(kTimes, times);
  return options;
}

Status check_autoscale_flags(const AutoscaleRules& rules, const sim::UnitTimes& times) {
  for (const auto& flag : kRules)
    RETURN_IF_ERROR(check_range(flag.name, rules.*flag.value, flag.min, flag.max));
  for (const auto& flag : kTimes)
    RETURN_IF_ERROR(check_range(flag.name, times.*flag.value, flag.min, flag.max));
  if (rules.headroom + rules.hysteresis >= 1) {
    return invalid_argument("--hysteresis: {} beside a headroom of {} leaves a unit no capacity",
                            rules.hysteresis, rules.headroom);
  }
  if (rules.backoff_s_max < rules.backoff_s) {
    return invalid_argument("--backoff-max: {} is below the first one, {}", rules.backoff_s_max,
                            rules.backoff_s);
  }
  return ok_status();
}

std::vector<std::pair<std::string, std::string>> autoscale_facts(const AutoscaleRules& rules,
                                                                 const sim::UnitTimes& times) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const auto& flags, const auto& owner, const auto& usual) {
    for (const auto& flag : flags) {
      if (owner.*flag.value != usual.*flag.value)
        facts.emplace_back(flag.fact, fmt::format("{}", owner.*flag.value));
    }
  };
  add(kRules, rules, AutoscaleRules{});
  add(kTimes, times, sim::UnitTimes{});
  return facts;
}

}  // namespace fathom::cli
