// SPDX-License-Identifier: Apache-2.0
#include "generate/model_flags.h"

#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "option_adder.h"

namespace sherd::tools {

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  const auto add = option_adder(&app);
  add("--from", flags.from, "PATH",
      "The model: a run or checkpoint of `sherd train`, or a folder with\n"
      "config.json and model.safetensors of a Hugging Face model")
      ->required();
  add("--weights", flags.weights, "NAME [model]", kWeightsHelp);
  add("--dtype", flags.dtype, "NAME [fp32]",
      "Of weights and arithmetic: fp32 or bf16, which takes half the memory");
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
