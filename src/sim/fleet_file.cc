// Reading fleets and faults; whatever is wrong is named by file, line and field.
#include "sim/fleet_file.h"

#include <charconv>
#include <cmath>

#include "base/toml.h"
#include "sim/model_shape.h"

namespace fathom::sim {
namespace {

constexpr int kExpertSlotsMax = 1 << 12;

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
      const int experts = static_cast<int>(ModelShape{}.experts);  // each needs a slot
      RETURN_IF_ERROR(read_count(file, node, "expert_slots", experts, kExpertSlotsMax, options.expert_slots));
    } else if ((key.str() == "prefill" || key.str() == "decode") && node.is_table()) {
      RETURN_IF_ERROR(read_phase(file, *node.as_table(), key.str() == "decode", options));
    } else {
      return bad(file, node, key.str(), "unknown key");
    }
  }
  for (const char* section : {"prefill", "decode"}) {
    if (parsed.table().contains(section)) continue;
    return invalid_argument("{}:1: {}: missing, a fleet has sections [prefill] and [decode]", file, section);
  }
  options.prefill_units_place = fleet_place(file, text, "prefill.units");
  for (const bool decode : {false, true}) {
    const char* field = decode ? "decode.blocks_per_rank" : "prefill.blocks_per_rank";
    options.blocks_place[decode] = fleet_place(file, text, field);
    const int ranks = decode ? options.decode_ranks : options.prefill_ranks;
    if (options.expert_slots % ranks != 0) {
      const toml::node* section = parsed.table().get(decode ? "decode" : "prefill");
      return invalid_argument("{}:{}: {}.ranks: {} expert slots do not divide over {} ranks", file,
                              section->source().begin.line, decode ? "decode" : "prefill",
                              options.expert_slots, ranks);
    }
  }
  return ok_status();
}

std::string fleet_place(const std::string& file, std::string_view text, std::string_view field) {
  const toml::parse_result parsed = toml::parse(text);
  int line = 1;
  if (parsed) {
    const auto at = parsed.table().at_path(field);
    const auto section = parsed.table().at_path(field.substr(0, field.find('.')));
    if (const toml::node* node = at ? at.node() : section.node())
      line = static_cast<int>(node->source().begin.line);
  }
  return fmt::format("{}:{}: {}", file, line, field);
}

namespace {

struct FaultForm {
  FaultKind kind;
  std::string_view keys;  // it takes
  double factor_min, factor_max;
};
constexpr FaultForm kFaultForms[] = {
    {FaultKind::kUnitLoss, "for phase unit", 0, 0},
    {FaultKind::kSlowRank, "for phase unit rank factor", 1, 1000},
    {FaultKind::kStaleReports, "for factor", 0, 86400},
    {FaultKind::kFlashCrowd, "for factor", 0.01, 100},
    {FaultKind::kLostRegistry, "for", 0, 0},
    {FaultKind::kNoNodes, "for", 0, 0},
};
constexpr double kFaultSecondsMax = 1e6;
constexpr int kFaultIndexMax = 1'000'000;

// A list of words separated by spaces.
bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::string_view first = list.substr(0, list.find(' '));
    if (first == word) return true;
    list.remove_prefix(std::min(first.size() + 1, list.size()));
  }
  return false;
}

template <typename T>
bool whole_text(std::string_view text, T& out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  return code == std::errc() && end == text.data() + text.size();
}

// "HH:MM" or "HH:MM:SS" in seconds; negative if it is neither.
double clock_seconds(std::string_view text) {
  double seconds = 0, unit_s = 3600;
  int parts = 0;
  for (bool more = true; more; ++parts, unit_s /= 60) {
    const size_t colon = text.find(':');
    const std::string_view digits = text.substr(0, colon);
    uint32_t value = 0;
    if (parts > 2 || !whole_text(digits, value) || digits.size() > 3 || (parts > 0 && value > 59)) return -1;
    seconds += value * unit_s;
    more = colon != std::string_view::npos;
    if (more) text.remove_prefix(colon + 1);
  }
  return parts > 1 ? seconds : -1;
}

// Empty if the value was taken, else what is wrong with it.
std::string set_fault_key(const FaultForm& form, std::string_view key, std::string_view value, Fault& fault) {
  if (!has_word(form.keys, key))
    return fmt::format("{}: not a key of this fault, which takes {}", key, form.keys);
  if (key == "phase") {
    fault.decode = value == "decode";
    return fault.decode || value == "prefill" ? "" : "phase: neither prefill nor decode";
  }
  if (key == "unit" || key == "rank") {
    int& index = key == "unit" ? fault.unit : fault.rank;
    const bool good = whole_text(value, index) && index >= 0 && index <= kFaultIndexMax;
    return good ? "" : fmt::format("{}: \"{}\" is not a whole number from 0", key, value);
  }
  double number = 0;
  if (!whole_text(value, number)) return fmt::format("{}: \"{}\" is not a number", key, value);
  if (key == "for") {
    fault.for_s = number;
    return number > 0 && number <= kFaultSecondsMax ? "" : "for: not within 0..1e6 seconds";
  }
  fault.factor = number;
  if (number >= form.factor_min && number <= form.factor_max) return "";
  return fmt::format("factor: {} is outside {}..{}", number, form.factor_min, form.factor_max);
}

}  // namespace

Result<Fault> parse_fault(std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return invalid_argument("--fault: \"{}\": {}", text, what);
  };
  const size_t at = text.find('@');
  if (at == std::string_view::npos) return wrong("expected KIND@HH:MM");
  Fault fault;
  fault.for_s = 60;
  ASSIGN_OR_RETURN(fault.kind, parse_fault_kind(text.substr(0, at)));
  std::string_view rest = text.substr(at + 1);
  const std::string_view time = rest.substr(0, rest.find(','));
  rest.remove_prefix(time.size());
  fault.at_s = clock_seconds(time);
  if (fault.at_s < 0) return wrong("expected KIND@HH:MM[:SS]");
  const FaultForm& form = kFaultForms[static_cast<size_t>(fault.kind)];
  std::string seen;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view pair = rest.substr(0, rest.find(','));
    rest.remove_prefix(pair.size());
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) return wrong("expected key=value");
    const std::string_view key = pair.substr(0, equals);
    if (has_word(seen, key)) return wrong(fmt::format("{}: given twice", key));
    seen += fmt::format("{} ", key);
    const std::string problem = set_fault_key(form, key, pair.substr(equals + 1), fault);
    if (!problem.empty()) return wrong(problem);
  }
  return fault;
}

}  // namespace fathom::sim
