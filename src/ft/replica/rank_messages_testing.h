// SPDX-License-Identifier: Apache-2.0
//
// Random tasks and events, for tests and fuzzers. Thread rule: one thread.
#pragma once

#include <bit>
#include <cstdint>
#include <variant>
#include "ft/replica/rank_messages.h"
#include "ft/wire/messages_testing.h"

namespace sherd::ft::test {

inline int random_int(RandomMessages& random) {
  return static_cast<int>(random.half() >> 1U);
}

inline RingMembership random_ring(RandomMessages& random) {
  return {random.epoch(), random.some<RingMember>([&] {
            return RingMember{
                random.half(),
                random.word(),
                random.text(),
                static_cast<std::uint16_t>(random.word()),
                {random.word(), random.word()}};
          })};
}

inline RankTask random_rank_task(RandomMessages& random) {
  switch (random.below(std::variant_size_v<RankTask>)) {
    case 0:
      return StartRunTask{random.word(), {random.word(), random.word()}};
    case 1:
      return random_ring(random);
    case 2:
      return ComputeTask{
          random.word(), random.state(), random.ranges(), random_int(random),
          random_int(random)};
    case 3:
      return ReduceTask{random.attempt(), random.some<double>([&] {
                          return std::bit_cast<double>(random.word());
                        })};
    case 4:
      return StopReduceTask{random.epoch()};
    case 5:
      return ApplyTask{random.commit()};
    case 6:
      return SnapshotTask{random.state()};
    case 7:
      return FetchTask{
          random.word(),
          random.some<RankAddress>([&] { return random.address(); }),
          random.state(), random.below(2) == 0};
    case 8:
      return StopCatchUpTask{};
    case 9:
      return InstallTask{random.word()};
    default:
      return StopTask{random.text()};
  }
}

inline RankEvent random_event(RandomMessages& random) {
  const auto digest = [&] {
    return random.maybe<StateDigest>([&] { return random.digest(); });
  };
  switch (random.below(std::variant_size_v<RankEvent>)) {
    case 0:
      return JoinedEvent{random.epoch()};
    case 1:
      return ReducedEvent{random.attempt(), random.word()};
    case 2:
      return random.suspicion();
    case 3:
      return WrittenEvent{random.word(), random.state(), digest()};
    case 4:
      return FetchedEvent{
          random.word(), random.text(), random.commit(), random.word()};
    case 5:
      return random.progress();
    case 6:
      return LeaveEvent{};
    case 7:
      return FinishedEvent{};
    case 8:
      return BadGradientsEvent{random.word(), random.fault()};
    default:
      return random.some<LinkSpeed>(
          [&] { return LinkSpeed{random.half(), random.word()}; });
  }
}

}  // namespace sherd::ft::test
