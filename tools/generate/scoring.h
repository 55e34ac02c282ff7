// SPDX-License-Identifier: Apache-2.0
//
// How well a model predicts a text, and which of several texts it finds most likely. Thread rule:
// one thread; with a sharded model every rank makes the same calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <sherd/models/language_model.h>
#include <sherd/world/world.h>

namespace sherd::tools {

struct TextScore {
  std::int64_t tokens = 0;  // The predicted tokens: all but the first.
  double loss = 0.0;        // Mean cross entropy, in nats per token.
  double perplexity() const;
  // The score of both texts together.
  TextScore& operator+=(const TextScore& other);
};

// The ids are cut into windows of `sequence` tokens, which do not see each other; the ranks take
// turns. Collective. REQUIRES: at least 2 ids, all inside the model's vocabulary; a sequence of at
// least 1.
TextScore score_text(
    const World& world,
    models::LanguageModel& model,
    const std::vector<std::int64_t>& ids,
    std::int64_t sequence);

struct ChoiceTask {
  std::string prompt = {};
  std::vector<std::string> choices = {};  // At least 2.
  std::size_t answer = 0;                 // The index of the right one.
};

// One task per line: {"prompt": TEXT, "choices": [TEXT, ...], "answer": INDEX}. Throws Error naming
// path and line for an invalid one, and for a text without tasks.
std::vector<ChoiceTask> parse_choice_tasks(
    const std::string& text, const std::string& path);

// The mean log likelihood, in nats per token, of the tokens of `choice` after those of `prompt`.
// REQUIRES: at least one token each, and together no more than the model has positions.
double score_choice(
    models::LanguageModel& model,
    const std::vector<std::int64_t>& prompt,
    const std::vector<std::int64_t>& choice);

}  // namespace sherd::tools
