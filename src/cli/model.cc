// fathom model inspect|convert: what a model folder holds, and saving its quantised form.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/check.h"
#include "base/printable.h"
#include "base/progress_bar.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "model/convert.h"
#include "model/inspect.h"

namespace fathom::cli {
namespace {

int fail(const char* command, const Status& status) {
  report(fmt::format("model {}", command), status.message());
  // What the user gave is wrong, or the machine failed meanwhile (disk full, not permitted).
  return status.code() == StatusCode::kFailedPrecondition ? 1 : 2;
}

struct InspectArgs {
  std::string folder;
  bool json = false;
};

int run_inspect(const InspectArgs& args) {
  const auto source = open_model_folder(args.folder);
  if (!source.ok()) return fail("inspect", source.status());
  const auto model = inspect_model(**source);
  if (!model.ok()) return fail("inspect", model.status());
  fmt::print("{}{}", args.json ? inspection_json(*model) : inspection_text(*model), args.json ? "\n" : "");
  return 0;
}

struct ConvertArgs {
  std::string folder;
  std::string out;
  std::string weights;
  std::string layout = "panels";
  int threads = 0;
};

int run_convert(const ConvertArgs& args) {
  const auto format = parse_weights_option(args.weights);
  CHECK_MSG(format.ok() && format->has_value(), "the flag's checks let nothing else through");
  const auto source = open_model_folder(args.folder);
  if (!source.ok()) return fail("convert", source.status());
  const int threads =
      args.threads > 0 ? args.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadTeam team(threads);
  ConvertOptions options{.weights = **format,
                         .layout = args.layout == "rows" ? ConvertLayout::kRows : ConvertLayout::kPanels};
  const auto report = [&] {
    ProgressBar progress("converting");
    options.progress = [&](int64_t done, int64_t total) { progress.show_bytes(done, total); };
    return convert_model(**source, args.out, options, team);
  }();
  if (!report.ok()) return fail("convert", report.status());
  for (const std::string& warning : report->warnings) fmt::print(stderr, "warning: {}\n", printable(warning));
  fmt::print("{}: {} of {} weights in {} file(s), and {} other file(s)\n", printable(args.out),
             bytes_text(report->weight_bytes), weight_format_name(**format), report->num_shards,
             report->copied_files.size() + 1);
  return 0;
}

}  // namespace

void add_model_command(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("model", "Inspect and convert model folders");
  command->require_subcommand(1);

  CLI::App* inspect =
      command->add_subcommand("inspect", "Print architecture, parameters, sizes and KV bytes per token");
  auto inspect_args = std::make_shared<InspectArgs>();
  inspect->add_option("DIR", inspect_args->folder, "A Hugging Face model folder; config.json is enough")
      ->required();
  inspect->add_flag("--json", inspect_args->json, "Print JSON");
  inspect->callback([inspect_args, &outcome] { outcome.exit_code = run_inspect(*inspect_args); });

  CLI::App* convert = command->add_subcommand(
      "convert", "Save a model with quantised weights, so that no start quantises again");
  auto convert_args = std::make_shared<ConvertArgs>();
  convert->add_option("DIR", convert_args->folder, "A Hugging Face model folder")->required();
  convert->add_option("OUT", convert_args->out, "The folder to write: absent or empty")->required();
  convert->add_option("--weights", convert_args->weights, "The precision to save")
      ->required()
      ->check(CLI::Validator(
          [](std::string& text) { return text == "native" ? "native changes nothing; copy the folder" : ""; },
          ""))
      ->check(CLI::IsMember({"bf16", "fp8", "int8", "int4"}));
  convert
      ->add_option(
          "--layout", convert_args->layout,
          "panels: as the kernels read them, used where the file is mapped; rows: codes and scales row "
          "by row, for other readers, packed at every start")
      ->check(CLI::IsMember({"panels", "rows"}))
      ->capture_default_str();
  convert->add_option("--threads", convert_args->threads, "Threads (0: one per core)")
      ->check(CLI::Range(0, 1024));
  convert->callback([convert_args, &outcome] { outcome.exit_code = run_convert(*convert_args); });
}

}  // namespace fathom::cli
