// A fleet of a replay as a TOML file, and faults as text.
#pragma once

#include <string>
#include <string_view>

#include "sim/block_fleet.h"

namespace fathom::sim {

// [prefill] and [decode], both: units, ranks, blocks_per_rank; [prefill] chunk_tokens; top level:
// expert_slots. A key that is not there stays as it is. Errors name file, line and field: an unknown key, a
// missing section, a unit that does not divide the slots, no unit.
Status read_fleet_file(const std::string& file, std::string_view text, BlockFleetOptions& options);

// "FILE:LINE: FIELD" of a key that read_fleet_file() has read, such as "decode.ranks"; of one that the file
// leaves out, its section or the file's first line.
std::string fleet_place(const std::string& file, std::string_view text, std::string_view field);

// "unit-loss@00:05,for=60,phase=decode,unit=1". Times run from the start of the trace.
Result<Fault> parse_fault(std::string_view text);

}  // namespace fathom::sim
