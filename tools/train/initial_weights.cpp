// SPDX-License-Identifier: Apache-2.0
#include "train/initial_weights.h"

#include <string_view>
#include <sherd/base/error.h>
#include "train/saved_model.h"

namespace sherd::tools {
namespace {

CheckpointContent content_of(const std::string& path) {
  try {
    return checkpoint_content(checkpoint_at(path).value_or(path));
  } catch (const Error& error) {
    throw Error(
        std::string("--init-from: expected a checkpoint or a run with one "
                    "(sherd checkpoint import makes one of what transformers "
                    "has saved), found: ") +
        error.what());
  }
}

// "model NAME", as a report of loading has it.
bool is_weight(std::string_view name) { return name.starts_with("model "); }

}  // namespace

std::map<std::string, std::string> model_options_of(const std::string& path) {
  const auto content = content_of(path);
  std::map<std::string, std::string> options;
  if (!content.values.contains("train.config")) {
    return options;
  }
  const auto saved = saved_model(content);
  for (const auto& row : option_specs()) {
    if (row.group == std::string_view("Model") && !names_path(row)) {
      options[row.name] = text_of(row, saved.config);
    }
  }
  options["vocab"] = std::to_string(saved.vocabulary);
  return options;
}

void load_initial_weights(Trainer& trainer) {
  const auto& path = trainer.config().init_from;
  // Rank 0's answer: while that run goes on, others may see a newer one.
  const auto folder = trainer.world()
                          .all_gather_texts(checkpoint_at(path).value_or(path))
                          .front();
  CheckpointState state;
  state.add(trainer.engine().named_parameters());
  state.add_buffers(trainer.model());
  const auto report =
      load_checkpoint(trainer.world(), folder, state, {.strict = false});
  if (!report.missing.empty()) {
    throw Error(
        "--init-from: expected all weights of the model in " + folder +
        ", found no " + report.missing.front());
  }
  for (const auto& name : report.unexpected) {
    if (is_weight(name)) {
      throw Error(
          "--init-from: expected the weights of the model in " + folder +
          ", found " + name + ", too");
    }
  }
  trainer.engine().reset_average();
}

}  // namespace sherd::tools
