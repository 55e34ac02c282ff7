// SPDX-License-Identifier: Apache-2.0
#include "generate/scoring.h"

#include <cmath>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/models/gpt.h>
#include <torch/torch.h>
#include "support/error_of.h"

namespace sherd::tools {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::StartsWith;

models::Gpt tiny() {
  models::Gpt model(models::GptConfig{
      .layers = 1, .width = 8, .heads = 2, .sequence = 6, .vocabulary = 11});
  model->eval();
  return model;
}

// -log p of token `at` of ids, predicted from those from `first` on.
double surprise(
    models::Gpt& model,
    const std::vector<std::int64_t>& ids,
    std::size_t first,
    std::size_t at) {
  const std::vector<std::int64_t> seen(
      ids.begin() + static_cast<std::ptrdiff_t>(first),
      ids.begin() + static_cast<std::ptrdiff_t>(at));
  const auto logits =
      model->forward(torch::tensor(seen).unsqueeze(0))[0][-1].to(
          torch::kDouble);
  return (logits.exp().sum().log() - logits[ids[at]]).item<double>();
}

TEST(TextScore, OfSeveralTextsIsTheMeanOverTheirTokens) {
  TextScore all;
  all += {.tokens = 3, .loss = 1.0};
  all += {.tokens = 1, .loss = 5.0};
  EXPECT_EQ(all.tokens, 4);
  EXPECT_DOUBLE_EQ(all.loss, 2.0);
}

TEST(Scoring, TheLossOfATextIsTheMeanOverItsWindows) {
  auto model = tiny();
  const std::vector<std::int64_t> ids = {1, 7, 2, 9, 4, 4, 10, 0, 3};
  // Windows of three see ids 0 to 2, 3 to 5 and 6 to 7.
  double sum = 0;
  for (std::size_t at = 1; at < ids.size(); ++at) {
    sum += surprise(model, ids, (at - 1) / 3 * 3, at);
  }
  const auto found = score_text(World::single(), *model, ids, 3);
  EXPECT_EQ(found.tokens, 8);
  EXPECT_NEAR(found.loss, sum / 8, 1e-5);
  EXPECT_NEAR(found.perplexity(), std::exp(sum / 8), 1e-4);
  EXPECT_EQ(score_text(World::single(), *model, {1, 2}, 6).tokens, 1);
}

TEST(Scoring, AChoiceIsScoredByTheMeanOfItsTokensBehindThePrompt) {
  auto model = tiny();
  const std::vector<std::int64_t> ids = {1, 7, 2, 9, 4};
  const auto found = score_choice(*model, {1, 7, 2}, {9, 4});
  EXPECT_NEAR(
      found, -(surprise(model, ids, 0, 3) + surprise(model, ids, 0, 4)) / 2,
      1e-5);
  EXPECT_NEAR(
      score_choice(*model, {1}, {7}), -surprise(model, ids, 0, 1), 1e-5);
}

TEST(ChoiceTasks, AreReadLineByLine) {
  const auto tasks = parse_choice_tasks(
      R"({"prompt": "a", "choices": ["b", "c"], "answer": 1, "more": 0})"
      "\r\n\r\n\n"
      R"({"prompt": "", "choices": ["d", "e", "f"], "answer": 0})",
      "x");
  ASSERT_EQ(tasks.size(), 2U);
  EXPECT_EQ(tasks[0].prompt, "a");
  EXPECT_EQ(tasks[0].answer, 1U);
  EXPECT_THAT(tasks[1].choices, ElementsAre("d", "e", "f"));
}

TEST(ChoiceTasks, AnotherLineIsAnErrorThatNamesIt) {
  const std::string good = R"({"prompt": "a", "choices": ["b", "c"], )";
  for (const std::string& line :
       {std::string("text"), good + R"("answer": 2})",
        good + R"("answer": -1})", good + R"("answer": "b"})",
        good + R"("answer": 1.5})", good + R"("answer": true})",
        good + "\"x\":1}",
        std::string(R"({"prompt": "a", "choices": ["b"], "answer": 0})"),
        std::string(R"({"prompt": 1, "choices": ["b", "c"], "answer": 0})"),
        std::string("[]"), std::string("\x80")}) {
    EXPECT_THAT(
        error_of([&] {
          parse_choice_tasks(good + "\"answer\": 0}\n" + line, "tasks");
        }),
        StartsWith("tasks:2: expected {\"prompt\": TEXT"))
        << line;
  }
  EXPECT_EQ(
      error_of([] { parse_choice_tasks("\n", "tasks"); }),
      "tasks: expected at least one line, found none");
}

}  // namespace
}  // namespace sherd::tools
