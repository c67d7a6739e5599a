// A plan as text, as a report, and as the files that deploy it.
#pragma once

#include <string>

#include "sim/planner_moves.h"
#include "sim/report.h"

namespace fathom::sim {

// A plan and what moves it.
struct PlanStory {
  std::string model_name;
  PlanInput input;
  PlanResult plan;
  std::vector<BindingConstraint> binding;
  std::vector<Sensitivity> sensitivities;
};
PlanStory tell_plan(const std::string& model_name, const PlanInput& input, const PlanResult& plan,
                    ExpertSpreads& spreads);

// Of the sensitivities, those that move most.
std::string plan_text(const PlanStory& story);
Report plan_report(const PlanStory& story);
// Every figure at a tenth less and more of every input: one row per input and direction.
std::string sensitivities_csv(const PlanStory& story);

enum class EmitFormat { kToml, kKubernetes, kSlurm };
Result<EmitFormat> parse_emit_format(std::string_view name);
// Refuses names that not every form can carry: control characters, line breaks of any script. The model's
// path is UTF-8.
inline constexpr const char* kNoPrintableName =
    "--emit: the model's folder has a name that is no printable UTF-8";
Status validate_deployed_model(const std::string& model);
// The deployment at the plan's peak: one group of processes per unit, in the form asked for. The model is a
// known name, or the path of a config.json whose folder names it.
std::string emit_deployment(const std::string& model, const PlanInput& input, const PlanResult& plan,
                            EmitFormat format);

}  // namespace fathom::sim
