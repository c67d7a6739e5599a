// The flags of whatever loads a model: `serve`, and `chat` without a server.
#include "cli/model_options.h"

#include "cli/flag_values.h"

namespace fathom::cli {
namespace {

constexpr int64_t kKvBytesMax = int64_t{1} << 50;

CLI::Validator multiple_of_64() {
  const auto check = [](std::string& text) {
    int32_t value = 0;
    return CLI::detail::lexical_cast(text, value) && value % 64 == 0 ? std::string()
                                                                     : text + " is not a multiple of 64";
  };
  return CLI::Validator(check, "multiple of 64");
}

}  // namespace

void add_model_options(CLI::App& command, serve::LocalModelOptions& options) {
  EngineOptions& engine = options.engine;
  engine.threads = 0;  // until told: LocalModel takes all processors
  command
      .add_option("--model", options.model,
                  "Hugging Face folder of the model (default: the built-in demo model)")
      ->check(not_empty());
  command.add_option("--weights", options.weights, "Precision of the weights; native keeps the checkpoint's")
      ->check(CLI::IsMember({"native", "bf16", "fp8", "int8", "int4"}))
      ->capture_default_str();
  command.add_option("--served-model-name", options.name, "Name in the API (default: the folder's name)")
      ->check(not_empty());
  command.add_option("--threads", engine.threads, "Threads of the engine (default: all processors)")
      ->check(CLI::Range(1, 1024))
      ->default_str("");
  command
      .add_option("--numa", options.numa,
                  "auto: with several memory nodes, ranks stay on one each and pages lie near them; off: the "
                  "system decides")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str();
  command.add_option("--kv-memory", engine.kv_memory_bytes, "Memory for KV blocks, e.g. 512M or 8G")
      ->transform(byte_size(1, kKvBytesMax))
      ->capture_default_str();
  command
      .add_option("--max-context", engine.max_context, "Tokens of one request, prompt and answer together")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-running", engine.max_running, "Requests prefilled or decoded at a time")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--max-queued", engine.max_queued, "Requests that may wait; more get 503")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", engine.prefill_chunk_tokens,
                  "Most prompt tokens of one prefill step, over all ranks")
      ->check(CLI::Range(64, 1 << 16))
      ->check(multiple_of_64())
      ->capture_default_str();
  command.add_option("--prefill-ep", engine.prefill_ep, "Expert-parallel ranks of the prefill engine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--decode-ep", engine.decode_ep, "Expert-parallel ranks of the decode engine")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--redundant-experts", engine.redundant_experts,
                  "Extra replicas of experts in each EP group")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--dispatch", [&engine](const std::string&) { engine.dispatch_format = ActFormat::kFp8; },
          "fp8: dispatch carries FP8 whatever the weights are (default: what the experts read)")
      ->check(CLI::IsMember({"fp8"}));
  command.add_flag("--deterministic", engine.deterministic,
                   "Bit-equal answers whatever the batch, chunks, ranks, threads and cache; slower");
}

}  // namespace fathom::cli
