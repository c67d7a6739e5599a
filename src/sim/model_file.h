// The cost model's view of a model: by a known name, or from a Hugging Face config.json.
#pragma once

#include <string>

#include "base/status.h"
#include "sim/model_shape.h"

namespace fathom::sim {

// "deepseek-v3", "deepseek-v2-lite".
Result<ModelShape> known_model_shape(const std::string& name);
// file names the text in errors.
Result<ModelShape> model_shape_from_config(const std::string& file, std::string_view config_json);

}  // namespace fathom::sim
