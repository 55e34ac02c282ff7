// SPDX-License-Identifier: Apache-2.0
#include "world/rounds.h"

#include <poll.h>
#include <optional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/process.h"
#include "base/status.h"
#include "world/rendezvous.h"
#include "world/store_wait.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kRound = "sherd/round";
constexpr const char* kClosed = "sherd/closed";
// How long a process of a former round may take to end once it was killed.
constexpr milliseconds kTimeToEnd(5000);
constexpr BackoffOptions kRoundPauses{
    .first = std::chrono::microseconds(200), .longest = milliseconds(20)};

// What the newest round is to a rank.
enum class Sight {
  kOpen,
  kNone,      // There is none, or all have closed its world.
  kFormer,    // Of former ranks, as far as can be known.
  kDisputed,  // The same, but the process in the way lives on this host.
  kOwn,       // This process is there with a world that is not closed.
};

bool lives_here(const RankRecord& other, const HostIdentity& here) {
  if (!same_pids(other.host, here)) {
    return false;
  }
  const Descriptor process = open_pidfd(other.pid);
  pollfd ended{process.get(), POLLIN, 0};
  return process.open() && ::poll(&ended, 1, 0) == 0 &&
      process_start_ticks(other.pid) == other.start_ticks;
}

class Rounds {
 public:
  Rounds(const StorePtr& agents, const RankRecord& mine, milliseconds deadline)
      : agents_(agents), mine_(mine), deadline_(deadline) {}

  Meeting meet() {
    const std::int64_t newest_at_arrival = newest();
    for (;;) {
      const std::int64_t number = choose();
      const StorePtr round = store_of(number);
      const auto records = rendezvous_unless_over(
          *round, mine_, deadline_, [&] { return newest() != number; });
      if (records) {
        return {.store = round, .records = *records};
      }
      // One that began after this rank came is its own round: whoever began
      // another meanwhile is another rank 0 of the same job.
      if (number > newest_at_arrival) {
        throw second_process(
            record_of(*round, 0).value(), root_that_comes(newest()));
      }
    }
  }

 private:
  std::int64_t newest() const { return agents_->add(kRound, 0); }

  StorePtr store_of(std::int64_t number) const {
    return c10::make_intrusive<c10d::PrefixStore>(
        str("round-", number), agents_);
  }

  // The rank 0 of a round, which counts the round before it claims its place there. Nothing if it
  // has died in between.
  std::optional<RankRecord> root_that_comes(std::int64_t number) const {
    const StorePtr round = store_of(number);
    std::optional<RankRecord> root;
    look_until(SteadyClock().now() + kTimeToEnd, kRoundPauses, [&] {
      root = record_of(*round, 0);
      return root.has_value();
    });
    return root;
  }

  // The round to join; on rank 0 a new one, if nothing is wrong.
  std::int64_t choose() {
    const SteadyClock clock;
    const Instant began = clock.now();
    Instant last_undisputed = began;
    std::int64_t number = 0;
    Sight sight = Sight::kNone;
    const auto may_begin = [&] {
      return mine_.rank == 0 &&
          (sight == Sight::kNone || sight == Sight::kFormer);
    };
    look_until(began + deadline_, kRoundPauses, [&] {
      number = newest();
      sight = look_at(number);
      const Instant now = clock.now();
      last_undisputed = sight == Sight::kDisputed ? last_undisputed : now;
      return may_begin() || sight == Sight::kOpen || sight == Sight::kOwn ||
          now - last_undisputed >= kTimeToEnd;
    });
    if (may_begin()) {
      return agents_->add(kRound, 1);
    }
    SHERD_CHECK_AS(
        kDeadlineExceeded, sight != Sight::kNone, "[world] rank ", mine_.rank,
        " expected rank 0 in the launcher's store within ", seconds(deadline_),
        " s, found nobody: rank 0 did not arrive");
    return number;  // Unless it is open, its rendezvous says what is wrong.
  }

  Sight look_at(std::int64_t number) const {
    const StorePtr round = store_of(number);
    if (number == 0 || round->check({kClosed})) {
      return Sight::kNone;
    }
    const auto root = record_of(*round, 0);
    if (!root) {
      return Sight::kNone;  // Its rank 0 is about to come, or has died.
    }
    if (const auto holder = record_of(*round, mine_.rank)) {
      return same_process(*holder, mine_) ? Sight::kOwn : former_of(*holder);
    }
    return root->world_size != mine_.world_size || has_verdict(*round)
        ? former_of(*root)
        : Sight::kOpen;
  }

  Sight former_of(const RankRecord& in_the_way) const {
    return lives_here(in_the_way, mine_.host) ? Sight::kDisputed
                                              : Sight::kFormer;
  }

  const StorePtr& agents_;
  const RankRecord& mine_;
  const milliseconds deadline_;
};

}  // namespace

Meeting meet_in_new_round(
    const StorePtr& agents, const RankRecord& mine, milliseconds deadline) {
  try {
    return Rounds(agents, mine, deadline).meet();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(
        "[world] the launcher's store was lost: " + first_line_of(error),
        ErrorCode::kPeerLost);
  }
}

void end_round(c10d::Store& round) { round.set(kClosed, "1"); }

}  // namespace sherd::world
