// SPDX-License-Identifier: Apache-2.0
#include "train/model_options.h"

#include <string_view>
#include <variant>
#include <vector>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

std::vector<OptionSpec> model_rows() {
  std::vector<OptionSpec> rows;
  for (const auto& row : option_specs()) {
    if (row.group == std::string_view("Model") && !names_path(row)) {
      rows.push_back(row);
    }
  }
  return rows;
}

TrainConfig without_usual_head_width(TrainConfig config) {
  if (config.head_width * config.heads == config.width) {
    config.head_width = 0;  // This says the same.
  }
  return config;
}

template <typename MayDiffer>
void expect_model(
    const TrainConfig& given,
    const TrainConfig& model,
    const std::string& where,
    const MayDiffer& may_differ) {
  for (const auto& row : model_rows()) {
    const auto expected = text_of(row, model);
    const auto found = text_of(row, given);
    if (found != expected && !may_differ(row.name)) {
      throw Error(
          "--" + std::string(row.name) + ": expected " + expected +
          ", as in the model of " + where + ", found " + found);
    }
  }
}

}  // namespace

TrainConfig model_options(const TrainConfig& config) {
  TrainConfig options;
  for (const auto& row : model_rows()) {
    std::visit(
        [&](auto member) { options.*member = config.*member; }, row.member);
  }
  return options;
}

TrainConfig with_sizes_of(
    TrainConfig given, const TrainConfig& model, const std::string& where) {
  using C = TrainConfig;
  given = without_usual_head_width(given);
  for (const auto size :
       {&C::kv_heads, &C::intermediate, &C::head_width, &C::vocab}) {
    given.*size = given.*size == 0 ? model.*size : given.*size;
  }
  const bool rotary = model.model != "gpt";
  expect_model(given, model, where, [&](std::string_view name) {
    return name == "dropout" ||
        (rotary &&
         (name == "seq" || name == "rope-theta" || name == "rope-scaling"));
  });
  return given;
}

void expect_same_model(
    const TrainConfig& given,
    const TrainConfig& model,
    const std::string& where) {
  expect_model(
      without_usual_head_width(given), without_usual_head_width(model), where,
      [](std::string_view name) { return name == "dropout"; });
}

}  // namespace sherd::tools
