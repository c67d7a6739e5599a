// What was published, compared with what was run.
#include "sim/day_marks.h"

#include <algorithm>

namespace fathom::sim {
namespace {

constexpr const char* kPublishedGpu = "H800";
constexpr double kPublishedPriceUsd = 2;  // per GPU hour
constexpr double kOldForwards = 2;        // a prompt older than that at an hour's end is behind

bool changes_the_load(const Fault& fault) { return fault.kind == FaultKind::kFlashCrowd; }

// Served all that came: nobody refused, nobody left waiting at the day's end.
bool carried(const FleetResult& result) {
  if (result.metrics.total().refused_requests > 0 || result.metrics.hour_ends.empty()) return false;
  const HourEnd& end = result.metrics.hour_ends.back();
  return std::max(end.oldest_prefill_s, end.oldest_decode_s) <= kOldForwards * end.forward_s;
}

}  // namespace

DayMarks day_marks(const HardwareProfile& hw, const FleetOptions& options, const DayInputs& inputs,
                   const FleetResult& result) {
  const FleetOptions usual;
  DayMarks marks;
  marks.load = !inputs.other_load && options.requests_per_day == usual.requests_per_day &&
               options.lengths == usual.lengths &&
               std::none_of(options.faults.begin(), options.faults.end(), changes_the_load);
  marks.units = marks.load && inputs.scale == "schedule" && !inputs.other_fleet && !inputs.other_schedule;
  marks.reference = marks.units && hw.name == kPublishedGpu && options.faults.empty() &&
                    options.decode_policy == usual.decode_policy &&
                    options.prefill_policy == usual.prefill_policy &&
                    options.report_delay_ms == usual.report_delay_ms && !options.perfect_decode_balance;
  marks.fit = marks.reference && !inputs.phi_given && hw.decode_phi != 1 &&
              options.mtp_acceptance == usual.mtp_acceptance &&
              options.decode_expert_imbalance == usual.decode_expert_imbalance;
  marks.price = hw.price_usd_per_gpu_hour == kPublishedPriceUsd;
  if (inputs.autoscaled()) marks.units_origin = Origin::kPrediction;
  if (!carried(result)) marks.served_origin = Origin::kPrediction;
  return marks;
}

}  // namespace fathom::sim
