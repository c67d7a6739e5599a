// Reading fleets and faults; whatever is wrong is named by file, line and field.
#include "sim/fleet_file.h"

#include <charconv>

#include "base/toml.h"

namespace fathom::sim {
namespace {

Status bad(const std::string& file, const toml::node& node, std::string_view field, std::string_view what) {
  return invalid_argument("{}:{}: {}: {}", file, node.source().begin.line, field, what);
}

template <typename T>
Status read_count(const std::string& file, const toml::node& node, std::string_view field, T min, T max,
                  T& out) {
  const auto value = node.value<int64_t>();
  if (!node.is_integer() || !value) return bad(file, node, field, "expected a whole number");
  if (*value < min || *value > max)
    return bad(file, node, field, fmt::format("{} is outside {}..{}", *value, min, max));
  out = static_cast<T>(*value);
  return ok_status();
}

Status read_phase(const std::string& file, const toml::table& table, bool decode, BlockFleetOptions& o) {
  const std::string phase = decode ? "decode" : "prefill";
  for (const auto& [key, node] : table) {
    const std::string field = fmt::format("{}.{}", phase, key.str());
    if (key.str() == "units") {
      RETURN_IF_ERROR(read_count(file, node, field, 1, 1000, decode ? o.decode_units : o.prefill_units));
    } else if (key.str() == "ranks") {
      RETURN_IF_ERROR(read_count(file, node, field, 1, 1024, decode ? o.decode_ranks : o.prefill_ranks));
    } else if (key.str() == "blocks_per_rank") {
      RETURN_IF_ERROR(read_count<int32_t>(file, node, field, 8, 1 << 24,
                                          decode ? o.decode_blocks_per_rank : o.prefill_blocks_per_rank));
    } else if (key.str() == "chunk_tokens" && !decode) {
      RETURN_IF_ERROR(read_count<int32_t>(file, node, field, 64, 1 << 20, o.chunk_tokens));
      if (o.chunk_tokens % 64 != 0) return bad(file, node, field, "not a multiple of 64");
    } else {
      return bad(file, node, field, "unknown key");
    }
  }
  return ok_status();
}

}  // namespace

Status read_fleet_file(const std::string& file, std::string_view text, BlockFleetOptions& options) {
  toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return invalid_argument("{}:{}: toml: {}", file, parsed.error().source().begin.line,
                            parsed.error().description());
  }
  for (const auto& [key, node] : parsed.table()) {
    if (key.str() == "expert_slots") {
      RETURN_IF_ERROR(read_count(file, node, "expert_slots", 1, 1 << 16, options.expert_slots));
    } else if ((key.str() == "prefill" || key.str() == "decode") && node.is_table()) {
      RETURN_IF_ERROR(read_phase(file, *node.as_table(), key.str() == "decode", options));
    } else {
      return bad(file, node, key.str(), "unknown key");
    }
  }
  for (const bool decode : {false, true}) {
    const int ranks = decode ? options.decode_ranks : options.prefill_ranks;
    if (options.expert_slots % ranks != 0) {
      const toml::node* section = parsed.table().get(decode ? "decode" : "prefill");
      return invalid_argument("{}:{}: {}.ranks: {} expert slots do not divide over {} ranks", file,
                              section != nullptr ? section->source().begin.line : 1,
                              decode ? "decode" : "prefill", options.expert_slots, ranks);
    }
  }
  return ok_status();
}

Result<Fault> parse_fault(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return invalid_argument("--fault: \"{}\": {}", text, what);
  };
  const auto number = [](std::string_view part, double& out) {
    const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), out);
    return code == std::errc() && end == part.data() + part.size() && out >= 0 && out < 1e6;
  };
  const size_t at = text.find('@');
  if (at == std::string_view::npos) return wrong("expected KIND@HH:MM");
  Fault fault;
  ASSIGN_OR_RETURN(fault.kind, parse_fault_kind(text.substr(0, at)));
  fault.for_s = 60;
  std::string_view rest = text.substr(at + 1);
  std::string_view time = rest.substr(0, rest.find(','));
  rest.remove_prefix(time.size());
  double unit_s = 3600;
  for (int part = 0; !time.empty() && part < 3; ++part, unit_s /= 60) {
    const std::string_view digits = time.substr(0, time.find(':'));
    double value = 0;
    if (!number(digits, value)) return wrong("expected KIND@HH:MM[:SS]");
    fault.at_s += value * unit_s;
    time.remove_prefix(std::min(digits.size() + 1, time.size()));
  }
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view pair = rest.substr(0, rest.find(','));
    rest.remove_prefix(pair.size());
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return wrong("expected key=value");
    const std::string_view key = pair.substr(0, equals);
    const std::string_view value = pair.substr(equals + 1);
    if (key == "phase" && (value == "decode" || value == "prefill")) {
      fault.decode = value == "decode";
      continue;
    }
    double parsed = 0;
    if (!number(value, parsed)) return wrong(fmt::format("{}: not a number", key));
    if (key == "for") {
      fault.for_s = parsed;
    } else if (key == "unit") {
      fault.unit = static_cast<int>(parsed);
    } else if (key == "rank") {
      fault.rank = static_cast<int>(parsed);
    } else if (key == "factor") {
      fault.factor = parsed;
    } else {
      return wrong(fmt::format("{}: unknown key", key));
    }
  }
  return fault;
}

}  // namespace fathom::sim
