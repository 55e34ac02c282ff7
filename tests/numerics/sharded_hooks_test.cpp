// SPDX-License-Identifier: Apache-2.0
//
// Communication hooks of sharded models: in the reduce to shards, between replicas of a mesh, and where
// every rank is a replica (A39, B19).
#include <sherd/ddp/replicate.h>
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <map>
#include <stdexcept>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct HookedCase {
  int replicas = 1;
  ExchangeKind exchange = ExchangeKind::kCollective;
  OptimizerAxes axes = OptimizerAxes::kShard;
  std::optional<double> divide_factor = std::nullopt;
};

const HookedCase kHookedCases[] = {
    {.replicas = 1, .divide_factor = 2.0},
    {.replicas = 1, .exchange = ExchangeKind::kSharedMemory},
    {.replicas = 2, .divide_factor = 1.0},
    {.replicas = 2, .exchange = ExchangeKind::kSharedMemory},
    {.replicas = 2, .axes = OptimizerAxes::kBoth},
    {.replicas = 4}};

FullyShardOptions options_of(const HookedCase& one, CommHookPtr hook) {
  FullyShardOptions options;
  options.exchange = one.exchange;
  options.optimizer_axes = one.axes;
  options.gradient_divide_factor = one.divide_factor;
  options.hook = std::move(hook);
  return options;
}

models::Gpt hooked_gpt() { return small_gpt({.tied = false}); }

struct HookedRun {
  std::vector<torch::Tensor> gradients;  // Of each step.
  std::vector<torch::Tensor> slices;     // At the end.
  std::vector<double> losses;            // The means over ranks.
  ShardReport report;
};

// Each step of two micro-batches, of which the first is not summed across replicas.
HookedRun run_hooked(
    const World& world,
    int replicas,
    const FullyShardOptions& options,
    int steps = 2) {
  auto model = hooked_gpt();
  auto fsdp =
      fully_shard(*model, Mesh(world, {.replicate = replicas}), options);
  torch::optim::SGD sgd(fsdp.parameters(), torch::optim::SGDOptions(0.3));
  HookedRun run;
  for (int step = 0; step < steps; ++step) {
    {
      const auto scope = fsdp.no_sync({.axis = NoSyncAxis::kReplicate});
      (token_loss(model, 0, world.rank()) / 2).backward();
    }
    auto loss = token_loss(model, 0, world.rank());
    double mean = 0;
    for (const auto& theirs : world.all_gather({loss.item<double>()})) {
      mean += theirs[0] / world.size();
    }
    run.losses.push_back(mean);
    (loss / 2).backward();
    for (const auto& slice : fsdp.parameters()) {
      run.gradients.push_back(slice.grad().clone());
    }
    sgd.step();
    sgd.zero_grad();
    fsdp.publish();
  }
  for (const auto& slice : fsdp.parameters()) {
    run.slices.push_back(slice.detach().clone());
  }
  run.report = fsdp.report();
  return run;
}

void expect_equal_bits(
    const std::vector<torch::Tensor>& found,
    const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << "tensor " << i;
  }
}

// With a power of two of ranks every scale is exact.
TEST(ShardedHooks, A39TheMeanIsWhatNoHookGivesOnEveryMesh) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const auto& one : kHookedCases) {
      SCOPED_TRACE(str(one.replicas, " replicas"));
      const auto plain =
          run_hooked(world, one.replicas, options_of(one, nullptr));
      const auto hooked =
          run_hooked(world, one.replicas, options_of(one, all_reduce_mean()));
      expect_equal_bits(hooked.gradients, plain.gradients);
      expect_equal_bits(hooked.slices, plain.slices);
      EXPECT_EQ(hooked.report.hook, "all_reduce_mean");
      EXPECT_EQ(plain.report.hook, "");
    }
  }));
}

// ---- compression ----

// A gradient of one process over all ranks' passes, and the largest magnitude of any rank's.
struct Expected {
  std::map<std::string, torch::Tensor> means;
  std::map<std::string, double> largest;
};

Expected one_process(const World& world) {
  auto model = hooked_gpt();
  Expected expected;
  for (int rank = 0; rank < world.size(); ++rank) {
    model->zero_grad();
    token_loss(model, 0, rank).backward();
    for (const auto& item : model->named_parameters()) {
      const auto part = item.value().grad() / world.size();
      auto& mean = expected.means[item.key()];
      mean = mean.defined() ? mean + part : part;
      auto& largest = expected.largest[item.key()];
      largest =
          std::max(largest, item.value().grad().abs().max().item<double>());
    }
  }
  return expected;
}

// Bytes of one backward's gradients, of which each replica has all once.
std::int64_t bytes_of_gradients(const std::vector<UnitReport>& units) {
  std::int64_t bytes = 0;
  for (const auto& unit : units) {
    for (const auto& flat : unit.flats) {
      bytes += flat.numel * 4;
    }
  }
  return bytes;
}

// Each number is rounded where it is sent, and the mean once more.
TEST(ShardedHooks, A39CompressionSendsHalfAndRoundsTwice) {
  expect_all_ok(run_ranks(4, [](World world) {
    const auto expected = one_process(world);
    for (const auto& one : kHookedCases) {
      if (one.divide_factor) {
        continue;
      }
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(str(one.replicas, " replicas, ", dtype));
        const bool narrow = dtype != at::kFloat;
        const auto options =
            options_of(one, narrow ? compress(dtype) : all_reduce_mean());
        auto model = hooked_gpt();
        const Mesh mesh(world, {.replicate = one.replicas});
        const Slicing slicing(*model, mesh, options);
        auto fsdp = fully_shard(*model, mesh, options);
        token_loss(model, 0, world.rank()).backward();
        const double rounding = !narrow ? 1e-6
            : dtype == at::kHalf        ? 1.0 / 1024
                                        : 1.0 / 128;
        for (const auto& item : fsdp.named_parameters().items) {
          const auto mean = slicing.of(item.name, expected.means.at(item.name));
          const double error =
              (item.slice.grad() - mean).abs().max().item<double>();
          EXPECT_LE(error, rounding * expected.largest.at(item.name) + 1e-7)
              << item.name;
        }
        const double sent = static_cast<double>(fsdp.report().hook_bytes);
        double of_all = 0;
        for (const auto& theirs : world.all_gather({sent})) {
          of_all += theirs[0];
        }
        // To shards, and as a replica, a rank reduces all of the model, else its shard.
        const double copies = one.replicas == 2 ? one.replicas : world.size();
        const double whole =
            static_cast<double>(bytes_of_gradients(fsdp.units()));
        EXPECT_EQ(of_all, copies * whole / (narrow ? 2 : 1));
      }
    }
  }));
}

// ---- PowerSGD ----

TEST(ShardedHooks, A39PowerSgdAcrossReplicasTrainsEqualReplicas) {
  expect_all_ok(run_ranks(4, [](World world) {
    const auto hook = power_sgd({.rank = 1, .start_step = 2});
    const auto run =
        run_hooked(world, 2, options_of({.replicas = 2}, hook), 10);
    EXPECT_LT(run.losses.back(), run.losses.front() - 0.05);
    double checksum = 0;
    for (const auto& slice : run.slices) {
      checksum =
          checksum * 1.01 + slice.to(torch::kDouble).sum().item<double>();
    }
    const auto all = world.all_gather({checksum});
    const auto rank = static_cast<std::size_t>(world.rank());
    EXPECT_EQ(all[rank], all[(rank + 2) % 4]);
    const auto mean = run_hooked(
        world, 2, options_of({.replicas = 2}, all_reduce_mean()), 10);
    EXPECT_LT(run.report.hook_bytes, mean.report.hook_bytes * 2 / 3);
    for (std::size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], mean.losses[i], 0.1 * mean.losses[i]);
    }
    int errors = 0;
    for (const auto& [name, tensor] : hook->state()) {
      EXPECT_THAT(name, Not(HasSubstr("["))) << "a part of a row";
      errors += name.starts_with("error.") ? 1 : 0;
    }
    EXPECT_GT(errors, 3);
  }));
}

// What it sends of a parameter depends neither on its bucket nor on its unit.
TEST(ShardedHooks, A39PowerSgdIsThatOfReplicas) {
  expect_all_ok(run_ranks(4, [](World world) {
    const PowerSgdOptions options{.rank = 2, .start_step = 1};
    auto sharded = hooked_gpt();
    auto replicated = hooked_gpt();
    auto fsdp = fully_shard(
        *sharded, Mesh(world, {.replicate = 4}),
        options_of({.replicas = 4}, power_sgd(options)));
    auto ddp = replicate(*replicated, world, {.hook = power_sgd(options)});
    const auto expected = replicated->named_parameters();
    for (int step = 0; step < 3; ++step) {
      token_loss(sharded, step, world.rank()).backward();
      token_loss(replicated, step, world.rank()).backward();
      for (auto& item : fsdp.named_parameters().items) {
        EXPECT_TRUE(torch::equal(
            item.slice.grad(), expected[item.name].grad().reshape({-1})))
            << item.name << " in step " << step;
        item.slice.mutable_grad().reset();
      }
      replicated->zero_grad();
    }
  }));
}

// ---- hooks of users ----

class FillsWithStep final : public CommHook {
 public:
  std::string name() const override { return "fills with step"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    EXPECT_EQ(group.size(), 2);
    EXPECT_TRUE(bucket.cuts.empty());
    EXPECT_EQ(bucket.index, next_);
    next_ = bucket.last ? 0 : next_ + 1;
    for (const auto& [name, gradient] : bucket.parameters) {
      elements += gradient.numel();
      rows = rows || (name == "layers.0.weight" && gradient.dim() == 2);
    }
    // A tensor of its own, which sherd copies.
    bucket.gradients = torch::full_like(bucket.gradients, bucket.step + 1);
  }

  std::int64_t elements = 0;
  bool rows = false;

 private:
  int next_ = 0;
};

TEST(ShardedHooks, B19AUsersHookDecidesAcrossReplicas) {
  expect_all_ok(run_ranks(4, [](World world) {
    const auto hook = std::make_shared<FillsWithStep>();
    Chain model(4, 6);
    auto options = options_of({.replicas = 2}, hook);
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 2}), options);
    std::int64_t elements = 0;
    for (int step = 0; step < 2; ++step) {
      model->forward(integer_rows(step, world.rank(), 6)).sum().backward();
      for (const auto& slice : fsdp.parameters()) {
        EXPECT_TRUE(
            torch::equal(slice.grad(), torch::full_like(slice, step + 1)));
        slice.mutable_grad().reset();
        elements += slice.numel();
      }
      fsdp.publish();
    }
    EXPECT_EQ(hook->elements, elements);
    EXPECT_TRUE(
        hook->rows || world.rank() % 2 == 1);  // It has the last shards.
  }));
}

class NotesDtype final : public CommHook {
 public:
  std::string name() const override { return "notes dtype"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    dtype = bucket.gradients.scalar_type();
    all_reduce_mean()->reduce(bucket, group);
  }
  bool reduces_to_shards() const override { return true; }

  std::optional<at::ScalarType> dtype;
};

// The hook's mean is rounded to it once more.
TEST(ShardedHooks, A39InMixedPrecisionAHookGetsTheReduceDtype) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const int replicas : {1, 2}) {
      for (const auto reduce : {at::kBFloat16, at::kFloat}) {
        const auto hook = std::make_shared<NotesDtype>();
        FullyShardOptions options;
        options.mixed_precision.param_dtype = at::kBFloat16;
        options.mixed_precision.reduce_dtype = reduce;
        const auto plain = run_hooked(world, replicas, options, 1);
        options.hook = hook;
        const auto hooked = run_hooked(world, replicas, options, 1);
        EXPECT_EQ(hook->dtype, reduce);
        const double rounding = reduce == at::kFloat ? 0.0 : 1.0 / 128;
        for (std::size_t i = 0; i < plain.gradients.size(); ++i) {
          const auto& expected = plain.gradients[i];
          const auto error = (hooked.gradients[i] - expected).abs().max();
          EXPECT_LE(
              error.item<double>(),
              rounding * expected.abs().max().item<double>());
          EXPECT_EQ(hooked.gradients[i].scalar_type(), at::kFloat);
        }
      }
    }
  }));
}

// Their backwards go different ways.
TEST(ShardedHooks, A39RanksMayUseOtherUnits) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const int replicas : {1, 2}) {
      const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
        const auto x = integer_rows(batch, rank, 6);
        auto loss = torch::zeros({});
        for (int i = 0; i < 4; ++i) {
          const auto layer = static_cast<std::size_t>((batch + i) % 4);
          const auto y = chain->layer(layer).forward(x);
          loss = (i * rank) % 4 < 2 ? y.sum() + loss : loss;
        }
        return loss;
      };
      RankParity options;
      options.replicas = replicas;
      options.shard = options_of({}, all_reduce_mean());
      expect_rank_parity<Chain>(
          world, [] { return Chain(4, 6); }, pass, options);
    }
  }));
}

// ---- gathers ----

// What this rank has sent when every unit was gathered as often as the report says.
std::int64_t sent_by_gathers(
    const fsdp::ModelUnits& units,
    const Mesh& mesh,
    const ShardReport& report,
    const std::function<std::int64_t(const exchange::FlatSpec&, std::int64_t)>&
        bytes) {
  std::int64_t sent = 0;
  for (std::size_t u = 0; u < units.units.size(); ++u) {
    for (const auto& flat : units.units[u].flats) {
      const auto own = flat.layout.shard(mesh.shard_index()).numel();
      sent += report.by_unit[u].gathers * bytes(flat, own) *
          (mesh.shard_size() - 1);
    }
  }
  return sent;
}

TEST(GatherHooksOfRanks, B28NoGatherIsWiderThanAsked) {
  expect_all_ok(run_ranks(4, [](World world) {
    const auto quantised = quantise_gathers({.block = 64});
    for (const int replicas : {1, 2}) {
      for (const int kind : {0, 1, 2, 3}) {
        if (replicas == 2 && kind != 2) {
          continue;
        }
        SCOPED_TRACE(str(replicas, " replicas, kind ", kind));
        FullyShardOptions options;
        options.exchange =
            kind == 2 ? ExchangeKind::kSharedMemory : ExchangeKind::kCollective;
        options.gather_hook = kind >= 2 ? quantised : nullptr;
        if (kind % 2 == 1) {
          options.mixed_precision.param_dtype = at::kBFloat16;
        }
        auto model = hooked_gpt();
        const Mesh mesh(world, {.replicate = replicas});
        const auto units =
            fsdp::build_units(*model, mesh.shard_size(), options);
        auto fsdp = fully_shard(*model, mesh, options);
        for (int step = 0; step < 3; ++step) {
          token_loss(model, step, world.rank()).backward();
          fsdp.publish();
        }
        const auto report = fsdp.report();
        EXPECT_GT(report.gather_sent_bytes, 0);
        EXPECT_EQ(
            report.gather_sent_bytes,
            sent_by_gathers(
                units, mesh, report,
                [&](const exchange::FlatSpec& flat, std::int64_t own) {
                  return kind >= 2 ? own + (own + 63) / 64 * 4
                                   : own * (flat.is_cast() ? 2 : 4);
                }));
      }
    }
  }));
}

// Notes its calls, and doubles what arrives.
class Doubles final : public GatherHook {
 public:
  std::string name() const override { return "doubles"; }
  void pre_gather(
      const GatheredShard& which,
      const at::Tensor& shard,
      at::ScalarType param_dtype,
      const at::Tensor& sent) override {
    EXPECT_EQ(sent.numel(), shard.numel() * 4);
    ++sent_units[which.unit];
    owner = which.owner;
    GatherHook::pre_gather(which, shard, param_dtype, sent);
  }
  void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part) override {
    ++arrivals;
    GatherHook::post_gather(which, sent, part);
    part.mul_(2);
  }

  std::map<std::string, int> sent_units;
  int owner = -1;
  std::int64_t arrivals = 0;
};

TEST(GatherHooksOfRanks, B28AUsersHookIsCalledBeforeAndAfterEachGather) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const int replicas : {1, 2}) {
      const auto hook = std::make_shared<Doubles>();
      FullyShardOptions options;
      options.gather_hook = hook;
      options.units = units::by_name("layers.*");
      Chain model(2, 20);
      Chain doubled(2, 20);
      {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : doubled->parameters()) {
          parameter.mul_(2);
        }
      }
      const Mesh mesh(world, {.replicate = replicas});
      auto fsdp = fully_shard(*model, mesh, options);
      for (int step = 0; step < 2; ++step) {
        const auto x = integer_rows(step, world.rank(), 20);
        auto loss = model->forward(x).sum();
        EXPECT_TRUE(torch::equal(loss, doubled->forward(x).sum()));
        loss.backward();
        fsdp.publish();
      }
      // Once for each of three units and two generations.
      EXPECT_EQ(hook->sent_units.size(), 3U);
      for (const auto& [unit, calls] : hook->sent_units) {
        EXPECT_EQ(calls, 2) << unit;
      }
      EXPECT_EQ(hook->owner, mesh.shard_index());
      EXPECT_EQ(hook->arrivals, fsdp.report().unshards * mesh.shard_size());
    }
  }));
}

// Elements that nobody writes keep every bit of the shards.
TEST(GatherHooksOfRanks, B28FullParametersAreThoseOfTheShards) {
  expect_all_ok(run_ranks(2, [](World world) {
    FullyShardOptions options;
    options.gather_hook = quantise_gathers();
    Chain plain(2, 20);
    Chain model(2, 20);
    auto fsdp = fully_shard(*model, world, options);
    model->forward(integer_rows(0, world.rank(), 20)).sum().backward();
    fsdp.publish();
    {
      const torch::NoGradGuard no_grad;
      auto scope = fsdp.summon_full_parameters();
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(
            torch::equal(item.value(), plain->named_parameters()[item.key()]))
            << item.key();
      }
      model->named_parameters()["layers.1.weight"].fill_(3.0);
      plain->named_parameters()["layers.1.weight"].fill_(3.0);
    }
    for (const auto& item : full_parameters(*model, fsdp)) {
      EXPECT_TRUE(
          torch::equal(item.value(), plain->named_parameters()[item.key()]))
          << item.key();
    }
  }));
}

// Forward and backward see rounded weights, which the optimizer's do not become.
TEST(GatherHooksOfRanks, B28QuantisedGathersTrainAsWholeOnes) {
  expect_all_ok(run_ranks(4, [](World world) {
    FullyShardOptions options;
    const auto exact = run_hooked(world, 1, options, 10);
    options.gather_hook = quantise_gathers();
    const auto rounded = run_hooked(world, 1, options, 10);
    EXPECT_LT(rounded.losses.back(), rounded.losses.front() - 0.05);
    for (std::size_t i = 0; i < exact.losses.size(); ++i) {
      EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.05 * exact.losses[i]);
    }
  }));
}

// Both kinds of hooks on one axis, the exchange's own sums beside one, and both axes.
TEST(GatherHooksOfRanks, B28GoWithHooksOfGradients) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const auto& one : kHookedCases) {
      if (one.divide_factor || one.replicas == 4) {
        continue;
      }
      auto options = options_of(one, nullptr);
      options.gather_hook = quantise_gathers();
      const auto plain = run_hooked(world, one.replicas, options);
      options.hook = all_reduce_mean();
      const auto hooked = run_hooked(world, one.replicas, options);
      expect_equal_bits(hooked.gradients, plain.gradients);
      expect_equal_bits(hooked.slices, plain.slices);
    }
  }));
}

// hpZ between hosts: a unit is kept once for a host until its backward.
TEST(GatherHooksOfRanks, B3WhatAHostKeepsIsNotGatheredAgain) {
  RankOptions hosts;
  hosts.hosts = {2, 2};
  expect_all_ok(run_ranks(
      4,
      [](World world) {
        std::map<Strategy, std::int64_t> sent;
        for (const auto strategy :
             {Strategy::kShardGradOp, Strategy::kFullShard}) {
          FullyShardOptions options;
          options.exchange = ExchangeKind::kHierarchical;
          options.strategy = strategy;
          auto model = hooked_gpt();
          const auto units = fsdp::build_units(*model, 4, options);
          auto fsdp = fully_shard(*model, world, options);
          for (int step = 0; step < 2; ++step) {
            token_loss(model, step, world.rank()).backward();
            fsdp.publish();
          }
          sent[strategy] = fsdp.report().gather_sent_bytes;
          if (strategy == Strategy::kShardGradOp) {
            // Each step once, to the other host.
            std::int64_t shard_bytes = 0;
            for (const auto& unit : units.units) {
              for (const auto& flat : unit.flats) {
                shard_bytes += flat.layout.shard(world.rank()).numel() * 4;
              }
            }
            EXPECT_EQ(sent[strategy], 2 * shard_bytes);
          }
        }
        EXPECT_GT(sent[Strategy::kFullShard], sent[Strategy::kShardGradOp]);
      },
      hosts));
}

// ---- errors ----

TEST(ShardedHooks, A39WhatCannotReduceToShardsIsRefusedOnEveryRank) {
  expect_all_ok(run_ranks(4, [](World world) {
    const auto refusal = [&](const HookedCase& one, const CommHookPtr& hook) {
      Chain model(2, 6);
      const Mesh mesh(world, {.replicate = one.replicas});
      const auto options = options_of(one, hook);
      return error_of([&] { (void)fully_shard(*model, mesh, options); });
    };
    EXPECT_THAT(
        refusal({}, power_sgd()),
        AllOf(
            HasSubstr("options.hook power_sgd(rank 1)"),
            HasSubstr("expected a hook that reduces to shards")));
    EXPECT_THAT(
        refusal({}, compress(at::kHalf, quantise())),
        HasSubstr("compress(Half, quantise(per channel))"));
    EXPECT_THAT(
        refusal(
            {.replicas = 2, .axes = OptimizerAxes::kBoth}, post_local_sgd()),
        HasSubstr("options.hook post_local_sgd"));
    EXPECT_THAT(
        refusal(
            {.replicas = 2},
            world.rank() == 2 ? power_sgd() : all_reduce_mean()),
        AllOf(
            HasSubstr("rank 0 has hook all_reduce_mean"),
            HasSubstr("rank 2 hook power_sgd(rank 1)")));
    EXPECT_THAT(
        refusal({}, world.rank() == 1 ? nullptr : all_reduce_mean()),
        HasSubstr("rank 1 hook none"));
  }));
}

class Throws final : public CommHook {
 public:
  explicit Throws(bool throws) : throws_(throws) {}
  std::string name() const override { return "throws"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    if (throws_ && bucket.index == 1) {
      throw std::runtime_error("the hook's own trouble");
    }
    all_reduce_mean()->reduce(bucket, group);
  }
  bool reduces_to_shards() const override { return true; }

 private:
  const bool throws_;
};

TEST(ShardedHooks, A39OneThatThrowsOnOneRankIsNamedByAll) {
  for (const int replicas : {1, 2}) {
    RankOptions lost;
    lost.close_world = false;
    const auto body = [replicas](World world) {
      Chain model(2, 6);
      auto fsdp = fully_shard(
          *model, Mesh(world, {.replicate = replicas}),
          options_of({}, std::make_shared<Throws>(world.rank() == 3)));
      // A rank whose own shards are summed hears of it with the next step.
      EXPECT_THAT(
          error_of([&] {
            for (int step = 0; step < 2; ++step) {
              const auto x = integer_rows(step, world.rank(), 6);
              model->forward(x).sum().backward();
              fsdp.publish();
            }
          }),
          AllOf(HasSubstr("the hook's own trouble"), HasSubstr("layers.")));
    };
    expect_all_ok(run_ranks(4, body, lost));
  }
}

class ThrowsOnArrival final : public GatherHook {
 public:
  std::string name() const override { return "throws"; }
  void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part) override {
    if (which.unit == "layers.1" && rank == 1) {
      throw std::runtime_error("the hook's own trouble");
    }
    GatherHook::post_gather(which, sent, part);
  }

  int rank = 0;
};

TEST(GatherHooksOfRanks, B28OneThatThrowsOnOneRankIsNamedByAll) {
  RankOptions lost;
  lost.close_world = false;
  expect_all_ok(run_ranks(
      3,
      [](World world) {
        const auto hook = std::make_shared<ThrowsOnArrival>();
        hook->rank = world.rank();
        FullyShardOptions options;
        options.gather_hook = hook;
        Chain model(2, 20);
        auto fsdp = fully_shard(*model, world, options);
        EXPECT_THAT(
            error_of([&] {
              const auto x = integer_rows(0, world.rank(), 20);
              model->forward(x).sum().backward();
            }),
            AllOf(
                HasSubstr("the hook's own trouble"),
                HasSubstr("unit layers.1")));
      },
      lost));
}

}  // namespace
}  // namespace sherd::test
