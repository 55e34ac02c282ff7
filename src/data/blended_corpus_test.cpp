// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/data/batches.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/data/token_file.h>
#include <sherd/data/tokenizer.h>
#include <torch/torch.h>
#include "support/scratch_folder.h"
#include "support/working_directory.h"

namespace sherd::data {
namespace {

using sherd::testing::ScratchFolder;
using sherd::testing::WorkingDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kVocabulary = 100'000;

// Makes folders like those of `sherd data prepare`, in which token i is `first` + i.
class BlendedCorpusTest : public ::testing::Test {
 protected:
  void prepared(
      const std::string& name,
      std::int64_t first,
      std::int64_t count,
      const TokenFileOptions& options = {.vocabulary = kVocabulary}) const {
    folder_.file(name + "/about", "");  // Makes the folder.
    token_file(name + "/train.tokens", first, count, options);
  }
  void token_file(
      const std::string& name,
      std::int64_t first,
      std::int64_t count,
      const TokenFileOptions& options = {.vocabulary = kVocabulary}) const {
    TokenFileWriter writer(folder_.path() + "/" + name, options);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    writer.add(ids);
    writer.finish();
  }
  std::string path(const std::string& name) const {
    return folder_.path() + "/" + name;
  }
  std::string refusal(const std::string& name, CorpusOptions options = {}) {
    try {
      const BlendedCorpus corpus(path(name), options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  ScratchFolder folder_;
};

TEST_F(BlendedCorpusTest, APreparedFolderHasItsVocabularyAndValidation) {
  prepared("web", 0, 1000);
  EXPECT_EQ(BlendedCorpus(path("web")).validation(), nullptr);
  token_file("web/validation.tokens", 5000, 100);
  const BlendedCorpus corpus(path("web"));
  EXPECT_EQ(corpus.vocabulary(), kVocabulary);
  EXPECT_EQ(corpus.tokens(), 1000);
  ASSERT_NE(corpus.validation(), nullptr);
  const GlobalBatches batches(corpus, {.batch = 4, .sequence = 8});
  EXPECT_EQ(batches.training_tokens(), 1000);
  EXPECT_EQ(batches.validation_tokens(), 100);
  const auto inputs = batches.validation(0).inputs;
  EXPECT_GE(inputs.min().item<std::int64_t>(), 5000);
  EXPECT_LT(inputs.max().item<std::int64_t>(), 5100);
}

TEST_F(BlendedCorpusTest, SourcesTakeTurnsByTheirWeightsAndMissNothing) {
  prepared("a", 0, 8 * 600 + 1);
  prepared("b", 10'000, 8 * 2049 + 1);  // 2048 windows.
  token_file("news.tokens", 90'000, 100);
  folder_.file("blend.json", R"({"sources": [{"path": "a", "weight": 3},
      {"path": "b", "weight": 1}], "validation": "news.tokens"})");
  const BlendedCorpus corpus(path("blend.json"));
  const GlobalBatches batches(corpus, {.batch = 64, .sequence = 8});
  std::map<bool, std::int64_t> rows;  // By whether they are from b.
  std::set<std::int64_t> of_b;
  for (std::int64_t step = 0; step < 128; ++step) {  // Two blocks.
    const auto inputs = batches.at(step).inputs;
    for (std::int64_t i = 0; i < inputs.size(0); ++i) {
      const auto first = inputs[i][0].item<std::int64_t>();
      if (++rows[first >= 10'000]; first >= 10'000) {
        EXPECT_TRUE(of_b.insert(first).second) << first;
      }
    }
  }
  EXPECT_EQ(rows[false], 6144);
  EXPECT_EQ(rows[true], 2048);
  EXPECT_EQ(of_b.size(), 2048U);
}

TEST_F(BlendedCorpusTest, TheOrderIsTheSameOnAnyNumberOfRanksAndWhenResumed) {
  prepared("a", 0, 5000);
  prepared("b", 10'000, 3000);
  folder_.file("blend.json", R"({"sources": [{"path": "a", "weight": 0.7},
      {"path": "b", "weight": 0.3}]})");
  const BlendedCorpus corpus(path("blend.json"));
  const BatchOptions options{.batch = 12, .sequence = 16, .seed = 5};
  const GlobalBatches one(corpus, options);
  Position saved;
  for (const int ranks : {1, 2, 3, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      auto mine = options;
      mine.rank = rank;
      mine.world_size = ranks;
      GlobalBatches batches(corpus, mine);
      if (ranks > 1) {
        batches.restore(saved);  // Saved by a run with other ranks.
      }
      for (auto step = batches.position().step; step < 9 * ranks; ++step) {
        const auto found = batches.next();
        const auto share = 12 / ranks;
        const auto whole = one.at(step);
        ASSERT_TRUE(found.inputs.equal(
            whole.inputs.slice(0, rank * share, (rank + 1) * share)));
        ASSERT_TRUE(found.targets.equal(
            whole.targets.slice(0, rank * share, (rank + 1) * share)));
      }
      if (rank + 1 == ranks) {
        saved = batches.position();
      }
    }
  }
}

TEST_F(BlendedCorpusTest, TheHashChangesWithWeightsAndValidation) {
  prepared("a", 0, 100);
  prepared("b", 0, 200);
  const auto hash = [&](const std::string& json) {
    folder_.file("blend.json", json);
    return BlendedCorpus(path("blend.json")).hash();
  };
  const auto first = hash(R"({"sources": [{"path": "a"}, {"path": "b"}]})");
  EXPECT_NE(
      first,
      hash(R"({"sources": [{"path": "a"}, {"path": "b", "weight": 2}]})"));
  EXPECT_NE(first, hash(R"({"sources": [{"path": "b"}, {"path": "a"}]})"));
  EXPECT_NE(
      first,
      hash(
          R"({"sources": [{"path": "a"}, {"path": "b"}], "validation": "a"})"));
}

TEST_F(BlendedCorpusTest, ATokenizerIsFoundBesideABareFileName) {
  folder_.file("tokenizer.json", "{}");
  const auto digest = tokenizer_digest(folder_.path());
  token_file(
      "a.tokens", 0, 100,
      {.vocabulary = kVocabulary, .tokenizer_digest = digest});
  const WorkingDirectory in(folder_.path());
  EXPECT_EQ(BlendedCorpus("a.tokens").tokenizer_folder(), ".");
}

TEST_F(BlendedCorpusTest, ReadAheadTakesAnyRangeInside) {
  prepared("a", 0, 100'000);
  const Corpus corpus(path("a"));
  EXPECT_NO_THROW(corpus.read_ahead(0, 100'000));
  EXPECT_NO_THROW(corpus.read_ahead(99'999, 1));
  EXPECT_THROW(corpus.read_ahead(99'999, 2), Error);
}

TEST_F(BlendedCorpusTest, WhatDoesNotFitIsRefused) {
  prepared("a", 0, 100, {.vocabulary = kVocabulary, .tokenizer_digest = 5});
  prepared("b", 0, 100, {.vocabulary = kVocabulary, .tokenizer_digest = 7});
  prepared("c", 0, 100, {.vocabulary = kVocabulary + 1});
  folder_.file(
      "ab.blend.json", R"({"sources": [{"path": "a"}, {"path": "b"}]})");
  folder_.file(
      "ac.blend.json", R"({"sources": [{"path": "a"}, {"path": "c"}]})");
  folder_.file(
      "zero.blend.json", R"({"sources": [{"path": "a", "weight": 0}]})");
  folder_.file("none.blend.json", R"({"sources": []})");
  folder_.file("other.blend.json", R"({"source": "a"})");
  folder_.file("cut.blend.json", R"({"sources": [)");
  folder_.file(
      "wieght.blend.json", R"({"sources": [{"path": "a", "wieght": 9}]})");
  folder_.file(
      "validaton.blend.json",
      R"({"sources": [{"path": "a"}], "validaton": "a"})");
  prepared("unknown", 0, 100, {.vocabulary = kVocabulary});
  folder_.file(
      "au.blend.json", R"({"sources": [{"path": "a"}, {"path": "unknown"}]})");
  EXPECT_EQ(BlendedCorpus(path("au.blend.json")).sources().size(), 2U);
  folder_.file(
      "uab.blend.json",
      R"({"sources": [{"path": "unknown"}, {"path": "a"}, {"path": "b"}]})");
  EXPECT_THAT(
      refusal("uab.blend.json"),
      AllOf(HasSubstr("expected the tokenizer of"), HasSubstr("digest 7")));
  folder_.file(
      "uavb.blend.json",
      R"({"sources": [{"path": "unknown"}, {"path": "a"}], "validation": "b"})");
  EXPECT_THAT(
      refusal("uavb.blend.json"),
      AllOf(HasSubstr("expected the tokenizer of"), HasSubstr("digest 7")));
  EXPECT_THAT(
      refusal("ab.blend.json"),
      AllOf(HasSubstr("expected the tokenizer of"), HasSubstr("digest 7")));
  EXPECT_THAT(
      refusal("ac.blend.json"),
      AllOf(HasSubstr("vocabulary"), HasSubstr("found 100001")));
  EXPECT_THAT(
      refusal("zero.blend.json"), HasSubstr("expected a weight above 0"));
  EXPECT_THAT(refusal("none.blend.json"), HasSubstr("at least one source"));
  EXPECT_THAT(refusal("other.blend.json"), HasSubstr("expected {\"sources\""));
  EXPECT_THAT(refusal("cut.blend.json"), HasSubstr("expected {\"sources\""));
  EXPECT_THAT(
      refusal("wieght.blend.json"),
      HasSubstr("expected no keys but \"path\" and \"weight\" there, found "
                "\"wieght\""));
  EXPECT_THAT(
      refusal("validaton.blend.json"),
      AllOf(HasSubstr("\"validation\""), HasSubstr("found \"validaton\"")));
  EXPECT_THAT(
      refusal("a", {.vocabulary = 50}),
      AllOf(HasSubstr("vocabulary of at least 100000"), HasSubstr("found 50")));
  EXPECT_EQ(refusal("a", {.vocabulary = kVocabulary + 64}), "accepted");
}

TEST_F(BlendedCorpusTest, ATokenizerThatDidNotMakeTheFileIsRefused) {
  prepared("a", 0, 100);
  folder_.file("a/tokenizer.json", "{}");
  EXPECT_THAT(
      refusal("a"),
      AllOf(HasSubstr("tokenizer.json"), HasSubstr("found another one")));
}

TEST_F(BlendedCorpusTest, AWeightTooSmallForASampleIsRefused) {
  prepared("a", 0, 1000);
  prepared("b", 0, 1000);
  folder_.file("blend.json", R"({"sources": [{"path": "a", "weight": 100000},
      {"path": "b", "weight": 1}]})");
  const BlendedCorpus corpus(path("blend.json"));
  EXPECT_THROW(GlobalBatches(corpus, {.batch = 1, .sequence = 8}), Error);
}

TEST_F(BlendedCorpusTest, AnIdOutsideOfTheVocabularyIsFoundWhenItIsRead) {
  prepared("a", 0, 100);
  const auto file = path("a/train.tokens");
  std::FILE* stream = std::fopen(file.c_str(), "r+b");
  std::fseek(stream, 64 + 4 * 50, SEEK_SET);
  std::fwrite("\xFF\xFF\xFF\x7F", 1, 4, stream);
  std::fclose(stream);
  const Corpus corpus(path("a"));
  std::vector<std::int64_t> ids(100);
  EXPECT_NO_THROW(corpus.copy(0, 50, ids.data()));
  EXPECT_THROW(corpus.copy(50, 1, ids.data()), Error);
}

}  // namespace
}  // namespace sherd::data
