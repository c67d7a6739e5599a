// fathom: one binary, one file per subcommand.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <system_error>

#include "cli/commands.h"
#include "cli/config_file.h"
#include "cli/flag_values.h"
#include "cli/parse_error.h"
#include "cli/report.h"

namespace fathom::cli {
namespace {

int run(int argc, char** argv) {
  CLI::App app{"Fathom serves mixture-of-experts language models of the DeepSeek family."};
  app.name("fathom");
  app.require_subcommand(1);
  app.set_version_flag("--version", "fathom " FATHOM_VERSION);
  // Flags win over the file, the file over defaults; a name the file misspells is an error.
  add_config_option(app);
  app.fallthrough();

  Outcome outcome;
  add_chat_command(app, outcome);
  add_serve_command(app, outcome);
  add_version_command(app, outcome);
  add_model_command(app, outcome);
  add_eplb_command(app, outcome);
  add_simulate_command(app, outcome);
  add_plan_command(app, outcome);
  refuse_odd_values(app);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app.exit(error, text);
      std::fputs(text.str().c_str(), stdout);
      return 0;
    }
    report("", explain(error, app));
    return 2;
  }
  return outcome.exit_code;
}

// What libraries have no other way to say: no thread, no memory, no room for the output.
int run_to_the_end(int argc, char** argv, int& output_error) {
  try {
    return run(argc, argv);
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) {
      output_error = error.code().value();
      return 1;
    }
    const bool no_thread = error.code() == std::errc::resource_unavailable_try_again;
    report("", no_thread ? "the system has no room for as many threads (see --threads)" : error.what());
    return no_thread ? 2 : 1;
  } catch (const std::bad_alloc&) {
    report("", "out of memory");
    return 2;
  } catch (const std::exception& error) {
    report("", error.what());
    return 2;
  }
}

// Without one of the three standard streams the next file or socket would take its place: what is meant for a
// person would be written into it, and it would be read as what a person types.
void fill_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF)
      (void)!open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace
}  // namespace fathom::cli

int main(int argc, char** argv) {
  fathom::cli::fill_standard_streams();
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a write error like others
  int error = 0;
  const int code = fathom::cli::run_to_the_end(argc, argv, error);
  if (error == 0) error = fathom::cli::flush_output();
  if (error == 0) return code;
  // Whoever closed a pipe has what they wanted.
  if (error != EPIPE) fathom::cli::report("", fmt::format("standard output: {}", std::strerror(error)));
  return code == 0 ? 1 : code;
}
