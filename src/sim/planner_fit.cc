// A profile fitted to an operator's measurements.
#include <cmath>

#include "sim/planner.h"

namespace fathom::sim {
namespace {

struct Fit {
  double model_x_measured = 0, model_squared = 0;
  std::vector<std::pair<double, double>> rows;  // modelled at phi 1, measured
  void add(double model, double measured) {
    model_x_measured += model * measured;
    model_squared += model * model;
    rows.emplace_back(model, measured);
  }
  double phi() const { return model_x_measured / model_squared; }
  double rms_percent() const {
    double sum = 0;
    for (const auto& [model, measured] : rows) {
      const double error = 100 * (model * phi() / measured - 1);
      sum += error * error;
    }
    return std::sqrt(sum / static_cast<double>(rows.size()));
  }
};

// Of the steps of a phase; 0: they have none.
int first_line(const std::vector<MeasuredStep>& steps, bool decode) {
  for (const MeasuredStep& step : steps) {
    if (step.decode == decode) return step.line;
  }
  return 0;
}

}  // namespace

Result<ProfileFit> fit_profile(const std::vector<MeasuredStep>& steps, const HardwareProfile& hw,
                               const ModelShape& model, const DecodeUnitShape& decode,
                               const PrefillUnitShape& prefill, const RankImbalance& imbalance) {
  ProfileFit fit{hw};
  HardwareProfile plain = hw;
  plain.decode_phi = plain.prefill_phi = 1;
  Fit decode_fit, prefill_fit;
  for (const MeasuredStep& step : steps) {
    const double load = step.load_per_rank;
    if (step.decode) {
      const DecodeLoad at{load * imbalance.requests, load, load * step.length * imbalance.kv};
      decode_fit.add(decode_step_us(plain, model, decode, at, decode.ep > 1) / 1e3, step.time_ms);
    } else {
      const double layer_us = prefill_layer_us(plain, model, prefill, {load, load * step.length});
      prefill_fit.add(model.layers * layer_us / 1e3 + plain.prefill_host_ms, step.time_ms);
    }
  }
  const auto set = [&](const char* name, const Fit& of, int line) {
    const Status status = set_profile_constant(fit.hw, name, of.phi());
    if (status.ok()) return ok_status();
    return invalid_argument("{}time_ms: the measured steps give a {} of {:.4g}, outside 0.01..100",
                            line > 0 ? fmt::format("{}: ", line) : "", name, of.phi());
  };
  if (!decode_fit.rows.empty()) {
    RETURN_IF_ERROR(set("residual.decode_phi", decode_fit, first_line(steps, true)));
    fit.decode_rows = static_cast<int>(decode_fit.rows.size());
    fit.decode_rms_percent = decode_fit.rms_percent();
  }
  if (!prefill_fit.rows.empty()) {
    RETURN_IF_ERROR(set("residual.prefill_phi", prefill_fit, first_line(steps, false)));
    fit.prefill_rows = static_cast<int>(prefill_fit.rows.size());
    fit.prefill_rms_percent = prefill_fit.rms_percent();
  }
  return fit;
}

}  // namespace fathom::sim
