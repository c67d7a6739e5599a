// The autoscaler's parameters as flags: the same for simulated days, replays and the dry runs of a plan.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "balance/autoscale.h"
#include "base/status.h"
#include "sim/scale.h"

namespace fathom::cli {

// Of `rules`: headroom, hysteresis, stays, forecast and time-outs; of `times`: how long units take to come
// and go.
std::vector<CLI::Option*> add_autoscale_flags(CLI::App& command, AutoscaleRules& rules,
                                              sim::UnitTimes& times);
// Errors name the flag.
Status check_autoscale_flags(const AutoscaleRules& rules, const sim::UnitTimes& times);
// Name and value of those that are not the default, for a report.
std::vector<std::pair<std::string, std::string>> autoscale_facts(const AutoscaleRules& rules,
                                                                 const sim::UnitTimes& times);

}  // namespace fathom::cli
