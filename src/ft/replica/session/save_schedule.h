// SPDX-License-Identifier: Apache-2.0
//
// Which replica saves which step. Replicas take turns and need no messages for it, because all know
// the members of the step. Around a failure they may disagree: then a step is saved twice or not at
// all, which does no harm. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <sherd/ft/replica_session.h>

namespace sherd::ft {

// Whether this replica saves the state from which `next` is made; 0 turns saving off.
inline bool saves_before(const TrainingStep& next, std::int64_t save_every) {
  const auto held = next.step - 1;
  return !next.warms_up && save_every > 0 && held > 0 && next.replicas > 0 &&
      held % save_every == 0 && held / save_every % next.replicas == next.place;
}

}  // namespace sherd::ft
