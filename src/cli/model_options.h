// The flags that `serve` and `chat` share: model, precision, ranks, memory and limits.
#pragma once

#include <CLI/CLI.hpp>

#include "serve/server.h"

namespace fathom::cli {

void add_model_options(CLI::App& command, serve::LocalModelOptions& options);

// "512M", "2G", "1048576": bytes, with binary suffixes.
CLI::Validator byte_size();

}  // namespace fathom::cli
