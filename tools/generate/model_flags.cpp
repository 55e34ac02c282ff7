// SPDX-License-Identifier: Apache-2.0
#include "generate/model_flags.h"

#include <CLI/CLI.hpp>
#include <sherd/base/error.h>

namespace sherd::tools {

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option(
         "--from", flags.from,
         "The model: a run or checkpoint of `sherd train`, or a folder with\n"
         "config.json and model.safetensors of a Hugging Face model")
      ->required()
      ->type_name("PATH");
  app.add_option("--weights", flags.weights, kWeightsHelp)
      ->type_name("NAME [model]");
  app.add_option(
         "--dtype", flags.dtype,
         "Of weights and arithmetic: fp32 or bf16, which takes half the memory")
      ->type_name("NAME [fp32]");
  app.add_flag("--json", flags.json, "Print one JSON object");
}

at::ScalarType dtype_of(const ModelFlags& flags) {
  if (flags.dtype == "bf16") {
    return at::kBFloat16;
  }
  if (flags.dtype != "fp32") {
    throw Error("--dtype: expected fp32 or bf16, found '" + flags.dtype + "'");
  }
  return at::kFloat;
}

}  // namespace sherd::tools
