// SPDX-License-Identifier: Apache-2.0
//
// StepTimer measures the phases of a replica's steps as c10d::Logger defines them. Events may
// repeat; the first one of a step counts. Thread rule: the caller's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <sherd/ddp/replicate.h>
#include "base/clock.h"

namespace sherd::ddp {

class StepTimer {
 public:
  void forward_began(Instant at) { set(forward_, at); }
  void gradient_came(Instant at) { set(gradient_, at); }
  void bucket_left(Instant at) { set(left_, at); }
  void backward_ended(Instant at) { set(ended_, at); }
  // The last average has arrived: the step counts.
  void step_ended(Instant at);
  // The step failed or was not reduced: it does not count.
  void drop_step();

  const ReplicaTimes& last() const { return last_; }
  ReplicaTimes mean() const;

 private:
  static void set(std::optional<Instant>& event, Instant at) {
    event = event.value_or(at);
  }

  std::optional<Instant> forward_;
  std::optional<Instant> gradient_;
  std::optional<Instant> left_;
  std::optional<Instant> ended_;
  ReplicaTimes last_;
  ReplicaTimes sum_;
  std::int64_t steps_ = 0;
};

}  // namespace sherd::ddp
