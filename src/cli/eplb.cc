// fathom eplb FILE: the expert balancer on a list of cases, each with the loads before and after.
#include "balance/eplb.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "balance/eplb_refine.h"
#include "cli/commands.h"
#include "cli/report.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRefineSlotsMax = 2048;  // the search's time grows with their square

struct EplbArgs {
  std::string file;
  bool json = false;
  bool refine = false;
};

struct EplbCase {
  std::vector<float> weight;
  RebalanceShape shape;
  ExpertWeights view() const { return {1, static_cast<int>(weight.size()), weight}; }
};

struct EplbOutcome {
  LoadSummary before;
  LoadSummary after;
};

Result<int> read_count(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end()) return invalid_argument("{}: missing", field);
  if (!it->is_number_integer()) return invalid_argument("{}: not a whole number", field);
  if (it->is_number_unsigned() ? it->get<uint64_t>() > kSlotsMax : it->get<int64_t>() < 1) {
    return invalid_argument("{}: {} is not between 1 and {}", field, it->dump(), kSlotsMax);
  }
  return it->get<int>();
}

Result<EplbCase> read_case(const Json& object) {
  if (!object.is_object()) return invalid_argument("not an object");
  EplbCase out;
  const auto weight = object.find("weight");
  if (weight == object.end()) return invalid_argument("weight: missing");
  if (!weight->is_array()) return invalid_argument("weight: not a list of numbers");
  for (size_t i = 0; i < weight->size(); ++i) {
    if (!(*weight)[i].is_number()) return invalid_argument("weight[{}]: not a number", i);
    out.weight.push_back(static_cast<float>((*weight)[i].get<double>()));
  }
  ASSIGN_OR_RETURN(out.shape.num_replicas, read_count(object, "num_replicas"));
  ASSIGN_OR_RETURN(out.shape.num_groups, read_count(object, "num_groups"));
  ASSIGN_OR_RETURN(out.shape.num_nodes, read_count(object, "num_nodes"));
  ASSIGN_OR_RETURN(out.shape.num_gpus, read_count(object, "num_gpus"));
  RETURN_IF_ERROR(validate_rebalance(out.view(), out.shape));
  return out;
}

// "2 (v3_decode_ep144)": how a message names a case.
std::string case_name(const Json& object, size_t index) {
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string())
    return fmt::format("{}", index);
  const std::string quoted = object["name"].dump();  // one line, whatever the name holds
  return fmt::format("{} ({})", index, quoted.substr(1, quoted.size() - 2));
}

// Balances one case and completes its object by the outputs of the golden format.
EplbOutcome balance_case(const EplbCase& input, bool refine, Json& object) {
  const ExpertWeights weights = input.view();
  const ExpertPlacement placement =
      (refine ? rebalance_and_refine(weights, input.shape) : rebalance_experts(weights, input.shape)).value();
  const ExpertPlacement start = initial_placement(1, weights.num_experts, input.shape.num_replicas);
  EplbOutcome outcome;
  outcome.before = gpu_load_summary(input.weight, start, 0, input.shape.num_gpus);
  outcome.after = gpu_load_summary(input.weight, placement, 0, input.shape.num_gpus);
  object["policy"] = input.shape.hierarchical() ? "hierarchical" : "global";
  object["phy2log"] = placement.phy2log;
  Json log2phy = Json::array();
  for (int e = 0; e < weights.num_experts; ++e) {
    const auto row = placement.log2phy.begin() + static_cast<ptrdiff_t>(e) * placement.max_replicas;
    log2phy.push_back(std::vector<int32_t>(row, row + placement.max_replicas));
  }
  object["log2phy"] = std::move(log2phy);
  object["logcnt"] = placement.logcnt;
  object["max_load"] = outcome.after.max_load;
  object["mean_load"] = outcome.after.mean_load;
  return outcome;
}

void print_row(const std::string& name, const RebalanceShape& shape, const EplbOutcome& outcome) {
  fmt::print("{:<32} {:>6} {:>6} {:<13} {:>9.4f} {:>9.4f}\n", name, shape.num_replicas, shape.num_gpus,
             shape.hierarchical() ? "hierarchical" : "global", outcome.before.max_over_mean(),
             outcome.after.max_over_mean());
}

Result<Json> read_cases(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || !text) return invalid_argument("{}: cannot be read", file);
  Json cases;
  try {
    cases = Json::parse(text.view());
  } catch (const Json::parse_error& error) {
    return invalid_argument("{}: not JSON at byte {}", file, error.byte);
  } catch (const Json::exception& error) {  // a number beyond what a double holds
    return invalid_argument("{}: {}", file, error.what());
  }
  if (!cases.is_array()) return invalid_argument("{}: not a list of cases", file);
  return cases;
}

Status run_eplb(const EplbArgs& args) {
  ASSIGN_OR_RETURN(Json cases, read_cases(args.file));
  // Every case is read before any is printed: bad input gives its one line and nothing else.
  std::vector<EplbCase> inputs;
  for (size_t i = 0; i < cases.size(); ++i) {
    Result<EplbCase> input = read_case(cases[i]);
    if (input.ok() && args.refine && input->shape.num_replicas > kRefineSlotsMax) {
      input = invalid_argument("num_replicas: {}, --refine takes at most {}", input->shape.num_replicas,
                               kRefineSlotsMax);
    }
    if (!input.ok()) {
      return input.status().with_context(fmt::format("{}: case {}", args.file, case_name(cases[i], i)));
    }
    inputs.push_back(std::move(input).value());
  }
  if (!args.json)
    fmt::print("{:<32} {:>6} {:>6} {:<13} {:>9} {:>9}\n", "case", "slots", "gpus", "policy", "before",
               "after");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = case_name(cases[i], i);
    const EplbOutcome outcome = balance_case(inputs[i], args.refine, cases[i]);
    if (!args.json) print_row(name, inputs[i].shape, outcome);
  }
  if (args.json) fmt::print("{}\n", cases.dump());
  return ok_status();
}

}  // namespace

void add_eplb_command(CLI::App& app, Outcome& outcome) {
  CLI::App* command =
      app.add_subcommand("eplb", "Place experts on GPUs for a list of cases; prints max/mean load");
  auto args = std::make_shared<EplbArgs>();
  command
      ->add_option("FILE", args->file, "JSON list of {weight, num_replicas, num_groups, num_nodes, num_gpus}")
      ->required();
  command->add_flag("--json", args->json,
                    "Print the list completed by phy2log, log2phy, logcnt, max_load, mean_load");
  command->add_flag("--refine", args->refine, "Search beyond the published algorithm (never worse)");
  command->callback([args, &outcome] {
    const Status status = run_eplb(*args);
    if (status.ok()) return;
    report("eplb", status.message());
    outcome.exit_code = 2;
  });
}

}  // namespace fathom::cli
