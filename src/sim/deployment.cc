// A plan as the files that deploy it. Options are those of `fathom serve`; where a plan wants units of many
// ranks for one role, which one server process is not, the files say so.
#include <algorithm>
#include <cmath>

#include "sim/plan_report.h"

namespace fathom::sim {
namespace {

constexpr const char* kRolesNote =
    "# Prefill and decode as services of their own, over the ranks of a unit, are not part of this version "
    "of\n"
    "# fathom: its one server command is `fathom serve`, on one machine. The arguments of the roles below "
    "are\n"
    "# the plan's figures, for services that take them.\n";

// The folder a model's files lie in: its name, or that of the folder of its config.json.
std::string model_folder(std::string_view model) {
  if (!model.ends_with(".json")) return std::string(model);
  const size_t file = model.rfind('/');
  if (file == std::string_view::npos) return "model";
  model = model.substr(0, file);
  const std::string_view folder = model.substr(model.rfind('/') + 1);  // npos + 1 is the start
  return folder.empty() || folder == "." || folder == ".." ? "model" : std::string(folder);
}

// One word of a POSIX shell.
std::string shell_word(std::string_view text) {
  const auto plain = [](char c) {
    return std::string_view("-_./=:,").find(c) != std::string_view::npos || (c >= '0' && c <= '9') ||
           (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

// A string of TOML and of YAML: both take JSON's.
std::string json_string(std::string_view text) { return fmt::format("\"{}\"", json_escape(text)); }

struct RolePlan {
  const char* role;  // the command
  int units, nodes, ranks, slots, redundant;
  std::vector<std::pair<std::string, std::string>> options;  // of that command
};

std::vector<RolePlan> roles_of(const std::string& folder, const PlanResult& plan) {
  const DecodeUnitPlan& d = plan.decode;
  const PrefillUnitPlan& p = plan.prefill;
  const std::string model = "/models/" + folder;
  if (plan.colocated) {
    return {{"serve",
             plan.peak_nodes,
             1,
             1,
             d.slots,
             d.redundant,
             {{"model", model},
              {"max-running", fmt::format("{}", static_cast<int>(std::ceil(d.requests_per_rank)))},
              {"prefill-chunk", fmt::format("{:.0f}", p.budget_tokens_per_rank)}}}};
  }
  const auto options = [&](int ranks, int redundant) {
    return std::vector<std::pair<std::string, std::string>>{
        {"model", model},
        {"ranks", fmt::format("{}", ranks)},
        {"redundant-experts", fmt::format("{}", redundant)}};
  };
  return {{"prefill", plan.peak_prefill_units, p.nodes, p.ranks, p.slots, p.redundant,
           options(p.ranks, p.redundant)},
          {"decode", plan.peak_decode_units, d.nodes, d.ranks, d.slots, d.redundant,
           options(d.ranks, d.redundant)}};
}

bool is_number(const std::string& text) { return text.find_first_not_of("0123456789") == std::string::npos; }

std::string emit_toml(const std::string& folder, const PlanInput& in, const std::vector<RolePlan>& roles) {
  std::string out = fmt::format("model = {}\nhardware = {}\nprofile_hash = \"{}\"\n", json_string(folder),
                                json_string(in.hw.name), in.hw.hash);
  for (const RolePlan& r : roles) {
    out += fmt::format("\n[{}]\nunits = {}\nnodes_per_unit = {}\nranks_per_unit = {}\nexpert_slots = {}\n",
                       r.role, r.units, r.nodes, r.ranks, r.slots);
    out += fmt::format("\n[{}.options]  # of `fathom {}`\n", r.role, r.role);
    for (const auto& [name, value] : r.options)
      out += is_number(value) ? fmt::format("{} = {}\n", name, value)
                              : fmt::format("{} = {}\n", name, json_string(value));
  }
  return out + fmt::format("\n[objectives]\nttft_s = {}\ntokens_per_s_per_user = {}\n", in.slo_ttft_s,
                           in.slo_tokens_per_s_per_user);
}

// One StatefulSet per unit: a unit lives, fails and scales as a whole, so its pods start together.
std::string emit_kubernetes(const PlanInput& in, const std::vector<RolePlan>& roles) {
  std::string out;
  for (const RolePlan& r : roles) {
    std::string args = json_string(r.role);
    for (const auto& [name, value] : r.options)
      args += fmt::format(", \"--{}\", {}", name, json_string(value));
    const bool one_machine = r.ranks == 1;
    if (one_machine) args += ", \"--host\", \"0.0.0.0\"";
    const std::string limits =
        one_machine ? ""
                    : fmt::format("        resources:\n          limits: {{nvidia.com/gpu: {}}}\n",
                                  static_cast<int>(in.hw.gpus_per_node));
    for (int unit = 0; unit < r.units; ++unit) {
      const std::string name = fmt::format("fathom-{}-{}", r.role, unit);
      const std::string labels = fmt::format("{{app: fathom, role: {}, unit: \"{}\"}}", r.role, unit);
      out += fmt::format(
          "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {0}\nspec:\n  clusterIP: None\n  selector: "
          "{1}\n"
          "  ports: [{{name: http, port: 8000}}]\n"
          "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata:\n  name: {0}\n  labels: {1}\n"
          "spec:\n  replicas: {2}\n  serviceName: {0}\n  podManagementPolicy: Parallel\n"
          "  selector:\n    matchLabels: {1}\n"
          "  template:\n    metadata:\n      labels: {1}\n    spec:\n      containers:\n"
          "      - name: fathom\n        image: fathom:latest\n        args: [{3}]\n{4}",
          name, labels, r.nodes, args, limits);
    }
  }
  return out;
}

std::string emit_slurm(const PlanInput& in, const std::vector<RolePlan>& roles) {
  std::string out = "# Submits one job per unit; a unit starts and ends as a whole.\nset -e\n";
  for (const RolePlan& r : roles) {
    // The job's script is a shell's too: words of it, then one word of this one.
    std::string command = fmt::format("srun fathom {}", r.role);
    for (const auto& [name, value] : r.options) command += fmt::format(" --{} {}", name, shell_word(value));
    const std::string gpus =
        r.ranks == 1 ? "" : fmt::format(" --gpus-per-node={}", static_cast<int>(in.hw.gpus_per_node));
    out += fmt::format(
        "for unit in $(seq 0 {}); do\n  sbatch --job-name=fathom-{}-$unit --nodes={} --ntasks-per-node=1{} "
        "\\\n"
        "    --wrap {}\ndone\n",
        r.units - 1, r.role, r.nodes, gpus, shell_word(command));
  }
  return out;
}

}  // namespace

Result<EmitFormat> parse_emit_format(std::string_view name) {
  if (name == "toml") return EmitFormat::kToml;
  if (name == "kubernetes") return EmitFormat::kKubernetes;
  if (name == "slurm") return EmitFormat::kSlurm;
  return invalid_argument("--emit: \"{}\" is none of toml, kubernetes, slurm", name);
}

Status validate_deployed_model(const std::string& model) {
  const std::string folder = model_folder(model);
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  bool good = std::none_of(folder.begin(), folder.end(), control);
  // YAML's line breaks beyond ASCII, and code points that are no text.
  for (const std::string_view odd : {"\u2028", "\u2029", "\ufeff", "\ufffe", "\uffff"}) {
    good = good && folder.find(odd) == std::string::npos;
  }
  for (size_t at = 0; (at = folder.find('\xc2', at)) != std::string::npos; ++at) {
    good =
        good && at + 1 < folder.size() && static_cast<unsigned char>(folder[at + 1]) >= 0xa0;  // C1 controls
  }
  if (good) return ok_status();
  return invalid_argument("{}", kNoPrintableName);
}

std::string emit_deployment(const std::string& model, const PlanInput& in, const PlanResult& plan,
                            EmitFormat format) {
  const std::string folder = model_folder(model);
  const std::vector<RolePlan> roles = roles_of(folder, plan);
  const std::string note = plan.colocated ? "" : kRolesNote;
  const std::string from =
      fmt::format("# profile {}, hash {}\n", json_string(in.hw.name), in.hw.hash);  // toml has both as keys
  switch (format) {
    case EmitFormat::kToml:
      return note + emit_toml(folder, in, roles);
    case EmitFormat::kKubernetes:
      return from + note + emit_kubernetes(in, roles);
    case EmitFormat::kSlurm:
      return "#!/usr/bin/env bash\n" + from + note + emit_slurm(in, roles);
  }
  return "";
}

}  // namespace fathom::sim
