// SPDX-License-Identifier: Apache-2.0
//
// What the contract does not say of an exchange over several hosts: how many
// bytes travel, who keeps what, who is named when a rank dies.
#include "exchange/make_exchange.h"

#include <sys/resource.h>

#include <array>
#include <atomic>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "exchange/collective_exchange.h"
#include "exchange/contract_processes_testing.h"
#include "exchange/observed_transport_testing.h"
#include "exchange/unit_transport.h"
#include "world/host_segment.h"
#include "world/transport.h"

namespace sherd::exchange {
namespace {

using namespace contract;
using namespace std::chrono_literals;
using testing::HasSubstr;
using Hosts = std::vector<int>;  // Ranks on each.

std::vector<std::string> run_on(
    const Hosts& hosts, const RunOptions& options, const Body& body) {
  return run_in_processes(
      [](const World& world, const std::vector<int>& all) {
        return make_hierarchical_exchange(
            world, "test",
            world::make_c10d_transport(world, "test/gather", all));
      },
      std::accumulate(hosts.begin(), hosts.end(), 0), options, body, hosts);
}

// ---- bytes ----

// Counts what is received with tags of flats.
std::shared_ptr<world::Transport> counting(
    std::shared_ptr<world::Transport> inner,
    int first_tag,
    std::int64_t& bytes) {
  return std::make_shared<ObservedTransport>(
      std::move(inner),
      TransportObserver{
          .on_receive = [first_tag, &bytes](
                            const ObservedMessage& message, auto receive) {
            const bool counts = message.tag >= first_tag &&
                message.tag < world::Transport::kCollectiveTags;
            bytes += counts ? message.bytes : 0;
            return receive;
          }});
}

struct Received {
  std::int64_t units = 0;
  std::int64_t gradients = 0;
};

// By host: what its ranks receive of every unit, gathered once, and of one
// backward.
std::vector<Received> received_by_hosts(
    const Hosts& hosts, const std::function<ModelSpec(int ranks)>& make_model) {
  Received mine;  // Of the process that counts.
  const auto make = [&](const World& world, const std::vector<int>& all) {
    return make_collective_exchange(
        counting(
            world::make_c10d_transport(world, "gather", all), kFlatTag,
            mine.units),
        counting(
            world::make_c10d_transport(world, "reduce", all), 0,
            mine.gradients),
        [world, all](
            const ModelSpec& model, const auto& gather, const auto& reduce) {
          return make_hierarchical_unit_transport(
              world, "units", world::ranks_by_host(world, all), model, gather,
              reduce);
        });
  };
  const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
  const auto results = run_in_processes(
      make, ranks, {},
      [&](Seat& seat) {
        const auto model = make_model(ranks);
        open(seat, model);
        write_shards(*seat.exchange, model, seat.rank, 1);
        for (std::size_t u = 0; u < model.units.size(); ++u) {
          expect_whole(*seat.exchange, model, static_cast<UnitId>(u), 1);
        }
        run_backward(*seat.exchange, model, seat.rank);
        expect_sums(*seat.exchange, model, seat.rank, ranks);
        seat.result = str(mine.units, " ", mine.gradients);
      },
      hosts);
  std::vector<Received> by_host;
  std::size_t rank = 0;
  for (const int locals : hosts) {
    auto& sum = by_host.emplace_back();
    for (int local = 0; local < locals; ++local) {
      std::istringstream in(results[rank++]);
      Received one;
      in >> one.units >> one.gradients;
      sum.units += one.units;
      sum.gradients += one.gradients;
    }
  }
  return by_host;
}

TEST(HierarchicalExchange, AHostReceivesEveryByteFromElsewhereOnce) {
  for (const auto& hosts : {Hosts{2, 2}, Hosts{3, 1}}) {
    const auto found = received_by_hosts(hosts, mixed_model);
    const auto model = mixed_model(4);
    int first = 0;
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      const int end = first + hosts[h];
      std::int64_t elsewhere = 0;  // Shards of ranks that are not here.
      std::int64_t own = 0;        // Slices of ranks that are, as fp32 or fp64.
      for (const auto& unit : model.units) {
        for (const auto& flat : unit.flats) {
          const auto here = flat.layout.cuts[static_cast<std::size_t>(end)] -
              flat.layout.cuts[static_cast<std::size_t>(first)];
          elsewhere += (flat.layout.numel - here) *
              static_cast<std::int64_t>(
                           c10::elementSize(flat.unsharded_dtype()));
          own += !flat.trainable          ? 0
              : flat.dtype == at::kDouble ? 8 * here
                                          : 4 * here;
        }
      }
      EXPECT_EQ(found[h].units, elsewhere) << "host " << h;
      // One sum from each other host, of which there is one.
      EXPECT_EQ(found[h].gradients, own) << "host " << h;
      EXPECT_GT(elsewhere, 0);
      EXPECT_GT(own, 0);
      first = end;
    }
  }
}

// ---- readers ----

// Rank 1 keeps a unit whole while its neighbour goes on to others of its size.
TEST(HierarchicalExchange, APlaceThatANeighbourStillReadsIsNotLentAgain) {
  run_on({2, 2}, {}, [](Seat& seat) {
    auto model = make_model(
        4, {{{.numels = {600}}}, {{.numels = {600}}}, {{.numels = {600}}}});
    model.unsharded_bytes_max = unit_bytes(model.units[0]);
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    const UnshardOptions options{
        .in_backward = true, .unsharded_bytes_max = model.unsharded_bytes_max};
    seat.exchange->start_unshard(0, options).throw_if_failed();
    const auto at = seat.exchange->wait_for_unshard(0).value();
    const auto kept = torch::from_blob(at[0], {600});
    if (seat.rank != 1) {
      seat.exchange->reshard(0);
      for (const UnitId unit : {1, 2, 1}) {
        expect_whole(*seat.exchange, model, unit, 1, options);
        // What rank 1 keeps is not theirs.
        EXPECT_LE(
            seat.exchange->counters().slot_bytes, model.unsharded_bytes_max);
      }
    }
    run_backward(*seat.exchange, model, seat.rank);
    if (seat.rank == 1) {
      EXPECT_TRUE(torch::equal(kept, pattern(model, 0, 0, 1)));
      seat.exchange->reshard(0);
    }
    // Together again they keep to the limit.
    expect_whole(*seat.exchange, model, 2, 1, options);
    EXPECT_LE(seat.exchange->counters().slot_bytes, model.unsharded_bytes_max);
  });
}

// ---- failures ----

// The first failure, or success after so many steps.
Status train(Exchange& exchange, const ModelSpec& model, std::uint64_t steps) {
  for (std::uint64_t step = 1; step <= steps; ++step) {
    Status status;
    for (const UnitId unit : {0, 1, 2}) {
      status = status.ok() ? exchange.start_unshard(unit, {}) : status;
      status = status.ok() ? exchange.wait_for_unshard(unit).status() : status;
      if (status.ok()) {
        exchange.reshard(unit);
      }
    }
    for (const UnitId unit : {2, 1, 0}) {
      if (status.ok()) {
        fill_gradients(exchange, model, unit, 0);
        status = exchange.start_reduce(unit, reduce_options(model.unit(unit)));
      }
    }
    status = status.ok() ? exchange.end_backward(backward_end(model)).status()
                         : status;
    status = status.ok() ? exchange.publish(step) : status;
    if (!status.ok()) {
      return status;
    }
  }
  return {};
}

// Calls `waits` when a message from rank `from` is about to be waited for, which collectives do in
// the order of ranks.
std::shared_ptr<world::Transport> watched(
    std::shared_ptr<world::Transport> inner,
    int from,
    std::function<void()> waits) {
  return std::make_shared<ObservedTransport>(
      std::move(inner),
      TransportObserver{
          .on_receive = [from, waits = std::move(waits)](
                            const ObservedMessage& message,
                            auto receive) -> std::unique_ptr<world::Transfer> {
            if (message.peer != from) {
              return receive;
            }
            const auto before = [waits](const std::string&) {
              waits();
              return Status();
            };
            return std::make_unique<ObservedTransfer>(
                std::move(receive), before, nullptr);
          }});
}

// Of two hosts with two ranks each; rank 3 dies in the middle of training, when each of the others
// has the requests of the rest and waits for its request only: from one that comes later, rank 2
// is gone, too, and a rank that sees only connections cannot tell who was first.
void expect_named_in_time(bool blind_hosts) {
  Marks wait;
  test::RankOptions options;
  options.hosts = {2, 2};
  options.blind_hosts = blind_hosts;
  options.close_world = false;
  options.strikes = {{.child = 3, .point = "trained", .signal = SIGKILL}};
  const auto report = test::run_ranks(
      4,
      [&](World world, test::Rank& self) {
        Seat seat;
        seat.rank = world.rank();
        seat.ranks = 4;
        std::atomic<bool> trained = false;
        seat.exchange = make_hierarchical_exchange(
            world, "test",
            watched(
                world::make_c10d_transport(world, "test/gather", {0, 1, 2, 3}),
                3, [&] {
                  if (trained) {
                    wait.set(seat.rank);
                  }
                }));
        const auto model = plain_model(4);
        open(seat, model);
        train(*seat.exchange, model, 2).throw_if_failed();
        if (seat.rank == 3) {
          for (const int rank : {0, 1, 2}) {
            wait.wait_for(rank);
          }
          self.reach("trained");
        }
        trained = true;
        const auto status = train(*seat.exchange, model, 1U << 30U);
        EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
        EXPECT_THAT(status.message(), HasSubstr("rank 3"));
      },
      options);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(report[rank].exit_code, 0) << report[rank].output;
    EXPECT_LT(report.after_strike(rank), 10s) << "rank " << rank;
  }
}

TEST(HierarchicalExchange, AKilledRankIsNamedOnEveryHostInTime) {
  expect_named_in_time(false);
}

// As in earnest: only connections and neighbours tell.
TEST(HierarchicalExchange, AKilledRankIsNamedByHostsThatCannotSeeIt) {
  expect_named_in_time(true);
}

TEST(HierarchicalExchange, AHostWithoutMemoryIsNamedOnEveryRank) {
  run_on({2, 2}, {.disorderly = true}, [](Seat& seat) {
    if (seat.rank == 2) {  // The first of its host makes the segment.
      const rlimit none{.rlim_cur = 4096, .rlim_max = 4096};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
    }
    const auto status = seat.exchange->open(plain_model(4));
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("4096"));
    if (seat.rank < 2) {
      EXPECT_THAT(status.message(), HasSubstr("rank "));
    }
  });
}

// ---- the choice ----

TEST(KindFor, SharesMemoryWhereRanksShareAHost) {
  EXPECT_EQ(kind_for(Hosts{1}), Kind::kSharedMemory);
  EXPECT_EQ(kind_for(Hosts{4}), Kind::kSharedMemory);
  EXPECT_EQ(kind_for(Hosts{1, 1}), Kind::kCollective);
  EXPECT_EQ(kind_for(Hosts{2, 2}), Kind::kHierarchical);
  EXPECT_EQ(kind_for(Hosts{1, 3}), Kind::kHierarchical);
}

}  // namespace
}  // namespace sherd::exchange
