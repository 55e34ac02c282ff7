// SPDX-License-Identifier: Apache-2.0
#include "generate/scoring.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

at::Tensor row_of(const std::vector<std::int64_t>& ids) {
  return at::tensor(ids, at::kLong).unsqueeze(0);
}

ChoiceTask parse_choice_task(
    const std::string& line, const std::string& where) {
  try {
    const auto json = nlohmann::json::parse(line);
    ChoiceTask task{
        .prompt = json.at("prompt").get<std::string>(),
        .choices = json.at("choices").get<std::vector<std::string>>(),
        .answer = json.at("answer").get<std::size_t>()};
    // get() makes a number of 1.5 and of true, too.
    if (json.at("answer").is_number_unsigned() && task.choices.size() >= 2 &&
        task.answer < task.choices.size()) {
      return task;
    }
  } catch (const nlohmann::json::exception&) {
    // Reported below.
  }
  throw Error(
      where +
      R"(: expected {"prompt": TEXT, "choices": [TEXT, TEXT, ...], )"
      R"("answer": INDEX of a choice}, found ')" +
      line.substr(0, 60) + "'");
}

}  // namespace

double TextScore::perplexity() const { return std::exp(loss); }

TextScore& TextScore::operator+=(const TextScore& other) {
  const auto sum = loss * static_cast<double>(tokens) +
      other.loss * static_cast<double>(other.tokens);
  tokens += other.tokens;
  loss = tokens > 0 ? sum / static_cast<double>(tokens) : 0.0;
  return *this;
}

TextScore score_text(
    const World& world,
    models::LanguageModel& model,
    const std::vector<std::int64_t>& ids,
    std::int64_t sequence) {
  const at::NoGradGuard no_grad;
  const auto all = row_of(ids);
  const auto targets = static_cast<std::int64_t>(ids.size()) - 1;
  const auto windows = (targets + sequence - 1) / sequence;
  double sum = 0.0;
  // A rank without a window of its own repeats the last one, since every rank takes part in each
  // forward.
  for (std::int64_t first = 0; first < windows; first += world.size()) {
    const auto own = first + world.rank();
    const auto begin = std::min(own, windows - 1) * sequence;
    const auto end = std::min(begin + sequence, targets);
    const auto loss =
        model.loss(all.slice(1, begin, end), all.slice(1, begin + 1, end + 1));
    sum += own < windows
        ? loss.item<double>() * static_cast<double>(end - begin)
        : 0.0;
  }
  double total = 0.0;
  for (const auto& rank : world.all_gather({sum})) {
    total += rank[0];
  }
  return {.tokens = targets, .loss = total / static_cast<double>(targets)};
}

std::vector<ChoiceTask> parse_choice_tasks(
    const std::string& text, const std::string& path) {
  std::vector<ChoiceTask> tasks;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line != "\r") {
      tasks.push_back(
          parse_choice_task(line, path + ":" + std::to_string(number)));
    }
  }
  if (tasks.empty()) {
    throw Error(path + ": expected at least one line, found none");
  }
  return tasks;
}

double score_choice(
    models::LanguageModel& model,
    const std::vector<std::int64_t>& prompt,
    const std::vector<std::int64_t>& choice) {
  const at::NoGradGuard no_grad;
  auto ids = prompt;
  ids.insert(ids.end(), choice.begin(), choice.end());
  const auto row = row_of(ids);
  const auto first = static_cast<std::int64_t>(prompt.size());
  // The logits at a position predict the token after it.
  const auto logits = model.forward(row).slice(1, first - 1, row.size(1) - 1);
  const auto chosen = row.slice(1, first).unsqueeze(-1);
  return at::log_softmax(logits.to(at::kFloat), -1)
      .gather(-1, chosen)
      .mean()
      .item<double>();
}

}  // namespace sherd::tools
