// The cost model's stages as the stage times of the overlap tables (ep/overlap.h), which the executor runs
// too.
#pragma once

#include "ep/overlap.h"
#include "sim/cost_model.h"

namespace fathom::sim {

OverlapStageTimes overlap_times(const DecodeStages& stages);
// Time of one layer of both micro-batches in the steady state of the published decode table, by the
// evaluator. overlapped_layer_us() is the same in closed form, for loops that run millions of steps; a test
// holds them together.
double evaluated_layer_us(const DecodeStages& stages);

// Half a rank's prefill layer: what one of its two micro-batches brings.
OverlapStageTimes prefill_overlap_times(const HardwareProfile& hw, const ModelShape& model,
                                        const PrefillUnitShape& unit, const PrefillLoad& rank_load);
// Per layer, the time in which neither micro-batch computes: what prefill's table leaves of dispatch and
// combine.
double prefill_exposed_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                          const PrefillLoad& rank_load);

}  // namespace fathom::sim
