// A model with its tokenizer, template and engine in this process: what `fathom serve` and `fathom chat` run
// on.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/thread_team.h"
#include "engine/engine.h"
#include "model/weights.h"
#include "tensor/model_source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace fathom::serve {

struct LocalModelOptions {
  std::string model;               // a Hugging Face folder; empty: the built-in model
  std::string weights = "native";  // native, bf16, fp8, int8 or int4
  std::string name;                // empty: the folder's name, or kBuiltInModelName
  std::string numa = "auto";  // auto: over all memory nodes, if there are several; off: the system places all
  EngineOptions engine;       // threads 0: all processors; eos_token_ids are the model's
  int64_t text_bytes_max = 8 << 20;  // of one prompt: what its tokenizing may take is planned for
  bool show_progress = false;        // a bar on stderr while loading
};

inline constexpr const char* kBuiltInModelName = "fathom-demo";

class LocalModel {
 public:
  // Loads, packs and warms up. Errors are one line naming file, tensor or option, and the reason.
  static Result<std::unique_ptr<LocalModel>> load(const LocalModelOptions& options, const Clock& clock);

  const std::string& name() const { return name_; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate& chat_template() const { return *chat_template_; }
  Engine& engine() { return *engine_; }
  // Model, precision, ISA, ranks, memory plan and limits, a line each.
  std::string summary() const;

 private:
  LocalModel() = default;

  std::string name_;
  std::string source_label_;
  std::string weights_text_;  // "as in the checkpoint" or what they were turned into
  std::string memory_text_;   // the plan with its sum
  std::unique_ptr<ModelSource> source_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;  // last: it uses the model
};

}  // namespace fathom::serve
