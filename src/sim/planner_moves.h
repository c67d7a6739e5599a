// How a plan moves: its figures by name, what a tenth less or more of each input does to every one of them,
// and which constraints stop fewer nodes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/planner.h"

namespace fathom::sim {

// Every figure of a plan, with its unit in the name.
struct PlanFigure {
  const char* name;
  double (*value)(const PlanResult& plan);
};
std::span<const PlanFigure> plan_figures();

// A constraint that stops fewer nodes: relaxed by a tenth it saves these shares of the plan's own figures, at
// the plan's unit sizes and in fractions of units. Of whole units, spares and what an operator pinned, a
// tenth of all they add.
struct BindingConstraint {
  std::string service;     // "decode", "prefill", "server" where one machine does both
  std::string constraint;  // "tokens/s per user"
  double node_hours_saved_share = 0;
  double peak_nodes_saved_share = 0;

  std::string label() const { return service + ": " + constraint; }
};

// Those that save at least a thousandth of either figure, most node-hours first.
std::vector<BindingConstraint> binding_constraints(const PlanInput& input, const PlanResult& plan,
                                                   ExpertSpreads& spreads);

// The first of each service, "decode: tokens/s per user; prefill: compute", or "none".
std::string first_bindings(const std::vector<BindingConstraint>& binding);

// One input a tenth lower or higher, planned anew.
struct MovedPlan {
  double value = 0;             // of the input, which may stop at the end of its range
  std::vector<double> figures;  // as plan_figures(); empty: nothing fits
  std::string binding;          // first_bindings()
  std::string reason;           // why nothing fits
  // At the sizes of the plan that was moved, in fractions of units: what the fleet that stands would need, as
  // shares of what it needs.
  std::optional<double> node_hours_change, cost_change;
};

struct Sensitivity {
  std::string input;
  double value = 0;
  MovedPlan minus, plus;

  // Of either direction, in node-hours or cost.
  double largest_change() const;
};

inline constexpr double kStepShare = 0.10;

// Every input of the load, the objectives and the behaviour, and every constant of the profile that is no
// count.
std::vector<Sensitivity> plan_sensitivities(const PlanInput& input, const PlanResult& plan,
                                            ExpertSpreads& spreads);

}  // namespace fathom::sim
