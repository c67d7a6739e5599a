// A plan as text, as a report, and as the files that deploy it.
#pragma once

#include <string>

#include "sim/planner.h"
#include "sim/report.h"

namespace fathom::sim {

std::string plan_text(const PlanInput& input, const std::string& model_name, const PlanResult& plan,
                      const std::vector<Sensitivity>& sensitivities);
Report plan_report(const PlanInput& input, const std::string& model_name, const PlanResult& plan,
                   const std::vector<Sensitivity>& sensitivities);

enum class EmitFormat { kToml, kKubernetes, kSlurm };
Result<EmitFormat> parse_emit_format(std::string_view name);
// The deployment at the plan's peak: one group of processes per unit, in the form asked for.
std::string emit_deployment(const std::string& model_name, const PlanInput& input, const PlanResult& plan,
                            EmitFormat format);

}  // namespace fathom::sim
