// Stages of a decode step, tabulated by the largest count and by the total.
#include "sim/step_table.h"

#include <algorithm>

#include "sim/overlap_times.h"

namespace fathom::sim {

StepTable::StepTable(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit)
    : hw_(hw), model_(model), unit_(unit) {}

const StepTable::ByMax& StepTable::by_max(int requests_max, bool two_micro_batches) {
  std::vector<ByMax>& table = tables(two_micro_batches).by_max;
  if (requests_max >= static_cast<int>(table.size())) table.resize(requests_max + 64);
  ByMax& entry = table[requests_max];
  if (entry.attn0 < 0) {
    const double b = requests_max;
    const DecodeStages s = decode_stages(hw_, model_, unit_, {b, b, 0}, two_micro_batches);
    entry = {s.attn0, s.attn1 - hw_.mla_launch_us, s.shared};
  }
  return entry;
}

const DecodeStages& StepTable::by_total(int64_t requests_total, bool two_micro_batches) {
  std::vector<DecodeStages>& table = tables(two_micro_batches).by_total;
  const auto idx = static_cast<size_t>(requests_total);
  if (idx >= table.size()) table.resize(idx + 1024, DecodeStages{-1});
  DecodeStages& entry = table[idx];
  if (entry.attn0 < 0) {
    const double mean = static_cast<double>(requests_total) / unit_.ep;
    entry = decode_stages(hw_, model_, unit_, {0, mean, 0}, two_micro_batches);
  }
  return entry;
}

DecodeStages StepTable::stages(double requests_max, double kv_tokens_max, int64_t requests_total,
                               bool two_micro_batches) {
  DecodeStages s = by_total(requests_total, two_micro_batches);
  const ByMax& slowest = by_max(static_cast<int>(requests_max), two_micro_batches);
  s.attn0 = slowest.attn0;
  s.shared = slowest.shared;
  const double kv_tokens = two_micro_batches ? kv_tokens_max / 2 : kv_tokens_max;
  s.attn1 = slowest.attn1_without_core + mla_decode_us(hw_, model_, unit_.tokens_per_request, kv_tokens);
  return s;
}

StepTable::Step StepTable::step_of(double requests_max, double kv_tokens_max, int64_t requests_total) {
  const SteadyLayer layer = decode_layer(stages(requests_max, kv_tokens_max, requests_total, true),
                                         stages(requests_max, kv_tokens_max, requests_total, false));
  return {decode_step_us(hw_, model_, unit_, layer.layer_us), layer.layer_us, layer.idle_us};
}

StepTable::Step StepTable::step(const StepLoad& load) {
  return step_of(load.requests_max, static_cast<double>(load.kv_milli_max) / kMilli, load.requests);
}

StepTable::Step StepTable::perfect_step(const StepLoad& load) {
  const auto ranks = static_cast<int64_t>(unit_.ep);
  const auto even = static_cast<double>((load.requests + ranks - 1) / ranks);
  const double kv_even = static_cast<double>(load.kv_milli) / kMilli / unit_.ep;
  return step_of(even, kv_even, load.requests);
}

}  // namespace fathom::sim
