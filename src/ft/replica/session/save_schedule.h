// SPDX-License-Identifier: Apache-2.0
//
// Which replica saves which step: they take turns, so that none bears it alone,
// and agree on it without a word, since they know the same of the step. Where they
// do not, as around a death, a step is saved twice or not at all, and no harm is
// done. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sherd::ft {

struct SaveSchedule {
  std::int64_t step = 0;        // That is held.
  std::int64_t save_every = 0;  // 0: never.
  int place = 0;                // Of this replica among those that train.
  int replicas = 1;             // How many they are.
};

inline bool saves_now(const SaveSchedule& turn) {
  return turn.save_every > 0 && turn.step > 0 && turn.replicas > 0 &&
      turn.step % turn.save_every == 0 &&
      turn.step / turn.save_every % turn.replicas == turn.place;
}

}  // namespace sherd::ft
