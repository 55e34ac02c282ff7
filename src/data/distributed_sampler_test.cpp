// SPDX-License-Identifier: Apache-2.0
#include <sstream>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/data/distributed_sampler.h>
#include <torch/torch.h>

namespace sherd::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Indices = std::vector<std::size_t>;

Indices rest_of(DistributedSampler& sampler, std::size_t batch_size = 3) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

Indices epoch_of(
    std::int64_t size,
    const DistributedSamplerOptions& options,
    std::int64_t epoch = 0) {
  DistributedSampler sampler(size, options);
  sampler.set_epoch(epoch);
  sampler.reset();
  return rest_of(sampler);
}

// From list(torch.utils.data.DistributedSampler(range(10), 3, RANK, seed=7)) of torch 2.13.
TEST(DistributedSampler, GivesPyTorchsIndices) {
  DistributedSamplerOptions options{.num_replicas = 3, .seed = 7};
  EXPECT_THAT(epoch_of(10, options), ElementsAre(5, 4, 9, 2));
  EXPECT_THAT(epoch_of(10, options, 2), ElementsAre(0, 7, 9, 3));
  options.rank = 2;
  EXPECT_THAT(epoch_of(10, options), ElementsAre(3, 7, 8, 0));
  EXPECT_THAT(epoch_of(10, options, 2), ElementsAre(8, 2, 4, 5));
  options.drop_last = true;
  EXPECT_THAT(epoch_of(10, options), ElementsAre(3, 7, 8));
  EXPECT_EQ(DistributedSampler(10, options).size(), 3);
  EXPECT_THAT(
      epoch_of(2, {.num_replicas = 5, .rank = 4, .shuffle = false}),
      ElementsAre(0));
}

TEST(DistributedSampler, ALoaderFollowsTheCopyThatWasKept) {
  DistributedSampler kept(10, {.num_replicas = 2, .seed = 1});
  DistributedSampler moved = kept;
  kept.set_epoch(3);
  moved.reset();
  EXPECT_EQ(rest_of(moved), epoch_of(10, {.num_replicas = 2, .seed = 1}, 3));
  EXPECT_EQ(kept.position(), (SamplerPosition{.epoch = 3, .samples = 10}));
}

TEST(DistributedSampler, AnEpochGoesOnAtOnceOnAnyNumberOfRanks) {
  constexpr std::int64_t kSize = 101;
  const Indices whole = epoch_of(kSize, {.seed = 4}, 1);
  for (const std::int64_t before : {1, 2, 3, 4}) {
    DistributedSampler stopped(kSize, {.num_replicas = before, .seed = 4});
    stopped.set_epoch(1);
    stopped.reset();
    stopped.next(5);
    const auto position = stopped.position();
    EXPECT_EQ(position.samples, 5 * before);
    for (const std::int64_t after : {1, 2, 3, 4}) {
      Indices dealt;  // What all ranks together get, round by round.
      std::vector<Indices> ranks;
      for (std::int64_t rank = 0; rank < after; ++rank) {
        DistributedSampler sampler(
            kSize, {.num_replicas = after, .rank = rank, .seed = 4});
        sampler.restore(position);
        sampler.reset();
        ranks.push_back(rest_of(sampler, 7));
        EXPECT_EQ(sampler.size(), static_cast<std::int64_t>(ranks[0].size()));
        EXPECT_EQ(sampler.position().samples, kSize);
      }
      for (std::size_t i = 0; i < ranks[0].size(); ++i) {
        for (const auto& rank : ranks) {
          dealt.push_back(rank.at(i));
        }
      }
      const auto left = whole.size() - static_cast<std::size_t>(5 * before);
      ASSERT_GE(dealt.size(), left);
      dealt.resize(left);  // After them the first ones are repeated.
      EXPECT_EQ(dealt, Indices(whole.begin() + 5 * before, whole.end()));
    }
  }
}

TEST(DistributedSampler, TheNextEpochIsWholeAgain) {
  DistributedSampler sampler(10, {.seed = 4});
  sampler.restore({.epoch = 0, .samples = 6});
  sampler.reset();
  EXPECT_EQ(rest_of(sampler).size(), 4U);
  sampler.set_epoch(1);
  sampler.reset();
  EXPECT_EQ(rest_of(sampler), epoch_of(10, {.seed = 4}, 1));
}

TEST(DistributedSampler, TheEpochOfARestoredPositionGoesOnThere) {
  DistributedSampler sampler(10, {.seed = 4});
  sampler.set_epoch(2);
  sampler.reset();
  sampler.next(4);
  DistributedSampler other(10, {.seed = 4});
  other.restore(sampler.position());
  other.set_epoch(2);  // As each turn of a loop over epochs begins.
  other.reset();
  EXPECT_EQ(rest_of(other), rest_of(sampler));
  other.set_epoch(2);
  other.reset();
  EXPECT_EQ(rest_of(other), epoch_of(10, {.seed = 4}, 2));
}

TEST(DistributedSampler, ArchivesKeepThePosition) {
  DistributedSampler sampler(10, {.seed = 4});
  sampler.set_epoch(2);
  sampler.reset();
  sampler.next(4);
  std::stringstream bytes;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  DistributedSampler other(10, {.seed = 4});
  other.load(in);
  other.reset();
  EXPECT_EQ(rest_of(other), rest_of(sampler));
}

struct Numbers : torch::data::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    const auto value = torch::tensor(static_cast<std::int64_t>(index));
    return {value, value};
  }
  std::optional<std::size_t> size() const override { return 20; }
};

TEST(DistributedSampler, ServesADataLoader) {
  DistributedSampler sampler(20, {.num_replicas = 2, .rank = 1, .seed = 9});
  const auto loader = torch::data::make_data_loader(
      Numbers().map(torch::data::transforms::Stack<>()), sampler,
      torch::data::DataLoaderOptions().batch_size(4));
  for (const std::int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    Indices found;
    for (const auto& batch : *loader) {
      for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
        found.push_back(batch.data[i].item().to<std::size_t>());
      }
    }
    EXPECT_EQ(
        found, epoch_of(20, {.num_replicas = 2, .rank = 1, .seed = 9}, epoch));
  }
}

TEST(DistributedSampler, RefusesRanksOutsideOfTheWorldAndNoSamples) {
  EXPECT_THROW(DistributedSampler(0, {}), Error);
  EXPECT_THROW(DistributedSampler(1, {.num_replicas = 0}), Error);
  EXPECT_THROW(DistributedSampler(1, {.num_replicas = 2, .rank = 2}), Error);
  DistributedSampler sampler(1, {});
  EXPECT_THROW(sampler.restore({.epoch = 0, .samples = -1}), Error);
  EXPECT_THROW(sampler.reset(0), Error);
}

TEST(DistributedSampler, NamesItselfWhenItWasMovedFrom) {
  DistributedSampler first(10, {});
  const DistributedSampler second(std::move(first));
  EXPECT_THAT(
      // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
      [&] { first.set_epoch(1); },
      ThrowsMessage<Error>(
          HasSubstr("[data] DistributedSampler was moved from")));
}

}  // namespace
}  // namespace sherd::data
