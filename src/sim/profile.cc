// Reading a hardware profile: every constant must be there, known and possible.
#include "sim/profile.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "base/check.h"
#include "base/printable.h"
#include "base/toml.h"

namespace fathom::sim {
namespace {

struct Field {
  std::string_view name;  // section.key
  double HardwareProfile::* member;
  double min, max;
};

using P = HardwareProfile;
constexpr double kHuge = 1e9;
constexpr Field kFields[] = {
    {"hardware.gpus_per_node", &P::gpus_per_node, 1, 72},
    {"hardware.hbm_gb", &P::hbm_gb, 0.001, 1e6},
    {"hardware.hbm_reserve_gb", &P::hbm_reserve_gb, 0, 1e6},
    {"hardware.price_usd_per_gpu_hour", &P::price_usd_per_gpu_hour, 0, 1e6},
    {"gemm.launch_us", &P::gemm_launch_us, 0, kHuge},
    {"gemm.peak_tflops", &P::gemm_peak_tflops, 1e-6, kHuge},
    {"gemm.hbm_tb_per_s", &P::gemm_hbm_tb_per_s, 1e-6, kHuge},
    {"gemm.smoothing", &P::gemm_smoothing, 1, 100},
    {"gemm.k_half", &P::gemm_k_half, 0, kHuge},
    {"gemm.narrow_efficiency_decode", &P::gemm_narrow_efficiency_decode, 0.01, 1},
    {"gemm.narrow_efficiency_prefill", &P::gemm_narrow_efficiency_prefill, 0.01, 1},
    {"gemm.expert_efficiency", &P::gemm_expert_efficiency, 0.01, 1},
    {"bmm.launch_us", &P::bmm_launch_us, 0, kHuge},
    {"bmm.peak_tflops", &P::bmm_peak_tflops, 1e-6, kHuge},
    {"bmm.hbm_tb_per_s", &P::bmm_hbm_tb_per_s, 1e-6, kHuge},
    {"mla_decode.peak_tflops", &P::mla_peak_tflops, 1e-6, kHuge},
    {"mla_decode.hbm_tb_per_s", &P::mla_hbm_tb_per_s, 1e-6, kHuge},
    {"mla_decode.launch_us", &P::mla_launch_us, 0, kHuge},
    {"decode_overhead.attn0_us", &P::attn0_us, 0, kHuge},
    {"decode_overhead.attn1_us", &P::attn1_us, 0, kHuge},
    {"decode_overhead.shared_us", &P::shared_us, 0, kHuge},
    {"decode_overhead.mlp_us", &P::mlp_us, 0, kHuge},
    {"decode_step.dense_layer_share", &P::step_dense_layer_share, 0, 10},
    {"decode_step.heads_ms", &P::step_heads_ms, 0, kHuge},
    {"decode_step.host_ms", &P::step_host_ms, 0, kHuge},
    {"decode_all_to_all.dispatch_latency_us", &P::dispatch_latency_us, 0, kHuge},
    {"decode_all_to_all.dispatch_bytes", &P::dispatch_bytes, 0, kHuge},
    {"decode_all_to_all.dispatch_gb_per_s", &P::dispatch_gb_per_s, 1e-6, kHuge},
    {"decode_all_to_all.combine_latency_us", &P::combine_latency_us, 0, kHuge},
    {"decode_all_to_all.combine_bytes", &P::combine_bytes, 0, kHuge},
    {"decode_all_to_all.combine_gb_per_s", &P::combine_gb_per_s, 1e-6, kHuge},
    {"decode_all_to_all.dispatch_local_gb_per_s", &P::dispatch_local_gb_per_s, 1e-6, kHuge},
    {"decode_all_to_all.combine_local_gb_per_s", &P::combine_local_gb_per_s, 1e-6, kHuge},
    {"decode_all_to_all.dispatch_sm_us", &P::dispatch_sm_us, 0, kHuge},
    {"decode_all_to_all.dispatch_sm_us_per_token", &P::dispatch_sm_us_per_token, 0, kHuge},
    {"decode_all_to_all.combine_sm_us", &P::combine_sm_us, 0, kHuge},
    {"decode_all_to_all.combine_sm_us_per_token", &P::combine_sm_us_per_token, 0, kHuge},
    {"prefill.attention_tflops", &P::prefill_attention_tflops, 1e-6, kHuge},
    {"prefill.sm_share", &P::prefill_sm_share, 0.01, 1},
    {"prefill.in_situ", &P::prefill_in_situ, 0.01, 1},
    {"prefill.bubble", &P::prefill_bubble, 1, 10},
    {"prefill.elementwise_tb_per_s", &P::prefill_elementwise_tb_per_s, 1e-6, kHuge},
    {"prefill.elementwise_bytes_per_token", &P::prefill_elementwise_bytes_per_token, 0, kHuge},
    {"prefill.overhead_us", &P::prefill_overhead_us, 0, kHuge},
    {"prefill.host_ms", &P::prefill_host_ms, 0, kHuge},
    {"prefill.rank_budget_ms_per_layer", &P::prefill_rank_budget_ms_per_layer, 1e-6, kHuge},
    {"prefill_all_to_all.dispatch_gb_per_s", &P::prefill_dispatch_gb_per_s, 1e-6, kHuge},
    {"prefill_all_to_all.combine_gb_per_s", &P::prefill_combine_gb_per_s, 1e-6, kHuge},
    {"prefill_all_to_all.nodes_per_token", &P::prefill_nodes_per_token, 0, kHuge},
    {"prefill_all_to_all.contention", &P::prefill_contention, 1, 100},
    {"kv.read_gb_per_s_per_node", &P::kv_read_gb_per_s_per_node, 1e-6, kHuge},
    {"kv.read_latency_ms", &P::kv_read_latency_ms, 0, kHuge},
    {"kv.handover_ms", &P::kv_handover_ms, 0, kHuge},
    {"residual.decode_phi", &P::decode_phi, 0.01, 100},
    {"residual.prefill_phi", &P::prefill_phi, 0.01, 100},
};

constexpr int kBaseDepthMax = 4;

const Field* find_field(std::string_view name) {
  for (const Field& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

// What the files say so far, and where each section begins (for the error about a missing constant).
struct Merged {
  std::map<std::string, double, std::less<>> values;
  std::map<std::string, std::string, std::less<>> section_at;  // section -> "file:line"
  std::string name, kind, root_file;
  std::string hbm_place, gpus_place;
};

Status at(const std::string& file, const toml::source_region& where, std::string_view field,
          std::string_view what) {
  return invalid_argument("{}:{}: {}: {}", file, where.begin.line, field, what);
}

Status merge_section(const std::string& file, std::string_view section, const toml::table& table,
                     Merged& merged) {
  merged.section_at[std::string(section)] = fmt::format("{}:{}", file, table.source().begin.line);
  for (const auto& [key, node] : table) {
    const std::string name = fmt::format("{}.{}", section, key.str());
    if (name == "hardware.name" || name == "hardware.kind") {
      const auto text = node.value<std::string>();
      if (!text) return at(file, node.source(), name, "expected a string");
      if (has_control_characters(*text))
        return at(file, node.source(), name, "a control character in a name");
      if (name == "hardware.kind" && *text != "measured" && *text != "scaled") {
        return at(file, node.source(), name, "expected \"measured\" or \"scaled\"");
      }
      (name == "hardware.name" ? merged.name : merged.kind) = *text;
      continue;
    }
    const Field* field = find_field(name);
    if (field == nullptr) return at(file, node.source(), name, "unknown constant");
    if (!node.is_number()) return at(file, node.source(), name, "expected a number");
    const double value = *node.value<double>();
    if (!(value >= field->min && value <= field->max)) {
      return at(file, node.source(), name,
                fmt::format("{} is outside {}..{}", value, field->min, field->max));
    }
    if (name == "hardware.gpus_per_node" && value != std::floor(value)) {
      return at(file, node.source(), name, fmt::format("{} is not a whole number", value));
    }
    merged.values[name] = value;
    if (name == "hardware.hbm_gb" || name == "hardware.gpus_per_node") {
      std::string& place = name == "hardware.hbm_gb" ? merged.hbm_place : merged.gpus_place;
      place = fmt::format("{}:{}: {}", file, node.source().begin.line, name);
    }
  }
  return ok_status();
}

std::string sibling(const std::string& path, const std::string& name) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || name.starts_with('/') ? name : path.substr(0, slash + 1) + name;
}

Status merge_file(const std::string& path, const ReadFile& read_file, int depth, Merged& merged) {
  if (depth > kBaseDepthMax) return invalid_argument("{}: base: more than {} levels", path, kBaseDepthMax);
  ASSIGN_OR_RETURN(const std::string text, read_file(path));
  toml::parse_result parsed = toml::parse(text);
  if (!parsed) return at(path, parsed.error().source(), "toml", parsed.error().description());
  const toml::table& root = parsed.table();
  if (const toml::node* base = root.get("base")) {
    const auto base_name = base->value<std::string>();
    if (!base_name) return at(path, base->source(), "base", "expected a file name");
    RETURN_IF_ERROR(merge_file(sibling(path, *base_name), read_file, depth + 1, merged));
  } else {
    merged.root_file = path;
  }
  for (const auto& [key, node] : root) {
    if (key.str() == "base") continue;
    if (!node.is_table()) return at(path, node.source(), key.str(), "unknown key outside a section");
    RETURN_IF_ERROR(merge_section(path, key.str(), *node.as_table(), merged));
  }
  return ok_status();
}

std::string hash_profile(const HardwareProfile& profile) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  XXH3_64bits_update(state, profile.name.data(), profile.name.size());
  for (const auto& [name, value] : profile_constants(profile)) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);  // little-endian on every machine we run on
    XXH3_64bits_update(state, name.data(), name.size());
    XXH3_64bits_update(state, &bits, sizeof bits);
  }
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return fmt::format("{:016x}", hash);
}

}  // namespace

std::vector<std::pair<std::string_view, double>> profile_constants(const HardwareProfile& profile) {
  std::vector<std::pair<std::string_view, double>> constants;
  for (const Field& field : kFields) constants.emplace_back(field.name, profile.*field.member);
  return constants;
}

Status set_profile_constant(HardwareProfile& profile, std::string_view name, double value) {
  const Field* field = find_field(name);
  if (field == nullptr) return invalid_argument("profile: {}: unknown constant", name);
  if (!(value >= field->min && value <= field->max)) {
    return invalid_argument("profile: {}: {} is outside {}..{}", name, value, field->min, field->max);
  }
  profile.*field->member = value;
  profile.hash = hash_profile(profile);
  return ok_status();
}

void scale_profile_constant(HardwareProfile& profile, std::string_view name, double factor) {
  const Field* field = find_field(name);
  CHECK_MSG(field != nullptr, name);
  double& value = profile.*field->member;
  value = std::clamp(value * factor, field->min, field->max);
  profile.hash = hash_profile(profile);
}

Result<HardwareProfile> load_profile(const std::string& path, const ReadFile& read_file) {
  Merged merged;
  RETURN_IF_ERROR(merge_file(path, read_file, 0, merged));
  HardwareProfile profile{};
  profile.hbm_place = merged.hbm_place;
  profile.gpus_place = merged.gpus_place;
  profile.name = merged.name;
  profile.kind = merged.kind;
  const auto where = [&](std::string_view section) {
    const auto found = merged.section_at.find(section);
    return found == merged.section_at.end() ? fmt::format("{}:1", merged.root_file) : found->second;
  };
  if (profile.name.empty()) return invalid_argument("{}: hardware.name: missing", where("hardware"));
  if (profile.kind.empty()) return invalid_argument("{}: hardware.kind: missing", where("hardware"));
  for (const Field& field : kFields) {
    const auto value = merged.values.find(field.name);
    if (value == merged.values.end()) {
      const std::string_view section = field.name.substr(0, field.name.find('.'));
      return invalid_argument("{}: {}: missing constant", where(section), field.name);
    }
    profile.*field.member = value->second;
  }
  profile.hash = hash_profile(profile);
  return profile;
}

}  // namespace fathom::sim
