// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/batches.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>
#include "support/scratch_folder.h"

namespace sherd::data {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Token i of the text is i, so a window shows where it was cut.
class BatchesTest : public ::testing::Test {
 protected:
  std::string counting(std::int64_t tokens) const {
    std::string bytes;
    for (std::int64_t i = 0; i < tokens; ++i) {
      bytes += static_cast<char>(i % 256);
      bytes += static_cast<char>(i / 256);
    }
    return folder_.file("counting.bin", bytes);
  }

  ScratchFolder folder_;
};

std::string refusal(const Corpus& corpus, const BatchOptions& options) {
  try {
    const GlobalBatches batches(corpus, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_F(BatchesTest, RowsAreWindowsOfTheTrainingTextAndTargetsFollowInputs) {
  const Corpus corpus(counting(1000));
  const GlobalBatches batches(corpus, {.batch = 6, .sequence = 8});
  EXPECT_EQ(batches.training_tokens(), 900);
  EXPECT_EQ(batches.validation_tokens(), 100);
  for (std::int64_t step = 0; step < 200; ++step) {
    const auto batch = batches.at(step);
    ASSERT_EQ(batch.inputs.sizes(), (std::vector<std::int64_t>{6, 8}));
    ASSERT_EQ(batch.inputs.scalar_type(), torch::kLong);
    ASSERT_TRUE(torch::equal(batch.inputs + 1, batch.targets));
    const auto first = batch.inputs.slice(1, 0, 1);
    ASSERT_TRUE(torch::equal(first + torch::arange(8), batch.inputs));
    ASSERT_GE(batch.inputs.min().item<std::int64_t>(), 0);
    ASSERT_LT(batch.targets.max().item<std::int64_t>(), 900);
  }
}

TEST_F(BatchesTest, RanksTakeDisjointRowsOfTheSameGlobalBatch) {
  const Corpus corpus(counting(5000));
  const GlobalBatches whole(corpus, {.batch = 84, .sequence = 16, .seed = 3});
  for (const int world_size : {1, 2, 3, 4, 7}) {
    std::vector<torch::Tensor> training;
    std::vector<torch::Tensor> validation;
    for (int rank = 0; rank < world_size; ++rank) {
      const GlobalBatches part(
          corpus,
          {.batch = 84,
           .sequence = 16,
           .seed = 3,
           .rank = rank,
           .world_size = world_size});
      EXPECT_EQ(part.validation_batches(), whole.validation_batches());
      training.push_back(part.at(11).inputs);
      validation.push_back(part.validation(0).targets);
    }
    EXPECT_TRUE(torch::equal(torch::cat(training), whole.at(11).inputs));
    EXPECT_TRUE(
        torch::equal(torch::cat(validation), whole.validation(0).targets));
  }
}

TEST_F(BatchesTest, AnEpochTakesEachWindowOnceAndThenCutsElsewhere) {
  // There is room for 90 training windows of 10 tokens; one is left for the offset, so 89.
  const Corpus corpus(counting(1000));
  const GlobalBatches batches(corpus, {.batch = 1, .sequence = 10});
  constexpr std::int64_t kWindows = 89;
  std::vector<std::vector<std::int64_t>> orders;
  std::set<std::int64_t> offsets;
  for (std::int64_t epoch = 0; epoch < 8; ++epoch) {
    std::set<std::int64_t> starts;
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < kWindows; ++i) {
      const auto start =
          batches.at(epoch * kWindows + i).inputs[0][0].item<std::int64_t>();
      starts.insert(start);
      order.push_back(start / 10);
    }
    ASSERT_EQ(starts.size(), static_cast<std::size_t>(kWindows));
    ASSERT_EQ(*starts.rbegin() - *starts.begin(), (kWindows - 1) * 10);
    offsets.insert(*starts.begin());
    orders.push_back(order);
  }
  EXPECT_GT(offsets.size(), 3U);
  EXPECT_NE(orders[0], orders[1]);
}

TEST_F(BatchesTest, TheSeedChangesTheOrderAndNothingElseDoes) {
  const Corpus corpus(counting(5000));
  const BatchOptions options{.batch = 8, .sequence = 16, .seed = 1};
  GlobalBatches walked(corpus, options);
  for (int i = 0; i < 5; ++i) {
    (void)walked.next();
  }
  auto reseeded = options;
  reseeded.seed = 2;
  const auto expected = GlobalBatches(corpus, options).at(5).inputs;
  EXPECT_TRUE(torch::equal(walked.next().inputs, expected));
  EXPECT_FALSE(
      torch::equal(GlobalBatches(corpus, reseeded).at(5).inputs, expected));
  EXPECT_TRUE(torch::equal(
      GlobalBatches(corpus, reseeded).validation(0).inputs,
      GlobalBatches(corpus, options).validation(0).inputs));
}

TEST_F(BatchesTest, ValidationRowsAreDistinctAndOutsideTheTrainingText) {
  const Corpus corpus(counting(10'000));
  const GlobalBatches batches(corpus, {.batch = 6, .sequence = 16});
  ASSERT_EQ(batches.validation_batches(), (1000 - 1) / 16 / 6);
  std::set<std::int64_t> starts;
  for (std::int64_t i = 0; i < batches.validation_batches(); ++i) {
    const auto batch = batches.validation(i);
    EXPECT_TRUE(torch::equal(batch.inputs + 1, batch.targets));
    for (std::int64_t row = 0; row < 6; ++row) {
      starts.insert(batch.inputs[row][0].item<std::int64_t>());
      EXPECT_LT(batch.targets[row][15].item<std::int64_t>(), 10'000);
    }
  }
  EXPECT_EQ(
      starts.size(),
      static_cast<std::size_t>(6 * batches.validation_batches()));
  EXPECT_GE(*starts.begin(), 9000);
  EXPECT_THROW((void)batches.validation(-1), Error);
  EXPECT_THROW((void)batches.validation(batches.validation_batches()), Error);
}

TEST_F(BatchesTest, ALongTextIsStripedAndEveryTokenIsInOneOfTheTwoTexts) {
  // 65,000 tokens, windows of 5: 20 stripes of 3250, 325 of each held out.
  const Corpus corpus(counting(65'000));
  const GlobalBatches batches(corpus, {.batch = 1, .sequence = 4});
  ASSERT_EQ(batches.validation_tokens(), 20 * 325);
  ASSERT_EQ(batches.training_tokens(), 20 * 2925);
  const auto held_out = [](std::int64_t token) { return token % 3250 >= 2925; };

  std::vector<std::int64_t> validation(6500);
  batches.copy_validation(0, 6500, validation.data());
  EXPECT_EQ(validation[0], 2925);
  EXPECT_EQ(validation[325], 3250 + 2925);
  EXPECT_EQ(
      std::set<std::int64_t>(validation.begin(), validation.end()).size(),
      6500U);
  EXPECT_TRUE(std::all_of(validation.begin(), validation.end(), held_out));
  EXPECT_THROW(batches.copy_validation(1, 6500, validation.data()), Error);

  std::set<std::int64_t> seen;
  constexpr std::int64_t kWindows = (20 * 2925 - 4) / 4;
  for (std::int64_t step = 0; step < kWindows; ++step) {
    const auto batch = batches.at(step);
    const auto* ids = batch.inputs.const_data_ptr<std::int64_t>();
    const auto* next = batch.targets.const_data_ptr<std::int64_t>();
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(seen.insert(ids[i]).second);
      ASSERT_FALSE(held_out(ids[i]));
      // The next token, except where the text skips a validation part.
      ASSERT_TRUE(next[i] == ids[i] + 1 || next[i] == ids[i] + 326);
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(seen.size()), 4 * kWindows);
}

TEST_F(BatchesTest, TheShortestTextStillTrainsAndValidates) {
  for (std::int64_t tokens = 18; tokens < 80; ++tokens) {
    const Corpus corpus(counting(tokens));
    const GlobalBatches batches(corpus, {.batch = 4, .sequence = 8});
    ASSERT_GE(batches.validation_tokens(), 9);
    for (std::int64_t step = 0; step < 20; ++step) {
      const auto batch = batches.at(step);
      ASSERT_TRUE(torch::equal(batch.inputs + 1, batch.targets));
      ASSERT_LT(
          batch.targets.max().item<std::int64_t>(), batches.training_tokens());
    }
    for (std::int64_t i = 0; i < batches.validation_batches(); ++i) {
      const auto held_out = batches.validation(i);
      ASSERT_TRUE(torch::equal(held_out.inputs + 1, held_out.targets));
      ASSERT_GE(
          held_out.inputs.min().item<std::int64_t>(),
          batches.training_tokens());
    }
  }
}

TEST_F(BatchesTest, AShorterTextIsRefusedNamingPathExpectedAndFound) {
  const auto path = counting(17);
  EXPECT_THAT(
      refusal(Corpus(path), {.batch = 4, .sequence = 8}),
      AllOf(
          HasSubstr(path), HasSubstr("expected at least 18 tokens"),
          HasSubstr("sequence 8"), HasSubstr("found 17")));
}

TEST_F(BatchesTest, ABatchThatTheWorldSizeDoesNotDivideIsRefused) {
  const Corpus corpus(counting(1000));
  const auto sentence =
      refusal(corpus, {.batch = 13, .sequence = 8, .rank = 1, .world_size = 4});
  EXPECT_THAT(
      sentence, AllOf(HasSubstr("batch 13"), HasSubstr("world size 4")));
  EXPECT_THAT(
      refusal(corpus, {.batch = 0, .sequence = 8}), HasSubstr("found 0 and 8"));
  EXPECT_THAT(
      refusal(corpus, {.batch = 4, .sequence = 8, .rank = 2, .world_size = 2}),
      HasSubstr("rank in [0, 2), found 2"));
}

TEST_F(BatchesTest, ARestoredPositionContinuesTheRun) {
  const Corpus corpus(counting(5000));
  const BatchOptions options{.batch = 8, .sequence = 16, .seed = 1};
  GlobalBatches first(corpus, options);
  for (int i = 0; i < 7; ++i) {
    (void)first.next();
  }
  const Position saved = first.position();
  EXPECT_EQ(saved.step, 7);

  // Another world size continues with the same global batches.
  auto halved = options;
  halved.rank = 1;
  halved.world_size = 2;
  GlobalBatches second(corpus, halved);
  second.restore(saved);
  EXPECT_EQ(second.position(), saved);
  EXPECT_TRUE(
      torch::equal(second.next().inputs, first.next().inputs.slice(0, 4, 8)));
}

TEST_F(BatchesTest, APositionOfAnotherRunIsRefusedAndChangesNothing) {
  const Corpus corpus(counting(5000));
  GlobalBatches batches(corpus, {.batch = 8, .sequence = 16, .seed = 1});
  (void)batches.next();
  const auto before = batches.position();
  const auto refused = [&](auto change) -> std::string {
    auto other = before;
    change(other);
    try {
      batches.restore(other);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(
      refused([](Position& p) { p.seed = 9; }),
      HasSubstr("saved seed 9, found 1"));
  EXPECT_THAT(
      refused([](Position& p) { p.batch = 9; }), HasSubstr("saved batch 9"));
  EXPECT_THAT(
      refused([](Position& p) { p.sequence = 9; }),
      HasSubstr("saved sequence 9"));
  EXPECT_THAT(
      refused([](Position& p) { p.corpus_hash += 1; }),
      HasSubstr("saved corpus hash"));
  EXPECT_THAT(refused([](Position& p) { p.step = -1; }), HasSubstr("found -1"));
  EXPECT_EQ(batches.position(), before);
}

}  // namespace
}  // namespace sherd::data
