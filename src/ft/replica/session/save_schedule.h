// SPDX-License-Identifier: Apache-2.0
//
// Which replica saves which step. Replicas take turns and need no messages for it, because all know
// the members of the step. Around a failure they may disagree: then a step is saved twice or not at
// all, which does no harm. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sherd::ft {

struct SaveSchedule {
  std::int64_t step = 0;        // The step of the held state.
  std::int64_t save_every = 0;  // 0 turns saving off.
  int place = 0;                // This replica's index among the members.
  int replicas = 1;             // How many members there are.
};

inline bool saves_now(const SaveSchedule& turn) {
  return turn.save_every > 0 && turn.step > 0 && turn.replicas > 0 &&
      turn.step % turn.save_every == 0 &&
      turn.step / turn.save_every % turn.replicas == turn.place;
}

}  // namespace sherd::ft
