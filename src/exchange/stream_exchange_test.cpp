// SPDX-License-Identifier: Apache-2.0
//
// The order of streams in an exchange over devices: training steps have every wait that they need,
// and none that they do not.
#include "exchange/collective_exchange.h"
#include "exchange/contract_testing.h"
#include "exchange/stream_contract_testing.h"
#include "exchange/stream_reductions.h"
#include "exchange/stream_unit_transport.h"

#include <mutex>
#include <thread>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include "support/checking_device/checking_device.h"
#include "support/checking_device/thread_backend.h"
#include "support/fake_ranks.h"

namespace sherd::exchange {
namespace {

// Two units of one size share a place, a third has another.
ModelSpec three_units(int ranks) {
  auto model = contract::make_model(
      ranks,
      {{{.numels = {64}}},
       {{.numels = {64}, .param_dtype = at::kBFloat16},
        {.numels = {32}, .dtype = at::kDouble}},
       {{.numels = {64}}}});
  return model;
}

at::Tensor flat_at(void* address, const FlatSpec& flat, c10::Device device) {
  return at::for_blob(address, {flat.layout.numel})
      .options(at::device(device).dtype(flat.unsharded_dtype()))
      .target_device(device)
      .make_tensor();
}

// What training does with an exchange; it computes on the current stream.
class Trainer {
 public:
  Trainer(Exchange& exchange, const ModelSpec& model, c10::Device device)
      : exchange_(exchange), model_(model), device_(device) {
    exchange_.open(model).throw_if_failed();
  }

  void forward() {
    for (const UnitId unit : {0, 1, 2}) {
      use(unit, false);
    }
  }
  void backward() {
    for (const UnitId unit : {2, 1, 0}) {
      use(unit, true);
      reduce(unit);
    }
    end_backward();
  }
  void fill(UnitId unit) {
    for (const auto& slot : exchange_.gradient_slot(unit)) {
      slot.fill_(1);
    }
  }
  void reduce(UnitId unit, int under_way_max = 0) {
    fill(unit);
    auto options = contract::reduce_options(model_.unit(unit), 0.5);
    options.under_way_max = under_way_max;
    exchange_.start_reduce(unit, options).throw_if_failed();
  }
  void end_backward() {
    exchange_.end_backward(contract::backward_end(model_))
        .status()
        .throw_if_failed();
  }
  void update() {
    for (std::size_t u = 0; u < model_.units.size(); ++u) {
      for (std::size_t f = 0; f < model_.units[u].flats.size(); ++f) {
        const auto memory =
            exchange_.shard_memory(static_cast<UnitId>(u), static_cast<int>(f));
        memory.shard.add_(memory.gradient);
      }
    }
    exchange_.publish(++generation_).throw_if_failed();
  }
  void synchronize() { exchange_.synchronize(); }
  void overwrite_shard(UnitId unit, int flat) {
    exchange_.shard_memory(unit, flat).shard.fill_(3);
  }
  // Starts a gather that nobody waits for, and returns when it is in its stream.
  void put_gather_into_stream(UnitId unit) {
    exchange_.start_unshard(unit, {}).throw_if_failed();
    all_reduce(exchange_, {0.0}, ScalarReduceOp::kSum)
        .status()
        .throw_if_failed();
  }
  void use(UnitId unit, bool in_backward) {
    begin_use(unit, in_backward);
    exchange_.reshard(unit);
  }
  Exchange& exchange() { return exchange_; }
  std::int64_t gradient_bytes() const {
    return exchange_.counters().gradient_bytes;
  }
  void begin_use(UnitId unit, bool in_backward) {
    exchange_.start_unshard(unit, {.in_backward = in_backward})
        .throw_if_failed();
    read(unit);
  }
  void read(UnitId unit) {
    const auto at = exchange_.wait_for_unshard(unit).value();
    const auto& flats = model_.unit(unit).flats;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      (void)flat_at(at[f], flats[f], device_).sum();
    }
  }

 private:
  Exchange& exchange_;
  const ModelSpec& model_;
  const c10::Device device_;
  std::uint64_t generation_ = 0;
};

// Runs the body on one rank, which has no peers. Returns what was not in order.
std::string run_alone(
    const std::function<void(Trainer&, const c10::Device&)>& body,
    int secondary_ranks = 0,
    const ModelSpec& model = three_units(1)) {
  const auto device = test::checking_device();
  const auto world = World::single();
  test::ThreadNetwork network(1);
  std::string fault;
  {
    const auto exchange = make_collective_exchange(
        world::make_c10d_transport(world, "gather", {0}),
        world::make_c10d_transport(world, "reduce", {0}),
        over_devices(
            {.device = device,
             .gather = network.backend(0, "gathers"),
             .reduce = {.backend = network.backend(0, "reductions")},
             .gathers = {.secondary_ranks = secondary_ranks},
             .secondary = network.backend(0, "group")}));
    try {
      Trainer trainer(*exchange, model, device);
      body(trainer, device);
    } catch (const std::exception& error) {
      fault = error.what();
    }
  }
  for (const auto& of_free : test::take_faults(device)) {
    fault += of_free;
  }
  return fault;
}

void step(Trainer& trainer) {
  trainer.forward();
  trainer.backward();
  trainer.update();
}

// Ends with a unit and a slot in use.
void three_steps(Trainer& trainer, const c10::Device& /*device*/) {
  for (int i = 0; i < 3; ++i) {
    step(trainer);
  }
  trainer.begin_use(0, false);
  trainer.fill(1);
}

TEST(StreamExchange, T30EveryWaitIsNeeded) {
  std::vector<int> counts;
  {
    const test::StreamWaits waits(test::checking_device());
    ASSERT_EQ(run_alone(three_steps), "");
    counts = waits.counts();
  }
  ASSERT_EQ(counts.size(), 3U);  // To compute, to gather, to reduce.
  for (std::size_t stream = 0; stream < counts.size(); ++stream) {
    EXPECT_GE(counts[stream], 9) << "stream " << stream;
    for (int wait = 0; wait < counts[stream]; ++wait) {
      test::StreamWaits waits(test::checking_device());
      waits.leave_out(stream, wait);
      EXPECT_THAT(
          run_alone(three_steps), testing::HasSubstr("[checking device]"))
          << "without wait " << wait << " of stream " << stream;
    }
  }
}

TEST(StreamExchange, AStepMakesTheHostNeitherWaitNorAllocate) {
  const auto fault = run_alone([](auto& trainer, auto& device) {
    for (int i = 0; i < 3; ++i) {
      step(trainer);
    }
    trainer.synchronize();
    const auto before = test::host_synchronisations(device);
    {
      const test::CaptureScope capture(device);
      step(trainer);
    }
    EXPECT_EQ(test::host_synchronisations(device), before);
    trainer.synchronize();
    step(trainer);
  });
  EXPECT_EQ(fault, "");
}

TEST(StreamExchange, EndsInTheMiddleOfABackwardWithoutAFault) {
  EXPECT_EQ(
      run_alone([](auto& trainer, auto&) {
        trainer.reduce(2);
        trainer.use(1, true);  // Starts the reduction.
        trainer.use(0, true);
      }),
      "");
}

TEST(StreamExchange, EndsWithAGatherThatNobodyWaitedForWithoutAFault) {
  EXPECT_EQ(
      run_alone([](auto& trainer, auto&) {
        step(trainer);
        trainer.put_gather_into_stream(1);
      }),
      "");
}

TEST(StreamExchange, SynchronizeWaitsForGathersThatNobodyWaitedFor) {
  EXPECT_EQ(
      run_alone([](auto& trainer, auto&) {
        step(trainer);
        trainer.put_gather_into_stream(1);
        trainer.synchronize();
        trainer.update();
      }),
      "");
}

TEST(StreamExchange, ACapturedStepWaitsForNoGatherBeforeIt) {
  EXPECT_EQ(
      run_alone([](auto& trainer, auto& device) {
        step(trainer);
        trainer.put_gather_into_stream(1);
        trainer.synchronize();
        {
          const test::CaptureScope capture(device);
          trainer.read(1);
        }
        trainer.synchronize();
      }),
      "");
}

// Otherwise the captured step would not have all of it.
TEST(StreamExchange, WhoWaitsForAGatherWaitsForTheCopyForSecondaryShards) {
  const auto forward = [](auto& trainer, auto& device) {
    step(trainer);
    step(trainer);
    trainer.synchronize();
    {
      const test::CaptureScope capture(device);
      trainer.forward();
    }
    trainer.synchronize();
  };
  EXPECT_EQ(run_alone(forward, /*secondary_ranks=*/1), "");
}

using BodyOnRank =
    std::function<void(Trainer&, test::FakeRank&, test::ThreadNetwork&)>;

// Runs the body on ranks that are threads.
void run_on_ranks(
    int ranks,
    const ModelSpec& model,
    const contract::MakeOnDevice& make,
    const BodyOnRank& body) {
  (void)test::checking_device();
  test::ThreadNetwork network(ranks, std::chrono::seconds(10));
  test::run_fake_ranks(ranks, FakeOptions(), [&](test::FakeRank& self) {
    const auto device = test::checking_device(self.rank);
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    const auto exchange =
        make(self, contract::rank_device(network, self.rank, device));
    Trainer trainer(*exchange, model, device);
    body(trainer, self, network);
    self.barrier.arrive_and_wait();
  });
}

void run_on_two(const ModelSpec& model, const BodyOnRank& body) {
  run_on_ranks(
      2, model,
      [](auto& self, const auto& on) {
        return contract::make_among_all(self, on, 2);
      },
      body);
}

TEST(StreamExchange, AReductionStartsAtOnceWhereRanksHaveNothingElseToOrder) {
  auto model = three_units(2);
  model.placement = ModelPlacement::kReplicate;
  model.own_shards = false;
  run_on_two(model, [](auto& trainer, auto& self, auto& network) {
    const auto before = network.started(self.rank);
    trainer.reduce(2);
    EXPECT_EQ(network.started(self.rank) - before, 1);
    trainer.end_backward();
    EXPECT_EQ(network.started(self.rank) - before, 1);
  });
}

ModelSpec equal_units(int units, int owners = 2) {
  return contract::make_model(
      owners,
      std::vector<std::vector<contract::FlatSketch>>(
          static_cast<std::size_t>(units), {{.numels = {64}}}));
}

// Its slots are used again while backward goes on.
TEST(StreamExchange, ReductionsStartBeforeTheEndOfABackwardThatGathersNothing) {
  static constexpr int kUnits = 8;
  for (const auto placement :
       {ModelPlacement::kShard, ModelPlacement::kReplicate}) {
    auto model = equal_units(kUnits);
    model.placement = placement;
    run_on_two(model, [](auto& trainer, auto& self, auto& network) {
      trainer.update();
      for (int backward = 0; backward < 2; ++backward) {
        const auto before = network.started(self.rank);
        for (int unit = kUnits; unit-- > 0;) {
          trainer.reduce(unit, /*under_way_max=*/2);
        }
        EXPECT_GE(network.started(self.rank) - before, kUnits - 2);
        // Two are under way when the next slot is filled.
        EXPECT_LE(
            trainer.gradient_bytes(), 3 * unit_bytes(equal_units(1).unit(0)));
        trainer.end_backward();
        EXPECT_EQ(network.started(self.rank) - before, kUnits);
      }
    });
  }
}

// Two replicas of two ranks; the second one reduces in another order. Both axes: each of four ranks
// owns a part.
TEST(StreamExchange, T30SumsAcrossReplicasStartBeforeTheEndOfTheBackward) {
  static constexpr int kUnits = 6;
  for (const bool both_axes : {false, true}) {
    SCOPED_TRACE(both_axes);
    run_on_ranks(
        4, equal_units(kUnits, both_axes ? 4 : 2),
        [=](auto& self, const auto& on) {
          return contract::make_hybrid_on_device(self, on, both_axes);
        },
        [=](auto& trainer, auto& self, auto& network) {
          const int replica = both_axes ? self.rank % 2 : self.rank / 2;
          const auto order = replica == 0
              ? std::vector<UnitId>{5, 4, 3, 2, 1, 0}
              : std::vector<UnitId>{4, 5, 2, 3, 1, 0};
          trainer.update();
          for (int backward = 0; backward < 2; ++backward) {
            const auto before = network.started(self.rank);
            for (const auto unit : order) {
              trainer.reduce(unit);
            }
            trainer.use(0, true);  // Sums within start before it.
            // The first backward knows no order yet.
            const int across = backward == 0 ? 0 : kUnits;
            EXPECT_EQ(network.started(self.rank) - before, kUnits + across + 1);
            trainer.end_backward();
            EXPECT_EQ(network.started(self.rank) - before, 2 * kUnits + 1);
            trainer.update();
          }
        });
  }
}

// A rank of one replica is late with a unit, which brings all to another round. Replicas whose orders
// were different afterwards would add up gradients of different units.
TEST(StreamExchange, T30ReplicasHaveOneOrderAfterALateRound) {
  static constexpr int kUnits = 4;
  for (const bool both_axes : {false, true}) {
    SCOPED_TRACE(both_axes);
    const auto model = equal_units(kUnits, both_axes ? 4 : 2);
    run_on_ranks(
        4, model,
        [=](auto& self, const auto& on) {
          return contract::make_hybrid_on_device(self, on, both_axes);
        },
        [=](auto& trainer, auto& self, auto&) {
          auto& exchange = trainer.exchange();
          const auto reduce = [&](UnitId unit, bool accumulate) {
            exchange.gradient_slot(unit)[0].fill_(unit + 1);
            auto options = contract::reduce_options(model.unit(unit), 1.0);
            options.accumulate = {accumulate};
            exchange.start_reduce(unit, options).throw_if_failed();
          };
          trainer.update();
          for (int backward = 0; backward < 3; ++backward) {
            for (const UnitId unit : {2, 3, 1, 0}) {
              reduce(unit, false);
            }
            trainer.use(0, true);
            auto end = contract::backward_end(model);
            end.late[2] = self.rank == 3 && backward == 1;
            const auto outcome = exchange.end_backward(end).value();
            EXPECT_EQ(outcome.late[2], backward == 1);
            if (outcome.late[2]) {
              reduce(2, true);
              trainer.end_backward();
            }
            for (const UnitId unit : {0, 1, 2, 3}) {
              const auto gradient =
                  exchange.shard_memory(unit, 0).gradient.cpu();
              const int times = unit == 2 && backward == 1 ? 8 : 4;
              EXPECT_TRUE(
                  gradient.equal(at::full_like(gradient, times * (unit + 1))))
                  << "unit " << unit << " of backward " << backward << ": "
                  << gradient;
            }
            trainer.update();
          }
        });
  }
}

// A rank that fails may do so while its thread that gathers learns what the others have open.
TEST(StreamReductions, WhatWasAbandonedDoesNotStart) {
  const auto device = test::checking_device();
  const auto model = three_units(2);
  test::ThreadNetwork network(2);
  DeviceBuffers buffers(model, 0, device);
  const DeviceBackends backends{
      .device = device,
      .gather = network.backend(0, "gathers"),
      .reduce = {.backend = network.backend(0, "reductions")}};
  StreamReductions reductions(model, backends, buffers);
  const device::CurrentStream on(
      buffers.reduce_stream);  // Whose slots they are.
  for (const auto& flat : buffers.places.open_gradients(2)) {
    flat.fill_(1);
  }
  reductions.start(2, contract::reduce_options(model.unit(2), 0.5));
  const auto open = reductions.open_units();
  EXPECT_EQ(open, (std::vector<std::uint8_t>{0, 0, 1}));
  reductions.abandon();
  reductions.start_units(open);
  EXPECT_FALSE(reductions.under_way());
  EXPECT_EQ(network.started(0), 0);
}

// Rank 1 reduces in another order, and gathers a unit that rank 0 does not use.
TEST(StreamExchange, ReductionsOfRanksThatDifferStartInOneOrder) {
  run_on_two(equal_units(5), [](auto& trainer, auto& self, auto&) {
    trainer.update();
    const std::vector<UnitId> order = self.rank == 0
        ? std::vector<UnitId>{4, 3, 2, 1, 0}
        : std::vector<UnitId>{0, 4, 2, 3, 1};
    for (const UnitId unit : order) {
      if (self.rank == 1 && unit == 3) {
        trainer.use(unit, true);
      }
      trainer.reduce(unit);
    }
    trainer.end_backward();
  });
}

// A rank alone starts each reduction at once, so that its slot is the next one, too.
TEST(StreamExchange, ARankAloneNeedsOneGradientSlot) {
  const auto fault = run_alone([](auto& trainer, auto&) {
    trainer.reduce(2);
    const auto bytes = trainer.gradient_bytes();
    trainer.reduce(0);  // As large.
    EXPECT_EQ(trainer.gradient_bytes(), bytes);
    trainer.reduce(1);
    trainer.end_backward();
  });
  EXPECT_EQ(fault, "");
}

// From where they are, in any dtype.
TEST(StreamExchange, ARankAloneCopiesItsGradientsInTheCallersStream) {
  auto model = three_units(1);
  model.placement = ModelPlacement::kReplicate;
  const auto body = [&](Trainer& trainer, const c10::Device& device) {
    auto& exchange = trainer.exchange();
    trainer.reduce(1);  // In a stream of its own: its slot has another dtype.
    const test::StreamWaits waits(device);
    trainer.fill(0);
    auto options = contract::reduce_options(model.unit(0), 0.5);
    exchange.start_reduce(0, options).throw_if_failed();
    (void)exchange.gradient_slot(2);
    options.gradients = {
        at::full({64}, 3, at::device(device).dtype(at::kBFloat16))};
    exchange.start_reduce(2, options).throw_if_failed();
    // That of the caller's stream for the memory of a slot.
    EXPECT_EQ(waits.counts().size(), 1U);
    trainer.end_backward();
    for (const auto& [unit, sum] : {std::pair(0, 0.5), std::pair(2, 1.5)}) {
      const auto gradient = exchange.shard_memory(unit, 0).gradient.cpu();
      EXPECT_TRUE(torch::equal(gradient, torch::full({64}, sum)));
    }
    EXPECT_EQ(exchange.counters().reduces, 3);
    trainer.fill(0);
    options = contract::reduce_options(model.unit(0), 0.5);
    options.accumulate = {true};
    exchange.start_reduce(0, options).throw_if_failed();
    trainer.end_backward();
    EXPECT_TRUE(torch::equal(
        exchange.shard_memory(0, 0).gradient.cpu(), torch::ones({64})));
  };
  EXPECT_EQ(run_alone(body, 0, model), "");
}

// A rank that only assists another one's gather writes its shard afterwards. Returns what was not in
// order on rank 1, which leaves out some wait.
std::string run_assisted(
    const ModelSpec& model,
    const std::function<void(test::StreamWaits&)>& leave_out) {
  std::string fault;
  std::mutex mu;
  run_on_two(model, [&](auto& trainer, auto& self, auto&) {
    const auto device = test::checking_device(self.rank);
    std::optional<test::StreamWaits> waits;
    if (self.rank == 1) {
      waits.emplace(device);
      leave_out(*waits);
    }
    for (const UnitId unit : {2, 1, 0}) {
      trainer.reduce(unit);
    }
    if (self.rank == 0) {
      trainer.use(1, true);
    }
    trainer.end_backward();
    if (self.rank == 1) {
      try {
        trainer.overwrite_shard(1, 1);
        test::synchronise_with_host(device, "the end");
      } catch (const c10::Error& error) {
        fault = error.what_without_backtrace();
      }
    }
    self.barrier.arrive_and_wait();
    const std::lock_guard lock(mu);
    for (const auto& of_device : test::take_faults(device)) {
      fault += of_device;
    }
  });
  return fault;
}

// Rank 0 opens a slot between the start of a gather and the wait for it: when the gather, and with it a
// reduction, has begun, or before rank 1 lets it begin.
TEST(StreamExchange, HowManySlotsABackwardNeedsDoesNotDependOnTiming) {
  run_on_two(three_units(2), [](auto& trainer, auto& self, auto& network) {
    auto& exchange = trainer.exchange();
    std::int64_t bytes = 0;
    for (const bool early : {true, false}) {
      const auto before = network.started(self.rank);
      trainer.reduce(2);
      if (self.rank == 1 && !early) {
        self.barrier.arrive_and_wait();
      }
      exchange.start_unshard(0, {.in_backward = true}).throw_if_failed();
      if (self.rank == 0) {
        while (early && network.started(0) < before + 2) {
          std::this_thread::yield();
        }
        (void)exchange.progress();
        trainer.fill(0);  // As large as the slot of unit 2.
        if (!early) {
          self.barrier.arrive_and_wait();
        }
      }
      (void)exchange.wait_for_unshard(0).value();
      exchange.reshard(0);
      trainer.reduce(0);
      trainer.reduce(1);
      trainer.end_backward();
      const auto now = trainer.gradient_bytes();
      EXPECT_TRUE(bytes == 0 || bytes == now) << bytes << " and then " << now;
      bytes = now;
    }
  });
}

// A unit whose gather was waited for has made room.
TEST(StreamExchange, SlotsAreUsedAgainOnceAGatherSaysThatTheirReductionsBegan) {
  EXPECT_EQ(
      run_alone([](auto& trainer, auto&) {
        trainer.reduce(2);
        trainer.use(1, true);
        const auto before = trainer.gradient_bytes();
        trainer.reduce(0);
        EXPECT_EQ(trainer.gradient_bytes(), before);
        trainer.reduce(1);
        trainer.end_backward();
      }),
      "");
}

TEST(StreamExchange, ARankThatAssistsWritesItsShardAfterTheGather) {
  const auto model = three_units(2);
  EXPECT_EQ(run_assisted(model, [](auto&) {}), "");
  // Three waits for room in gradient slots and one for reductions come before.
  EXPECT_THAT(
      run_assisted(model, [](auto& waits) { waits.leave_out(0, 4); }),
      testing::HasSubstr("writes what an all-gather"));
}

TEST(StreamExchange, AHostThatAssistsWritesItsShardAfterTheGather) {
  auto model = three_units(2);
  model.shards_on_host = true;
  EXPECT_EQ(run_assisted(model, [](auto&) {}), "");
  // It waits for sums before.
  EXPECT_THAT(
      run_assisted(model, [](auto& waits) { waits.leave_out_of_host(1); }),
      testing::HasSubstr("[checking device]"));
}

}  // namespace
}  // namespace sherd::exchange
