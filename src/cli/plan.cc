// fathom plan: which units, how many, split how and at what cost, for a load and objectives. Exit 3: nothing
// fits.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "cli/autoscale_flags.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/sim_files.h"
#include "sim/autoscale_replay.h"
#include "sim/day_autoscaler.h"
#include "sim/day_files.h"
#include "sim/model_file.h"
#include "sim/plan_report.h"
#include "sim/trace.h"
#include "text/utf8.h"

namespace fathom::cli {
namespace {

constexpr int kExitNoPlan = 3;
constexpr double kNoNodesSecondsMax = 31 * 86400;
constexpr double kAnyTtft = 1e12, kAnySpeed = 1e-12;  // objectives that bind nothing
constexpr double kAnyLoad = 1e-6;                     // requests a day that any unit carries

struct PlanArgs {
  std::string model = "deepseek-v3";
  std::string profile = "profiles/h800-day.toml";
  std::string day_load;  // hourly shape
  std::string trace;     // lengths, rate and sharing from a trace
  std::optional<std::string> emit;
  bool print_sensitivities = false;
  std::string out_dir;
  std::string measurements;
  std::string replay;
  double replay_rate = 1;
  double replay_no_nodes_s = 0;
  bool replay_tied = false;
  sim::UnitTimes replay_times;
  AutoscaleRules replay_rules;
  std::optional<double> hit_share;  // the trace's, or the published day's, unless given
  std::string decode = "kv-capped";
  std::optional<double> kv_imbalance, requests_imbalance;  // the decode policy's unless given
  std::optional<double> price;
  sim::PlanInput input;
};

Result<sim::ModelShape> shape_of(const std::string& model) {
  if (!model.ends_with(".json")) return sim::known_model_shape(model);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(model));
  return sim::model_shape_from_config(model, text);
}

Status use_shape(const PlanArgs& args, sim::PlanInput& input) {
  const std::string file = find_data_file(args.day_load);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const sim::HourlyLoad hourly, sim::parse_hourly_load(file, text));
  input.hourly_share = hourly.load;
  input.start_hour = hourly.start_hour;
  return ok_status();
}

// A trace gives lengths, their spread and the mean rate; its hits, unless given, are the bound.
Status use_trace(const PlanArgs& args, sim::PlanInput& input) {
  const std::string file = find_data_file(args.trace);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const sim::Trace trace, sim::parse_trace(file, text));
  tell_doubt(trace);
  const sim::TraceStats stats = sim::trace_stats(trace);
  if (!(stats.requests_per_s > 0)) {
    return invalid_argument("{}: all {} requests arrive at one instant, which tells no rate", trace.end_place,
                            trace.requests.size());
  }
  input.requests_per_day = stats.requests_per_s * 86400;
  input.input_tokens_mean = stats.input_mean;
  input.input_cv2 = stats.input_cv2;
  input.output_tokens_mean = stats.output_mean;
  input.output_cv2 = stats.output_cv2;
  input.hit_share = stats.hit_share_bound;
  return ok_status();
}

// What a file needs to hold to be this profile, to the last digit and so to its hash.
std::string fitted_profile(const PlanArgs& args, const sim::HardwareProfile& hw) {
  const std::string base =
      std::filesystem::absolute(find_data_file(args.profile)).lexically_normal().string();
  const std::string price =
      args.price ? fmt::format("[hardware]\nprice_usd_per_gpu_hour = {}\n", *args.price) : "";
  return fmt::format(
      "as a file for --profile, of plan and simulate:\n"
      "base = \"{}\"\n{}[residual]\ndecode_phi = {}\nprefill_phi = {}\n\n",
      sim::json_escape(base), price, hw.decode_phi, hw.prefill_phi);
}

Status fit_measurements(const PlanArgs& args, sim::PlanInput& input, const sim::PlanResult& plan) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(args.measurements));
  const sim::DecodeUnitShape decode{
      static_cast<double>(plan.decode.ranks), static_cast<double>(plan.decode.slots),
      input.mtp_acceptance > 0 && input.model.mtp_layers > 0 ? 2.0 : 1.0, plan.decode.expert_imbalance,
      input.mtp_acceptance > 0 && input.model.mtp_layers > 0};
  const sim::PrefillUnitShape prefill{static_cast<double>(plan.prefill.ranks),
                                      static_cast<double>(plan.prefill.slots), plan.prefill.expert_imbalance,
                                      input.hit_share / (1 - input.hit_share)};
  const sim::MeasuredOn on{decode.ep, prefill.ep, input.input_cv2, input.output_cv2};
  ASSIGN_OR_RETURN(const std::vector<sim::MeasuredStep> steps,
                   sim::looks_like_metrics(text) ? sim::steps_from_metrics(args.measurements, text, on)
                                                 : sim::steps_from_csv(args.measurements, text));
  sim::RankImbalance imbalance;
  if (plan.decode.ranks > 1) imbalance = {input.kv_imbalance, input.requests_imbalance};
  const Result<sim::ProfileFit> fitted =
      sim::fit_profile(steps, input.hw, input.model, decode, prefill, imbalance);
  if (!fitted.ok())
    return invalid_argument("{}:{}{}", args.measurements, steps.front().line > 0 ? "" : " ",
                            fitted.status().message());
  const sim::ProfileFit& fit = *fitted;
  std::FILE* out = args.emit ? stderr : stdout;  // a deployment stands alone
  for (const sim::MeasuredStep& step : steps) {
    if (!sim::looks_like_metrics(text)) break;
    std::fprintf(out, "measured %s: %.4g %s per rank, %.0f tokens of context, %.3f ms a step on average\n",
                 step.decode ? "decode" : "prefill", step.load_per_rank, step.decode ? "requests" : "tokens",
                 step.length, step.time_ms);
  }
  input.hw = fit.hw;
  std::fprintf(
      out,
      "fitted   decode_phi %.4f (%d rows, %.1f %% rms left), prefill_phi %.4f (%d rows, %.1f %% rms left)\n",
      fit.hw.decode_phi, fit.decode_rows, fit.decode_rms_percent, fit.hw.prefill_phi, fit.prefill_rows,
      fit.prefill_rms_percent);
  std::fputs(fitted_profile(args, fit.hw).c_str(), out);
  return ok_status();
}

void print_totals(const sim::HardwareProfile& hw, const sim::AutoscaleReplay& replay) {
  const FleetHours& hours = replay.hours;
  std::printf(
      "%d decisions, %d changes; %.1f node-hours, %.1f draining, %.1f freed of the budget; at most %d "
      "nodes\n",
      replay.decisions, hours.num_changes, hours.node_hours, hours.drain_node_hours, hours.freed_node_hours,
      hours.nodes_max);
  const double paid_hours = hours.node_hours + hours.drain_node_hours;
  std::printf("cost %.0f USD at %g USD per GPU hour, drains included\n",
              paid_hours * hw.gpus_per_node * hw.price_usd_per_gpu_hour, hw.price_usd_per_gpu_hour);
  for (int k = kNumUnitKinds - 1; k >= 0; --k) {
    std::printf("longest %s queue %.0f s of the serving units' work, %.0f tokens left at the end\n",
                std::string(unit_kind_name(static_cast<UnitKind>(k))).c_str(), replay.queue_s_max[k],
                replay.queue_tokens_end[k]);
  }
}

// What the autoscaler would have done with this plan's units under a trace's load.
Status dry_run(const PlanArgs& args, const sim::PlanInput& input, const sim::PlanResult& plan) {
  const std::string file = find_data_file(args.replay);
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const sim::Trace trace, sim::parse_trace(file, text));
  tell_doubt(trace);
  RETURN_IF_ERROR(check_span(trace, 1));
  RETURN_IF_ERROR(check_decisions(trace.span_s(), args.replay_rules.interval_s));
  AutoscaleOptions options = sim::autoscale_options_of(input, plan, args.replay_times, args.replay_rules);
  if (options.budget_nodes < options.unit[0].nodes + options.unit[1].nodes) {
    return invalid_argument("--nodes-max: {} nodes hold no prefill and decode unit", options.budget_nodes);
  }
  if (args.replay_tied) RETURN_IF_ERROR(sim::tie_as_published(options));
  // Prompts with block hashes know what they share, unless a share was asked for.
  const bool own_hits = trace.has_blocks() && !args.hit_share;
  const std::optional<double> hit_share = own_hits ? std::nullopt : std::optional(input.hit_share);
  const sim::TraceStats stats = sim::trace_stats(trace);
  sim::PlanInput served = input;
  served.input_tokens_mean = stats.input_mean, served.output_tokens_mean = stats.output_mean;
  if (own_hits) served.hit_share = stats.hit_share_bound;
  sim::set_objectives(options, served, plan);
  const sim::AutoscaleReplay replay =
      sim::replay_autoscaler(trace, options, hit_share, args.replay_rate, args.replay_no_nodes_s);
  std::printf("profile %s, hash %s\n", input.hw.name.c_str(), input.hw.hash.c_str());
  std::printf("of prompt tokens %.1f %% cached: %s\n", 100 * served.hit_share,
              own_hits ? "each prompt's own, in a cache that forgets nothing" : "the plan's share");
  std::printf(
      "autoscaler over %s, rate x %g: decode units of %d nodes and %.0f tokens/s, prefill units of %d nodes "
      "and "
      "%.0f computed tokens/s, budget %d nodes\n",
      args.replay.c_str(), args.replay_rate, options.unit[1].nodes, options.unit[1].tokens_per_s,
      options.unit[0].nodes, options.unit[0].tokens_per_s, options.budget_nodes);
  std::printf("starts with %d decode and %d prefill units, sized for the trace's first minutes\n",
              replay.initial.decode, replay.initial.prefill);
  for (const std::string& line : replay.lines) std::printf("%s\n", line.c_str());
  print_totals(input.hw, replay);
  return ok_status();
}

// Everything the command line says, read and checked; what is read later depends on the plan.
Status read_inputs(const PlanArgs& args, sim::PlanInput& input) {
  if (args.emit) {
    RETURN_IF_ERROR(sim::parse_emit_format(*args.emit).status());
    if (!is_valid_utf8(args.model)) return invalid_argument("{}", sim::kNoPrintableName);
    RETURN_IF_ERROR(sim::validate_deployed_model(args.model));
  }
  RETURN_IF_ERROR(check_range("--replay-rate", args.replay_rate, 1e-6, 1e9));
  RETURN_IF_ERROR(check_range("--replay-no-nodes", args.replay_no_nodes_s, 0, kNoNodesSecondsMax));
  RETURN_IF_ERROR(check_autoscale_flags(args.replay_rules, args.replay_times));
  ASSIGN_OR_RETURN(const sim::RankImbalance imbalance,
                   imbalance_of(args.decode, args.kv_imbalance, args.requests_imbalance));
  input.kv_imbalance = imbalance.kv, input.requests_imbalance = imbalance.requests;
  ASSIGN_OR_RETURN(input.model, shape_of(args.model));
  ASSIGN_OR_RETURN(input.hw, sim::load_profile(find_data_file(args.profile), read_text_file));
  RETURN_IF_ERROR(set_price(args.price, input.hw));
  if (!args.trace.empty()) RETURN_IF_ERROR(use_trace(args, input));
  input.hit_share = args.hit_share.value_or(input.hit_share);
  if (!args.day_load.empty()) RETURN_IF_ERROR(use_shape(args, input));
  RETURN_IF_ERROR(sim::validate_plan_input(input));
  return prepare_report_dir(args.out_dir);
}

// The input where any load and any speed will do: what is left to be held is the model.
sim::PlanInput without_objectives(const sim::PlanInput& input) {
  sim::PlanInput easy = input;
  easy.slo_ttft_s = kAnyTtft;
  easy.slo_tokens_per_s_per_user = kAnySpeed;
  return easy;
}

// A budget that holds no unit of each kind, whatever the load, is bad input and not a load too large.
Status check_budget(const sim::PlanInput& input, sim::ExpertSpreads& spreads) {
  sim::PlanInput easy = without_objectives(input);
  easy.requests_per_day = kAnyLoad;
  easy.spare_units = 0;
  easy.nodes_max = sim::kNodesMax;
  const sim::PlanOutcome smallest = sim::make_plan(easy, spreads);
  if (!smallest.plan || input.nodes_max >= smallest.plan->peak_nodes) return ok_status();
  return invalid_argument(
      "--nodes-max: {} is a budget below one unit: the smallest that hold the model take {} nodes",
      input.nodes_max, smallest.plan->peak_nodes);
}

Result<int> run_plan(PlanArgs& args) {
  sim::PlanInput& input = args.input;
  RETURN_IF_ERROR(read_inputs(args, input));
  sim::ExpertSpreads spreads;
  sim::PlanOutcome outcome = sim::make_plan(input, spreads);
  if (!args.measurements.empty()) {
    // Where the unfitted profile meets no objective, any unit that holds the model says where to measure.
    const sim::PlanOutcome sized =
        outcome.plan ? outcome : sim::make_plan(without_objectives(input), spreads);
    if (sized.plan) {
      RETURN_IF_ERROR(fit_measurements(args, input, *sized.plan));
      outcome = sim::make_plan(input, spreads);
    }
  }
  if (!outcome.plan) {
    RETURN_IF_ERROR(check_budget(input, spreads));
    std::fprintf(stderr, "no plan fits: %s\n", outcome.reason.c_str());
    return kExitNoPlan;
  }
  if (!args.replay.empty()) {
    RETURN_IF_ERROR(dry_run(args, input, *outcome.plan));
    return 0;
  }
  if (args.emit) {
    ASSIGN_OR_RETURN(const sim::EmitFormat format, sim::parse_emit_format(*args.emit));
    std::fputs(sim::emit_deployment(args.model, input, *outcome.plan, format).c_str(), stdout);
    return 0;
  }
  const sim::PlanStory story = sim::tell_plan(args.model, input, *outcome.plan, spreads);
  if (args.print_sensitivities) {
    std::printf("# profile %s profile_kind %s profile_hash %s\n%s", input.hw.name.c_str(),
                input.hw.kind.c_str(), input.hw.hash.c_str(), sim::sensitivities_csv(story).c_str());
  } else {
    std::fputs(sim::plan_text(story).c_str(), stdout);
  }
  if (!args.out_dir.empty()) RETURN_IF_ERROR(write_report(sim::plan_report(story), args.out_dir));
  return 0;
}

void add_load_options(CLI::App& command, PlanArgs& args) {
  sim::PlanInput& in = args.input;
  CLI::Option* const peak =
      command.add_option("--peak", in.peak_over_mean, "Busiest hour over the mean, 1 to 2")
          ->capture_default_str();
  command.add_option("--day-load", args.day_load, "Hourly shape (CSV: hour,load) instead of --peak")
      ->check(not_empty())
      ->excludes(peak);
  CLI::Option* const trace =
      command.add_option("--trace", args.trace, "Take rate, lengths and hits from a trace (JSONL or CSV)")
          ->check(not_empty());
  const auto without_trace = [&](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str()->excludes(trace);
  };
  without_trace("--requests-per-day", in.requests_per_day, "Mean load");
  without_trace("--input-tokens", in.input_tokens_mean, "Mean prompt");
  without_trace("--input-cv2", in.input_cv2, "Its squared coefficient of variation");
  without_trace("--output-tokens", in.output_tokens_mean, "Mean answer");
  without_trace("--output-cv2", in.output_cv2, "Its squared coefficient of variation");
  command.add_option("--hit-share", args.hit_share,
                     fmt::format("Prompt tokens found in a cache (default: {}; of a trace, the bound of its "
                                 "own)",
                                 in.hit_share));
}

// What the plan takes balancers, queues and traffic to be like; docs/planning.md says where defaults are
// from.
void add_behaviour_options(CLI::App& command, PlanArgs& args) {
  constexpr const char* kGroup = "Balancers, queues and traffic";
  sim::PlanInput& in = args.input;
  const auto add = [&](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)->capture_default_str()->group(kGroup);
  };
  add("--mtp-acceptance", in.mtp_acceptance, "Share of MTP tokens accepted; 0: MTP off");
  command.add_option("--decode", args.decode, "Decode policy, whose measured imbalance is taken")
      ->capture_default_str()
      ->group(kGroup);
  command
      .add_option("--kv-imbalance", args.kv_imbalance,
                  "Largest over mean KV of a decode unit's ranks (default: measured, of the policy)")
      ->group(kGroup);
  command.add_option("--requests-imbalance", args.requests_imbalance, "The same of requests")->group(kGroup);
  add("--expert-sigma", in.expert_popularity_sigma, "Spread of log popularity over experts");
  add("--expert-drift", in.expert_popularity_drift, "Spread of its change since experts were placed");
  add("--expert-imbalance-scale", in.expert_imbalance_scale,
      "Times what these two give beyond an even load; 0: even");
  add("--prefill-use", in.prefill_use_max, "Prefill capacity in use at the peak, at most");
  add("--prefill-packing", in.prefill_packing, "Mean over largest cost of the ranks in a saturated forward");
  add("--ttft-forwards", in.ttft_p99_forwards, "Time to first token at p99, in forwards");
  add("--redundancy-gain", in.redundancy_gain_min, "Gain in rate that makes more expert slots worth having");
}

}  // namespace

void add_plan_command(CLI::App& app, Outcome& outcome) {
  auto args = std::make_shared<PlanArgs>();
  CLI::App* command = app.add_subcommand("plan", "Size a deployment for a load and objectives");
  sim::PlanInput& in = args->input;
  command->add_option("--model", args->model, "deepseek-v3, deepseek-v2-lite, or a Hugging Face config.json")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--profile", args->profile, "Hardware profile (TOML)")
      ->check(not_empty())
      ->capture_default_str();
  command->add_option("--price", args->price, "USD per GPU hour (default: the profile's)");
  add_load_options(*command, *args);
  command->add_option("--ttft", in.slo_ttft_s, "First token within this many seconds, 99 % of requests")
      ->capture_default_str();
  command->add_option("--tokens-per-s", in.slo_tokens_per_s_per_user, "Tokens per second per user")
      ->capture_default_str();
  add_behaviour_options(*command, *args);
  command->add_option("--kv-retention-hours", in.kv_retention_hours, "How long stored KV is kept")
      ->capture_default_str();
  command->add_option("--decode-nodes", in.decode_nodes, "Fix the decode unit's nodes (0: search)")
      ->capture_default_str();
  command->add_option("--prefill-nodes", in.prefill_nodes, "Fix the prefill unit's nodes (0: search)")
      ->capture_default_str();
  command
      ->add_option("--spare-units", in.spare_units, "Units of each kind beyond what the load needs; 1: N+1")
      ->capture_default_str();
  command->add_option("--nodes-max", in.nodes_max, "Budget: nodes at the peak")->capture_default_str();
  command
      ->add_option("--profile-from", args->measurements,
                   "Fit the profile to measured steps (CSV: phase,load,length,time_ms; or the text of a "
                   "server's /metrics)")
      ->check(not_empty());
  CLI::Option* const emit =
      command->add_option("--emit", args->emit, "Write the deployment instead: toml, kubernetes or slurm");
  CLI::Option* const replay = command
                                  ->add_option("--replay", args->replay,
                                               "Dry-run the autoscaler over a trace and say what it would "
                                               "have done (times from the trace's start)")
                                  ->check(not_empty());
  replay->excludes(emit);
  command->add_option("--replay-rate", args->replay_rate, "Times the trace's arrivals")
      ->needs(replay)
      ->capture_default_str();
  command
      ->add_option("--replay-no-nodes", args->replay_no_nodes_s, "Seconds in which no started unit comes up")
      ->needs(replay)
      ->capture_default_str();
  for (CLI::Option* option : add_autoscale_flags(*command, args->replay_rules, args->replay_times))
    option->needs(replay);
  command
      ->add_flag("--tied", args->replay_tied,
                 "Dry-run decode and prefill together, one unit and three, above two")
      ->needs(replay);
  command
      ->add_flag("--sensitivities", args->print_sensitivities,
                 "Print a table (CSV) of every figure at -10 % and +10 % of every input instead")
      ->excludes(emit)
      ->excludes(replay);
  command->add_option("--out", args->out_dir, "Directory for report.html, summary.json and sensitivities.csv")
      ->check(not_empty())
      ->excludes(emit)
      ->excludes(replay);
  command->callback([args, &outcome] {
    const Result<int> code = run_plan(*args);
    outcome.exit_code = code.ok() ? *code : report_error(code.status());
  });
}

}  // namespace fathom::cli
