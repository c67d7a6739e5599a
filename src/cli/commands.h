// The subcommands of the one binary. Each is a file of its own that adds itself to the parser; main.cc calls
// the list. Exit codes: 0 done, 1 failed at run time, 2 bad input (one line says what and where), 3 no plan
// fits.
#pragma once

#include <CLI/CLI.hpp>

namespace fathom::cli {

// The chosen subcommand stores its exit code here.
struct Outcome {
  int exit_code = 0;
};

void add_chat_command(CLI::App& app, Outcome& outcome);
void add_serve_command(CLI::App& app, Outcome& outcome);
void add_version_command(CLI::App& app, Outcome& outcome);
void add_model_command(CLI::App& app, Outcome& outcome);
void add_eplb_command(CLI::App& app, Outcome& outcome);
void add_simulate_command(CLI::App& app, Outcome& outcome);
void add_plan_command(CLI::App& app, Outcome& outcome);

}  // namespace fathom::cli
