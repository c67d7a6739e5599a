// Stages of a decode step, tabulated by the largest count and by the total.
#include "sim/step_table.h"

#include <algorithm>

namespace fathom::sim {

StepTable::StepTable(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit)
    : hw_(hw), model_(model), unit_(unit) {}

const StepTable::ByMax& StepTable::by_max(int requests_max) {
  if (requests_max >= static_cast<int>(by_max_.size())) by_max_.resize(requests_max + 64);
  ByMax& entry = by_max_[requests_max];
  if (entry.attn0 < 0) {
    const double b = requests_max;
    const DecodeStages s = decode_stages(hw_, model_, unit_, {b, b, 0});
    entry = {s.attn0, s.attn1 - hw_.mla_launch_us, s.shared};
  }
  return entry;
}

const DecodeStages& StepTable::by_total(int64_t requests_total) {
  const auto idx = static_cast<size_t>(requests_total);
  if (idx >= by_total_.size()) by_total_.resize(idx + 1024, DecodeStages{-1});
  DecodeStages& entry = by_total_[idx];
  if (entry.attn0 < 0) {
    entry = decode_stages(hw_, model_, unit_, {0, static_cast<double>(requests_total) / unit_.ep, 0});
  }
  return entry;
}

DecodeStages StepTable::stages(double requests_max, double kv_tokens_max, int64_t requests_total) {
  DecodeStages s = by_total(requests_total);
  const ByMax& slowest = by_max(static_cast<int>(requests_max));
  s.attn0 = slowest.attn0;
  s.shared = slowest.shared;
  s.attn1 =
      slowest.attn1_without_core + mla_decode_us(hw_, model_, unit_.tokens_per_request, kv_tokens_max / 2);
  return s;
}

StepTable::Step StepTable::step_of(const DecodeStages& s) const {
  Step step;
  step.layer_us = overlapped_layer_us(s);
  step.exposed_us = 2 * (std::max(0.0, s.dispatch - s.dispatch_sm - s.shared - s.attn0) +
                         std::max(0.0, s.combine - s.combine_sm - s.attn1));
  step.step_us = decode_step_us(hw_, model_, unit_, step.layer_us);
  return step;
}

StepTable::Step StepTable::step(const StepLoad& load) {
  return step_of(stages(load.requests_max, static_cast<double>(load.kv_milli_max) / kMilli, load.requests));
}

StepTable::Step StepTable::perfect_step(const StepLoad& load) {
  const auto ranks = static_cast<int64_t>(unit_.ep);
  const auto even = static_cast<double>((load.requests + ranks - 1) / ranks);
  const double kv_even = static_cast<double>(load.kv_milli) / kMilli / unit_.ep;
  return step_of(stages(even, kv_even, load.requests));
}

}  // namespace fathom::sim
