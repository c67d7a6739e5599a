// Speed of the simulated day on one core. --benchmark_filter=Day/1000 is the full day, Day/100 a tenth of
// each hour. peak_resident_mb is the process's until then, so of the largest run so far.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "sim/fleet_sim.h"
#include "sim/test_profile.h"

namespace fathom::sim {
namespace {

double peak_resident_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024 / 1e6;  // given in KiB
}

void Day(benchmark::State& state) {
  const HardwareProfile hw = test_profile("h800-day");
  const ModelShape model;
  const DayFiles day =
      parse_day_files("day_load.csv", read_file_for_test(source_path("data/day_load.csv")).value(),
                      "day_schedule.csv", read_file_for_test(source_path("data/day_schedule.csv")).value())
          .value();
  FleetOptions options;
  options.fraction = static_cast<double>(state.range(0)) / 1000;
  double rank_steps = 0, requests = 0;
  for (auto _ : state) {
    const FleetCell total = run_day(hw, model, day, options, {}).metrics.total();
    rank_steps += static_cast<double>(total.rank_steps);
    requests += static_cast<double>(total.arrived_requests);
  }
  state.counters["ranks_x_steps_per_s"] = benchmark::Counter(rank_steps, benchmark::Counter::kIsRate);
  state.counters["requests_per_s"] = benchmark::Counter(requests, benchmark::Counter::kIsRate);
  state.counters["peak_resident_mb"] = peak_resident_mb();
}
BENCHMARK(Day)->Arg(10)->Arg(100)->Arg(1000)->Unit(benchmark::kSecond)->Iterations(1);

}  // namespace
}  // namespace fathom::sim
