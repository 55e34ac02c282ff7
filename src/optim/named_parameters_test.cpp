// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/named_parameters.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

template <typename Items>
std::vector<std::string> names_of(const Items& items) {
  std::vector<std::string> names;
  for (const auto& item : items) {
    names.push_back(item.name);
  }
  return names;
}

TEST(Split, GivesEachParameterToOneSideInOrder) {
  int published = 0;
  NamedParameters all;
  for (const char* name : {"wte.weight", "h.0.fc.weight", "h.0.fc.bias"}) {
    all.items.push_back({name, torch::zeros({2})});
  }
  // This rank owns nothing of the last one.
  for (const char* name :
       {"wte.weight", "h.0.fc.weight", "h.0.fc.bias", "h.1.fc.weight"}) {
    all.whole.items.push_back({.name = name, .shape = {2, 3}});
  }
  all.whole.rank = 1;
  all.whole.ranks = 3;
  all.publish = [&] { ++published; };
  const auto [matching, rest] = split(all, {"none", "h.*.weight"});
  EXPECT_THAT(names_of(matching.items), ElementsAre("h.0.fc.weight"));
  EXPECT_THAT(
      names_of(matching.whole.items),
      ElementsAre("h.0.fc.weight", "h.1.fc.weight"));
  EXPECT_THAT(names_of(rest.items), ElementsAre("wte.weight", "h.0.fc.bias"));
  EXPECT_THAT(
      names_of(rest.whole.items), ElementsAre("wte.weight", "h.0.fc.bias"));
  for (const auto* side : {&matching, &rest}) {
    EXPECT_EQ(side->whole.rank, 1);
    EXPECT_EQ(side->whole.ranks, 3);
    side->publish();
  }
  EXPECT_EQ(published, 2);
}

TEST(Split, KnowsATiedParameterByAllOfItsNames) {
  NamedParameters all;
  all.items = {{"head", torch::zeros({2})}, {"fc", torch::zeros({2})}};
  all.tied_names = {{"embedding.weight", "head"}};
  for (const char* name : {"head", "embedding.*"}) {
    EXPECT_THAT(
        names_of(split(all, {name}).matching.items), ElementsAre("head"));
    EXPECT_THAT(names_of(split(all, {name}).rest.items), ElementsAre("fc"));
  }
}

TEST(Split, WithoutPatternsNothingMatches) {
  NamedParameters all;
  all.items.push_back({"a", torch::zeros({2})});
  EXPECT_THAT(split(all, {}).matching.items, IsEmpty());
  EXPECT_THAT(names_of(split(all, {}).rest.items), ElementsAre("a"));
}

}  // namespace
}  // namespace sherd
