// fathom version: what this binary is and what it would run on here.
#include <cstdio>

#include "base/cpu.h"
#include "cli/commands.h"

namespace fathom::cli {

void add_version_command(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("version", "Print the version and the instruction set in use");
  command->callback([&outcome] {
    std::printf("fathom %s\nisa %s (processor has %s)\n", FATHOM_VERSION,
                std::string(isa_name(active_isa())).c_str(), std::string(isa_name(detect_isa())).c_str());
    outcome.exit_code = 0;
  });
}

}  // namespace fathom::cli
