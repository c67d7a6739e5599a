// The cost model's stages as the stage times of the overlap tables (ep/overlap.h), which the executor runs
// too.
#pragma once

#include "ep/overlap.h"
#include "sim/cost_model.h"

namespace fathom::sim {

OverlapStageTimes overlap_times(const DecodeStages& stages);
// One decode layer of a whole batch, as an executor runs it: both halves by the published decode table, or
// one stage after another where that is shorter (small batches).
SteadyLayer decode_layer(const DecodeStages& halves, const DecodeStages& whole);
// The same with overlap switched off.
SteadyLayer plain_decode_layer(const DecodeStages& whole);

// Half a rank's prefill layer: what one of its two micro-batches brings.
OverlapStageTimes prefill_overlap_times(const HardwareProfile& hw, const ModelShape& model,
                                        const PrefillUnitShape& unit, const PrefillLoad& rank_load);
// Per layer, the time in which neither micro-batch computes: what prefill's table leaves of dispatch and
// combine. Never more than one stage after another would leave, so overlap always pays here: the linear form
// of the computation charges two halves as their sum.
double prefill_exposed_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                          const PrefillLoad& rank_load);

}  // namespace fathom::sim
