// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/save_schedule.h"

#include <map>
#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

TEST(SaveSchedule, OneReplicaSavesWhatIsDueAndTheyTakeTurns) {
  for (const int replicas : {1, 2, 3, 4, 7}) {
    std::map<int, int> saves;
    for (std::int64_t step = 0; step <= 10 * 7 * 12; ++step) {
      int savers = 0;
      for (int place = 0; place < replicas; ++place) {
        const bool mine = saves_before(
            {.step = step + 1,
             .samples = {},
             .replicas = replicas,
             .place = place},
            10);
        savers += mine ? 1 : 0;
        saves[place] += mine ? 1 : 0;
      }
      EXPECT_EQ(savers, step > 0 && step % 10 == 0 ? 1 : 0) << step;
    }
    for (const auto& [place, count] : saves) {
      EXPECT_NEAR(count, 7 * 12 / replicas, 1) << place;
    }
  }
}

TEST(SaveSchedule, NeverWithoutAnInterval) {
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_FALSE(
        saves_before({.step = step + 1, .samples = {}, .replicas = 1}, 0));
  }
}

}  // namespace
}  // namespace sherd::ft
