// fathom eplb FILE: the expert balancer on a list of cases, each with the loads before and after.
#include "balance/eplb.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "balance/eplb_refine.h"
#include "base/check.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/flag_values.h"
#include "cli/report.h"
#include "cli/sim_files.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRefineSlotsMax = 1024;  // the search's time grows with their square: some ten seconds a case
constexpr int kDepthMax = 64;
constexpr double kWeightMax = 1e30;  // far above any count of tokens; sums of such weights stay finite
constexpr size_t kTableMax = size_t{1} << 24;  // entries of log2phy in one answer, some 300 MB of JSON

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

// The list, and the line on which each of its cases begins.
struct CaseList {
  Json cases;
  std::vector<int> line;
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
    const auto value = (*weight)[i].get<double>();
    if (!(value >= 0 && value <= kWeightMax))
      return invalid_argument("weight[{}]: {} is outside 0..{}", i, value, kWeightMax);
    out.weight.push_back(static_cast<float>(value));
  }
  ASSIGN_OR_RETURN(out.shape.num_replicas, read_count(object, "num_replicas"));
  ASSIGN_OR_RETURN(out.shape.num_groups, read_count(object, "num_groups"));
  ASSIGN_OR_RETURN(out.shape.num_nodes, read_count(object, "num_nodes"));
  ASSIGN_OR_RETURN(out.shape.num_gpus, read_count(object, "num_gpus"));
  RETURN_IF_ERROR(validate_rebalance(out.view(), out.shape));
  return out;
}

// "2 (v3_decode_ep144)": how a case is named.
std::string case_name(const Json& object, size_t index) {
  if (!object.is_object() || !object.contains("name") || !object["name"].is_string())
    return fmt::format("{}", index);
  const std::string quoted = object["name"].dump();  // one line, whatever the name holds
  return fmt::format("{} ({})", index, quoted.substr(1, quoted.size() - 2));
}

// What --json adds to a case: the outputs of the golden format.
void complete(const ExpertPlacement& placement, const EplbCase& input, const EplbOutcome& outcome,
              Json& object) {
  object["policy"] = input.shape.hierarchical() ? "hierarchical" : "global";
  object["phy2log"] = placement.phy2log;
  Json log2phy = Json::array();
  for (int e = 0; e < placement.num_experts; ++e) {
    const auto row = placement.log2phy.begin() + static_cast<ptrdiff_t>(e) * placement.max_replicas;
    log2phy.push_back(std::vector<int32_t>(row, row + placement.max_replicas));
  }
  object["log2phy"] = std::move(log2phy);
  object["logcnt"] = placement.logcnt;
  object["max_load"] = outcome.after.max_load;
  object["mean_load"] = outcome.after.mean_load;
}

struct BalancedCase {
  ExpertPlacement placement;
  EplbOutcome outcome;
};

Result<BalancedCase> balance_case(const EplbCase& input, bool refine) {
  const ExpertWeights weights = input.view();
  BalancedCase out;
  ASSIGN_OR_RETURN(out.placement, refine ? rebalance_and_refine(weights, input.shape)
                                         : rebalance_experts(weights, input.shape));
  const ExpertPlacement start = initial_placement(1, weights.num_experts, input.shape.num_replicas);
  out.outcome.before = gpu_load_summary(input.weight, start, 0, input.shape.num_gpus);
  out.outcome.after = gpu_load_summary(input.weight, out.placement, 0, input.shape.num_gpus);
  return out;
}

void print_row(const std::string& name, const RebalanceShape& shape, const EplbOutcome& outcome) {
  fmt::print("{:<32} {:>6} {:>6} {:<13} {:>9.4f} {:>9.4f}\n", name, shape.num_replicas, shape.num_gpus,
             shape.hierarchical() ? "hierarchical" : "global", outcome.before.max_over_mean(),
             outcome.after.max_over_mean());
}

// What of a text is seen before it is parsed, by its strings and brackets alone.
struct Outline {
  std::vector<int> case_line;  // of the list's elements
  int deep_line = 0;           // of the first bracket beyond kDepthMax, if any
};

Outline outline_of(std::string_view text) {
  Outline out;
  int line = 1, depth = 0;
  bool quoted = false, element_next = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\n') continue;
    if (element_next && c != ']') out.case_line.push_back(line);
    element_next = depth == 1 && c == ',';
    if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDepthMax && out.deep_line == 0) out.deep_line = line;
      element_next = depth == 1 && c == '[';
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return out;
}

int line_at(std::string_view text, size_t byte) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + std::min(byte, text.size()), '\n'));
}

// The parser tells no place of a number beyond what a double holds, but quotes it.
Status number_error(const std::string& file, std::string_view text, std::string_view what) {
  const size_t open = what.find('\''), close = what.rfind('\'');
  const bool quotes = open != std::string_view::npos && close > open;
  const std::string_view number = quotes ? what.substr(open + 1, close - open - 1) : "";
  return invalid_argument("{}:{}: number: {} is more than a number may be", file,
                          line_at(text, text.find(number)), number);
}

// "cases.json:7: case 2 (v3_decode_ep144)": how a message names a case.
std::string case_place(const std::string& file, const CaseList& list, size_t index) {
  CHECK(index < list.line.size());
  return fmt::format("{}:{}: case {}", file, list.line[index], case_name(list.cases[index], index));
}

Result<CaseList> read_cases(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    return invalid_argument("{}:1: the file is empty", file);
  // The parser takes a NUL for the end and would leave what follows unread.
  if (const size_t nul = text.find('\0'); nul != std::string::npos)
    return invalid_argument("{}:{}: not JSON at byte {}: a NUL", file, line_at(text, nul), nul + 1);
  Outline outline = outline_of(text);
  if (outline.deep_line > 0)
    return invalid_argument("{}:{}: nested deeper than {} levels", file, outline.deep_line, kDepthMax);
  CaseList list;
  std::set<std::string> fields;  // of the case being read
  std::string twice;
  size_t num_cases = 0, twice_case = 0;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth == 1 &&
        (event == Event::object_start || event == Event::array_start || event == Event::value)) {
      ++num_cases;
      fields.clear();
    }
    if (depth == 2 && event == Event::key && twice.empty()) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!fields.insert(name).second) twice = printable(name), twice_case = num_cases - 1;
    }
    return true;
  };
  try {
    list.cases = Json::parse(text, watch);
  } catch (const Json::parse_error& error) {
    return invalid_argument("{}:{}: not JSON at byte {}", file, line_at(text, error.byte), error.byte);
  } catch (const Json::exception& error) {
    return number_error(file, text, error.what());
  }
  if (!list.cases.is_array()) return invalid_argument("{}:1: not a list of cases", file);
  list.line = std::move(outline.case_line);
  if (!twice.empty())
    return invalid_argument("{}: {}: given twice", case_place(file, list, twice_case), twice);
  return list;
}
Result<std::vector<EplbCase>> read_inputs(const EplbArgs& args, const CaseList& list) {
  std::vector<EplbCase> inputs;
  for (size_t i = 0; i < list.cases.size(); ++i) {
    Result<EplbCase> input = read_case(list.cases[i]);
    if (input.ok() && args.refine && input->shape.num_replicas > kRefineSlotsMax) {
      input = invalid_argument("num_replicas: {}, --refine takes at most {}", input->shape.num_replicas,
                               kRefineSlotsMax);
    }
    if (!input.ok()) return input.status().with_context(case_place(args.file, list, i));
    inputs.push_back(std::move(input).value());
  }
  return inputs;
}

// Every case is read and balanced before any is printed: bad input gives its one line and nothing else.
Status run_eplb(const EplbArgs& args) {
  ASSIGN_OR_RETURN(CaseList list, read_cases(args.file));
  ASSIGN_OR_RETURN(const std::vector<EplbCase> inputs, read_inputs(args, list));
  std::vector<EplbOutcome> outcomes;
  size_t table_entries = 0;
  {
    ProgressBar bar("balancing");
    for (size_t i = 0; i < inputs.size(); ++i) {
      Result<BalancedCase> balanced = balance_case(inputs[i], args.refine);
      if (balanced.ok() && args.json) {
        table_entries += balanced->placement.log2phy.size();
        if (table_entries > kTableMax) {
          balanced =
              invalid_argument("num_replicas: with this case log2phy has {} entries, an answer holds {}",
                               table_entries, kTableMax);
        }
      }
      if (!balanced.ok()) return balanced.status().with_context(case_place(args.file, list, i));
      outcomes.push_back(balanced->outcome);
      if (args.json) complete(balanced->placement, inputs[i], balanced->outcome, list.cases[i]);
      bar.update(static_cast<double>(i + 1) / static_cast<double>(inputs.size()));
    }
  }
  if (args.json) {
    fmt::print("{}\n", list.cases.dump());
    return ok_status();
  }
  fmt::print("{:<32} {:>6} {:>6} {:<13} {:>9} {:>9}\n", "case", "slots", "gpus", "policy", "before", "after");
  for (size_t i = 0; i < inputs.size(); ++i)
    print_row(case_name(list.cases[i], i), inputs[i].shape, outcomes[i]);
  return ok_status();
}

}  // namespace

void add_eplb_command(CLI::App& app, Outcome& outcome) {
  CLI::App* command =
      app.add_subcommand("eplb", "Place experts on GPUs for a list of cases; prints max/mean load");
  auto args = std::make_shared<EplbArgs>();
  command
      ->add_option("FILE", args->file, "JSON list of {weight, num_replicas, num_groups, num_nodes, num_gpus}")
      ->check(not_empty())
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
