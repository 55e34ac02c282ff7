// SPDX-License-Identifier: Apache-2.0
//
// The world of the model checker does what replicas do.
#include "ft/protocol/model_world_testing.h"

#include <algorithm>
#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

// Plays one path, choice by choice.
class ScriptedPath {
 public:
  explicit ScriptedPath(const ModelOptions& options)
      : model_(options), state_(model_.first()) {}

  bool can(const std::string& name) const {
    const auto choices = model_.choices(state_);
    return std::any_of(choices.begin(), choices.end(), [&](const auto& one) {
      return one.name == name;
    });
  }
  void take(const std::string& name) {
    const auto choices = model_.choices(state_);
    const auto found = std::find_if(
        choices.begin(), choices.end(),
        [&](const auto& one) { return one.name == name; });
    ASSERT_NE(found, choices.end()) << name;
    found->action(state_);
  }

 private:
  const Model model_;
  State state_;
};

// The computation of an old task ends later than a task that needs none.
TEST(ProtocolWorld, AnOldTaskThatEndsTakesNothingFromTheLastOne) {
  ScriptedPath way(
      {.steps = 1,
       .epochs = 1000,
       .crashes = 1,
       .partitions = 1,
       .latest_messages = true});
  for (const auto* name :
       {"report of 0",    "report of 1",          "report of 2",
        "order to 2",  // It computes.
        "2 is cut off",   "loss of 2 is noticed", "2 is reached again",
        "report of 2",    "1 is killed",          "loss of 1 is noticed",
        "order to 2",  // Replica 0 has samples, so this one follows.
        "2 has computed", "2 has joined",         "order to 0",
        "0 has joined",   "0 has computed",       "report of 0",
        "report of 2",    "order to 0",           "order to 2"}) {
    ASSERT_NO_FATAL_FAILURE(way.take(name));
  }
  EXPECT_TRUE(way.can("0 has reduced"));
  EXPECT_TRUE(way.can("2 has reduced"));
}

}  // namespace
}  // namespace sherd::ft
