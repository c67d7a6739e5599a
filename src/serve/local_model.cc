// From a folder or the built-in files to a running engine, with the memory plan checked first.
#include "serve/local_model.h"

#include <algorithm>
#include <cstdio>

#include "base/cpu.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress_bar.h"
#include "engine/memory_estimate.h"
#include "engine/model_parts.h"
#include "model/memory_plan.h"
#include "serve/embedded_file.h"
#include "text/utf8.h"

namespace fathom::serve {
namespace {

Result<std::unique_ptr<ModelSource>> open_source(const std::string& model) {
  if (!model.empty()) return open_model_folder(model);
  std::vector<NamedBytes> files;
  for (const EmbeddedFile& file : demo_model_files()) {
    files.push_back({std::string(file.name), std::as_bytes(std::span(file.bytes.data(), file.bytes.size()))});
  }
  if (files.empty()) return Status(StatusCode::kNotFound, "this binary was built without the built-in model");
  return make_memory_model_source("built-in model", std::move(files));
}

Result<TextAssets> read_text_files(const ModelSource& source) {
  return read_text_assets(source.label(), [&](const std::string& name) {
    return source.contains(name) ? source.read_text(name, kAssetBytesMax)
                                 : Result<std::string>(std::string());
  });
}

constexpr int64_t kContextMin = 64;  // as of --max-context

// What tokenizing takes for each byte of a text at worst: 151 measured, where the text is one word of which
// no two bytes are a token; 36-42 for digits. Large texts are tokenised one at a time.
constexpr int64_t kTokenizingBytesPerByte = 192;

int64_t tokenizing_bytes(const LocalModelOptions& options, const ModelConfig& config,
                         const Tokenizer& tokenizer) {
  // Longer texts are refused unread: no window could hold them even in the longest tokens.
  const int64_t context = std::min<int64_t>(options.engine.max_context, config.max_position_embeddings);
  const int64_t window_bytes = context * static_cast<int64_t>(tokenizer.longest_token_bytes());
  return kTokenizingBytesPerByte * std::min(options.text_bytes_max, window_bytes);
}

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// What a folder lacks without being wrong.
void warn_of_text_files(const TextAssets& assets, const Tokenizer& tokenizer,
                        const ChatTemplate& chat_template) {
  if (assets.tokenizer_config_json.empty()) {
    log_warning(
        "{}/tokenizer_config.json: missing or empty; no special token has a role, no BOS is put before texts",
        assets.source);
  }
  if (chat_template.is_published_format()) {
    log_warning("{}: no chat template; DeepSeek's published format stands in", assets.source);
  }
  for (const auto& [name, content] : tokenizer.named_tokens()) {
    const bool lost = (name == "bos_token" && !tokenizer.bos_id()) ||
                      (name == "eos_token" && !tokenizer.eos_id()) ||
                      (name == "pad_token" && !tokenizer.pad_id());
    if (lost) {
      log_warning("{}/tokenizer_config.json: {}: '{}' is no token of the vocabulary and has no effect",
                  assets.source, name, content);
    }
  }
}

// What the flags and the model's config rule out together, before anything large is read.
Status check_options(const LocalModelOptions& options, const ModelConfig& config, const std::string& label) {
  const EngineOptions& engine = options.engine;
  if (engine.redundant_experts > 0 && engine.prefill_ep == 1 && engine.decode_ep == 1) {
    return invalid_argument(
        "--redundant-experts {}: means nothing without --prefill-ep or --decode-ep above 1",
        engine.redundant_experts);
  }
  if (config.max_position_embeddings < kContextMin) {
    return invalid_argument("{}/config.json: max_position_embeddings: {}, a context has at least {} tokens",
                            label, config.max_position_embeddings, kContextMin);
  }
  return ok_status();
}

std::string folder_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

Result<std::unique_ptr<LocalModel>> LocalModel::load(const LocalModelOptions& options, const Clock& clock) {
  if (has_control_characters(options.name)) {
    return invalid_argument("--served-model-name {}: holds a control character", options.name);
  }
  // Requests name the model in JSON, which has no other text.
  if (!is_valid_utf8(options.name)) {
    return invalid_argument("--served-model-name {}: is not UTF-8", replace_invalid_utf8(options.name));
  }
  std::unique_ptr<LocalModel> local(new LocalModel);
  local->name_ = !options.name.empty()   ? options.name
                 : options.model.empty() ? kBuiltInModelName
                                         : printable(replace_invalid_utf8(folder_name(options.model)));
  ASSIGN_OR_RETURN(local->source_, open_source(options.model));
  local->source_label_ = local->source_->label();

  ASSIGN_OR_RETURN(const TextAssets assets, read_text_files(*local->source_));
  ASSIGN_OR_RETURN(local->tokenizer_, Tokenizer::load(assets));
  ASSIGN_OR_RETURN(local->chat_template_, ChatTemplate::load(assets, *local->tokenizer_));
  RETURN_IF_ERROR(local->chat_template_->check());

  EngineOptions engine = options.engine;
  if (engine.threads <= 0) engine.threads = static_cast<int32_t>(available_cpus().size());
  if (options.numa == "auto") engine.numa_nodes = numa_nodes();
  RETURN_IF_ERROR(engine.validate());  // before the long part
  LoadOptions load;
  ASSIGN_OR_RETURN(load.weights, parse_weights_option(options.weights));
  load.load_mtp = false;  // decoding does not speculate: nothing would read them
  ProgressBar progress("loading", /*log=*/true);
  if (options.show_progress) {
    load.progress = [&progress](int64_t done, int64_t total) { progress.show_bytes(done, total); };
  }
  ASSIGN_OR_RETURN(const ModelConfig announced, load_model_config(*local->source_));
  RETURN_IF_ERROR(check_options(options, announced, local->source_label_));
  warn_of_text_files(assets, *local->tokenizer_, *local->chat_template_);
  load.demand = MemoryDemand{.kv_bytes = engine.kv_memory_bytes,
                             .activation_bytes = activation_bytes(announced, engine),
                             .tokenizing_bytes = tokenizing_bytes(options, announced, *local->tokenizer_)};
  load.available = available_memory();
  load.pages = weight_pages(engine, announced.n_routed_experts);
  ThreadTeam team(engine.threads);
  ASSIGN_OR_RETURN(local->model_, Model::load(*local->source_, load, team));
  for (const std::string& warning : local->model_->weights().warnings) log_warning("{}", warning);

  const ModelConfig& config = local->model_->config();
  if (config.vocab_size < local->tokenizer_->vocab_size()) {
    log_warning("{}: the tokenizer has {} ids, the model {}; ids above are refused", local->source_label_,
                local->tokenizer_->vocab_size(), config.vocab_size);
  }
  if (config.max_position_embeddings > 0) {
    if (engine.max_context > config.max_position_embeddings) {
      log_warning("{}: --max-context {} is more than the model's {} positions, which are taken",
                  local->source_label_, engine.max_context, config.max_position_embeddings);
    }
    engine.max_context =
        static_cast<int32_t>(std::min<int64_t>(engine.max_context, config.max_position_embeddings));
  }
  engine.eos_token_ids = config.eos_token_ids;
  local->weights_text_ = load.weights ? fmt::format("linear layers {}", weight_format_name(*load.weights))
                                      : std::string("as in the checkpoint");
  MemoryDemand demand = *load.demand;
  demand.weights_bytes = local->model_->weights().bytes.total();
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(demand, load.available));
  local->memory_text_ = plan.text();
  ASSIGN_OR_RETURN(local->engine_, Engine::create(engine, *local->model_, clock));
  return local;
}

std::string LocalModel::summary() const {
  const ModelConfig& config = model_->config();
  const ModelWeights& weights = model_->weights();
  const ParameterCounts counts = count_parameters(config);
  const EngineOptions& limits = engine_->options();
  const EngineStats stats = engine_->stats();
  const int64_t kv_token_bytes = kv_bytes_per_token(config, weights.core_dtype);
  std::string text;
  text += fmt::format("model      {} ({}, {}), {:.3f} G parameters, {:.3f} G active\n", name_,
                      printable(source_label_), architecture_name(config.architecture),
                      static_cast<double>(counts.total) * 1e-9, static_cast<double>(counts.active) * 1e-9);
  text += fmt::format(
      "precision  weights {}; activations: attention {}, experts {}; attention core and KV {}{}\n",
      weights_text_, act_format_name(weights.attention_act), act_format_name(weights.ffn_act),
      dtype_name(weights.core_dtype), limits.deterministic ? "; deterministic" : "");
  text += fmt::format("processor  {}, {}, {} threads\n", cpu_model_name(), isa_name(active_isa()),
                      limits.threads);
  if (limits.numa_nodes.size() > 1)
    text += fmt::format("nodes      ranks, weights and KV over {} memory nodes\n", limits.numa_nodes.size());
  text += fmt::format("ranks      prefill EP{}, decode EP{}, {} experts + {} redundant\n", limits.prefill_ep,
                      limits.decode_ep, config.n_routed_experts, limits.redundant_experts);
  text += fmt::format("memory     {}\n", memory_text_);
  if (weights.mapped_bytes > 0) {
    text += fmt::format("           {:.2f} GiB of the weights are used as their files are mapped\n",
                        gib(weights.mapped_bytes));
  }
  text += fmt::format("KV         {} blocks of 64 tokens at {} bytes per token\n", stats.kv_blocks_total,
                      kv_token_bytes);
  text += fmt::format("limits     context {}, running {}, queued {}, prefill chunk {} tokens\n",
                      limits.max_context, limits.max_running, limits.max_queued, limits.prefill_chunk_tokens);
  return text;
}

}  // namespace fathom::serve
