// SPDX-License-Identifier: Apache-2.0
//
// In which order requests and shards of a gather travel over messages: what the
// contract suite, which sees values only, does not tell.
#include <algorithm>
#include <gtest/gtest.h>
#include "base/check.h"
#include "exchange/collective_exchange.h"
#include "exchange/contract_fakes_testing.h"
#include "exchange/contract_processes_testing.h"
#include "exchange/observed_transport_testing.h"

namespace sherd::exchange::contract {
namespace {

constexpr int kRequestTag = 0;

// What a rank did on its gather transport, in order.
enum class Event { kShardSent, kShardAwaited, kRequestReceived };
using Events = std::vector<Event>;

// Its events are those of one thread at a time: the exchange's worker, and the test when it has
// waited for that.
std::shared_ptr<world::Transport> noting(
    std::shared_ptr<world::Transport> inner, Events& events) {
  return std::make_shared<ObservedTransport>(
      std::move(inner),
      TransportObserver{
          .on_send =
              [&events](const ObservedMessage& message) {
                if (message.is_shard()) {
                  events.push_back(Event::kShardSent);
                }
              },
          .on_receive = [&events](const ObservedMessage& message, auto receive)
              -> std::unique_ptr<world::Transfer> {
            if (message.is_shard()) {
              events.push_back(Event::kShardAwaited);
            }
            if (message.tag != kRequestTag) {
              return receive;
            }
            const auto after = [&events] {
              events.push_back(Event::kRequestReceived);
            };
            return std::make_unique<ObservedTransfer>(
                std::move(receive), nullptr, after);
          }});
}

// Every rank gathers unit 0 with the first options and 2 with the second, and
// then compares its events with what `check` expects of them.
using Check = std::function<void(const Events&, int ranks)>;

Body two_gathers(
    const UnshardOptions& options, std::vector<Events>& events, Check check) {
  return [=, &events](Seat& seat) {
    const auto model = plain_model(seat.ranks);
    auto& mine = events[static_cast<std::size_t>(seat.rank)];
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    for (const UnitId unit : {0, 2}) {
      mine.clear();
      expect_whole(*seat.exchange, model, unit, 1, options);
      check(mine, seat.ranks);
    }
  };
}

// Moves units by messages; `hooked`: a hook, which does nothing, reduces gradients.
MakeUnitTransport messages(bool hooked) {
  return [=](const ModelSpec& model, const auto& gathers,
             const auto& reductions) -> Result<std::unique_ptr<UnitTransport>> {
    std::optional<ReduceHook> hook;
    if (hooked) {
      hook = {.name = "nothing", .reduce = [](auto&&...) {}};
    }
    return make_message_unit_transport(model, gathers, reductions, {}, hook);
  };
}

void over_fakes_and_gloo(
    const UnshardOptions& options,
    const Check& check,
    const MakeUnitTransport& make = messages(false)) {
  for (const int ranks : {2, 3, 4}) {
    std::vector<Events> events(static_cast<std::size_t>(ranks));
    const auto body = two_gathers(options, events, check);
    for (const std::uint64_t seed : {0U, 1U, 2U, 3U}) {
      SCOPED_TRACE(str(ranks, " ranks, seed ", seed));
      const FakeOptions fake{
          .seed = seed, .delay_max = std::chrono::microseconds(300)};
      run_in_threads(
          [&](test::FakeRank& self) {
            return make_collective_exchange(
                noting(
                    self.network.transport(self.rank, "gather"),
                    events[static_cast<std::size_t>(self.rank)]),
                self.network.transport(self.rank, "reduce"), make);
          },
          fake, ranks, {}, body);
    }
    if (ranks > 3) {
      continue;
    }
    run_in_processes(
        [&](const World& world, const std::vector<int>& all) {
          return make_collective_exchange(
              noting(
                  world::make_c10d_transport(world, "gather", all),
                  events[static_cast<std::size_t>(world.rank())]),
              world::make_c10d_transport(world, "reduce", all), make);
        },
        ranks, {}, body);
  }
}

void expect_counts(const Events& events, int ranks) {
  for (const auto one :
       {Event::kShardSent, Event::kShardAwaited, Event::kRequestReceived}) {
    EXPECT_EQ(std::ranges::count(events, one), ranks - 1);
  }
}

void expect_shards_first(const Events& events, int ranks) {
  expect_counts(events, ranks);
  const auto first = std::ranges::find(events, Event::kRequestReceived);
  EXPECT_EQ(first - events.begin(), 2 * (ranks - 1));
}

TEST(EarlyShards, OfEqualPlansWaitForNoRequest) {
  over_fakes_and_gloo(
      {.in_backward = true, .planned = true}, expect_shards_first);
  // No rank may differ in forward.
  over_fakes_and_gloo({}, expect_shards_first);
}

TEST(EarlyShards, WaitForNoRequestWhereAHookReducesGradients) {
  over_fakes_and_gloo({}, expect_shards_first, messages(true));
}

TEST(EarlyShards, WithoutAPlanABackwardAsksAllRanksFirst) {
  over_fakes_and_gloo(
      {.in_backward = true}, [](const Events& events, int ranks) {
        expect_counts(events, ranks);
        EXPECT_EQ(
            std::count(
                events.begin(), events.begin() + ranks - 1,
                Event::kRequestReceived),
            ranks - 1);
      });
}

}  // namespace
}  // namespace sherd::exchange::contract
