// SPDX-License-Identifier: Apache-2.0
#include "generate/load_weights.h"

#include <string>
#include <vector>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include "train/hugging_face.h"
#include "train/weight_average.h"

namespace sherd::tools {
namespace {

// A report names "SECTION TENSOR"; tensors of an optimizer may remain unread.
void check(const LoadReport& report, const std::string& section) {
  if (!report.missing.empty()) {
    throw Error(
        report.folder + ": expected all weights of its model, found no " +
        report.missing.front());
  }
  for (const auto& name : report.unexpected) {
    if (name.starts_with(section + " ")) {
      throw Error(
          report.folder + ": expected the weights of its model, found " + name +
          ", too");
    }
  }
}

}  // namespace

void load_weights(
    const World& world,
    const ModelSource& source,
    const NamedParameters& parameters) {
  CheckpointState state;
  add_slices(state, source.section, parameters);
  if (source.files.empty()) {
    // Rank 0's answer is used: while the run goes on, others may see a newer one.
    const auto folder = world.all_gather_texts(source.weights).front();
    check(
        load_checkpoint(world, folder, state, {.strict = false}),
        source.section);
  } else {
    load_tensor_files(
        world, source.files, state, {.rename = [&](const std::string& name) {
          return name_from_hugging_face(source.config, name);
        }});
  }
  if (parameters.publish) {
    parameters.publish();
  }
}

}  // namespace sherd::tools
