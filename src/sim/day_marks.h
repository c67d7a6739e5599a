// What of a simulated day was the published one: decides which figures stand beside a published value, and
// which are inputs, predictions or the fit.
#pragma once

#include <string>

#include "sim/fleet_sim.h"
#include "sim/report.h"

namespace fathom::sim {

// What was given to a day beside FleetOptions.
struct DayInputs {
  std::string scale = "schedule";  // or none, autoscale
  bool other_load = false;         // not the published hours
  bool other_fleet = false;        // units that were not the published ones
  bool other_schedule = false;     // a clock table that was not the published one
  bool phi_given = false;          // decode_phi set for this run, not the profile's

  bool autoscaled() const { return scale == "autoscale"; }
};

struct DayMarks {
  // Ascending: each holds only where the ones above it do.
  bool load = false;       // requests, lengths and hours are the published day's
  bool units = false;      // and its units served, by its schedule
  bool reference = false;  // and nothing else was changed: hardware, policies, no fault
  bool fit = false;        // and decode_phi is the one that was fitted to its speed

  bool price = false;  // of a node, the published one

  // Of what the schedule or the autoscaler decided, and of what the fleet served of the load.
  Origin units_origin = Origin::kInput, served_origin = Origin::kInput;
  // Follows from both.
  Origin both() const { return units_origin == Origin::kInput ? served_origin : units_origin; }
};

DayMarks day_marks(const HardwareProfile& hw, const FleetOptions& options, const DayInputs& inputs,
                   const FleetResult& result);

}  // namespace fathom::sim
