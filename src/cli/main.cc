// fathom: one binary, one file per subcommand.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/parse_error.h"

int main(int argc, char** argv) {
  CLI::App app{"Fathom serves mixture-of-experts language models of the DeepSeek family."};
  app.name("fathom");
  app.require_subcommand(1);
  app.set_version_flag("--version", "fathom " FATHOM_VERSION);
  // Flags win over the file, the file over defaults; a name the file misspells is an error.
  CLI::Option* const config = app.set_config(
      "--config", "", "TOML file with a table per subcommand, e.g. [serve], and the flags' names as keys");
  config->check(fathom::cli::toml_file());
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.fallthrough();

  fathom::cli::Outcome outcome;
  fathom::cli::add_chat_command(app, outcome);
  fathom::cli::add_serve_command(app, outcome);
  fathom::cli::add_version_command(app, outcome);
  fathom::cli::add_model_command(app, outcome);
  fathom::cli::add_eplb_command(app, outcome);
  fathom::cli::add_simulate_command(app, outcome);
  fathom::cli::add_plan_command(app, outcome);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string path = config->count() > 0 ? config->results().back() : "";
    fmt::print(stderr, "fathom: {}\n", fathom::cli::explain(error, path));
    return 2;
  }
  return outcome.exit_code;
}
