// SPDX-License-Identifier: Apache-2.0
//
// The order of streams in an exchange over devices: training steps have every wait that they need,
// and none that they do not.
#include "exchange/collective_exchange.h"
#include "exchange/contract_testing.h"
#include "exchange/stream_contract_testing.h"
#include "exchange/stream_unit_transport.h"

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
  void reduce(UnitId unit) {
    fill(unit);
    exchange_
        .start_reduce(unit, contract::reduce_options(model_.unit(unit), 0.5))
        .throw_if_failed();
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
  void use(UnitId unit, bool in_backward) {
    begin_use(unit, in_backward);
    exchange_.reshard(unit);
  }
  std::int64_t gradient_bytes() const {
    return exchange_.counters().gradient_bytes;
  }
  void begin_use(UnitId unit, bool in_backward) {
    exchange_.start_unshard(unit, {.in_backward = in_backward})
        .throw_if_failed();
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
    const std::function<void(Trainer&, const c10::Device&)>& body) {
  const auto device = test::checking_device();
  const auto world = World::single();
  test::ThreadNetwork network(1);
  const auto model = three_units(1);
  std::string fault;
  {
    const auto exchange = make_collective_exchange(
        world::make_c10d_transport(world, "gather", {0}),
        world::make_c10d_transport(world, "reduce", {0}),
        over_devices(
            {.device = device,
             .gather = network.backend(0, "gathers"),
             .reduce = network.backend(0, "reductions")}));
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

TEST(StreamExchange, AReductionStartsAtOnceWhereNoUnitIsEverGathered) {
  (void)test::checking_device();
  for (const bool own_shards : {false, true}) {
    auto model = three_units(2);
    model.placement = ModelPlacement::kReplicate;
    model.own_shards = own_shards;
    test::ThreadNetwork network(2);
    test::run_fake_ranks(2, FakeOptions(), [&](test::FakeRank& self) {
      const auto device = test::checking_device(self.rank);
      c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
      const auto exchange = contract::make_among_all(
          self, contract::rank_device(network, self.rank, device), 2);
      Trainer trainer(*exchange, model, device);
      const auto before = network.started(self.rank);
      trainer.reduce(2);
      EXPECT_EQ(network.started(self.rank) - before, own_shards ? 0 : 1);
      trainer.end_backward();
      EXPECT_EQ(network.started(self.rank) - before, 1);
      self.barrier.arrive_and_wait();
    });
  }
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

// A rank that only assists another one's gather writes its shard afterwards. Returns what rank 1
// was told.
std::string run_assisted(int left_out) {
  FakeOptions fake;
  const auto model = three_units(2);
  test::ThreadNetwork network(2, std::chrono::seconds(10));
  std::string fault;
  (void)test::checking_device();
  test::run_fake_ranks(2, fake, [&](test::FakeRank& self) {
    const auto device = test::checking_device(self.rank);
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    std::optional<test::StreamWaits> waits;
    if (self.rank == 1) {
      waits.emplace(device);
      waits->leave_out(0, left_out);
    }
    const auto exchange = contract::make_among_all(
        self, contract::rank_device(network, self.rank, device), 2);
    Trainer trainer(*exchange, model, device);
    for (const UnitId unit : {2, 1, 0}) {
      trainer.reduce(unit);
    }
    if (self.rank == 0) {
      trainer.use(1, true);
    }
    trainer.end_backward();
    try {
      const auto memory = exchange->shard_memory(1, 1);
      memory.shard.fill_(3);
    } catch (const c10::Error& error) {
      fault = error.what_without_backtrace();
    }
    self.barrier.arrive_and_wait();
  });
  for (const int rank : {0, 1}) {
    const auto faults = test::take_faults(test::checking_device(rank));
    EXPECT_TRUE(faults.empty() || left_out >= 0);
  }
  return fault;
}

// Rank 0 opens a slot between the start of a gather and the wait for it: when the gather, and with it a
// reduction, has begun, or before rank 1 lets it begin.
TEST(StreamExchange, HowManySlotsABackwardNeedsDoesNotDependOnTiming) {
  const auto model = three_units(2);
  test::ThreadNetwork network(2, std::chrono::seconds(10));
  (void)test::checking_device();
  test::run_fake_ranks(2, FakeOptions(), [&](test::FakeRank& self) {
    const auto device = test::checking_device(self.rank);
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    const auto exchange = contract::make_among_all(
        self, contract::rank_device(network, self.rank, device), 2);
    Trainer trainer(*exchange, model, device);
    std::int64_t bytes = 0;
    for (const bool early : {true, false}) {
      const auto before = network.started(self.rank);
      trainer.reduce(2);
      if (self.rank == 1 && !early) {
        self.barrier.arrive_and_wait();
      }
      exchange->start_unshard(0, {.in_backward = true}).throw_if_failed();
      if (self.rank == 0) {
        while (early && network.started(0) < before + 2) {
          std::this_thread::yield();
        }
        (void)exchange->progress();
        trainer.fill(0);  // As large as the slot of unit 2.
        if (!early) {
          self.barrier.arrive_and_wait();
        }
      }
      (void)exchange->wait_for_unshard(0).value();
      exchange->reshard(0);
      trainer.reduce(0);
      trainer.reduce(1);
      trainer.end_backward();
      const auto now = exchange->counters().gradient_bytes;
      EXPECT_TRUE(bytes == 0 || bytes == now) << bytes << " and then " << now;
      bytes = now;
    }
    self.barrier.arrive_and_wait();
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
  EXPECT_EQ(run_assisted(-1), "");
  // Three waits for room in gradient slots and one for reductions come before.
  EXPECT_THAT(run_assisted(4), testing::HasSubstr("writes what an all-gather"));
}

}  // namespace
}  // namespace sherd::exchange
