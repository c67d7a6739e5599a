// The flags that `serve` and `chat` share: model, precision, ranks, memory and limits.
#pragma once

#include <CLI/CLI.hpp>

#include "serve/server.h"

namespace fathom::cli {

void add_model_options(CLI::App& command, serve::LocalModelOptions& options);

}  // namespace fathom::cli
