// SPDX-License-Identifier: Apache-2.0
//
// What any layout has saved any other goes on from. Ids are those of
// docs/design/tests.md.
#include "ckpt/checkpoint_job.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <cstring>
#include <map>
#include <optional>
#include <type_traits>
#include <gmock/gmock.h>
#include <sherd/optim/sgd.h>
#include "base/check.h"

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kBefore = 2;
constexpr int kAfter = 20;
// Losses are about 2.4. Found 5e-7, two of their last digits, on one machine.
constexpr double kRounding = 2e-6;

void report(Rank& self, const std::vector<double>& losses) {
  self.report(
      {reinterpret_cast<const char*>(losses.data()),
       losses.size() * sizeof(double)});
}

std::vector<double> losses_of(const ChildEnd& end) {
  std::vector<double> losses(end.result.size() / sizeof(double));
  std::memcpy(losses.data(), end.result.data(), end.result.size());
  return losses;
}

// Of the whole batches; ranks tell each other at the end.
std::vector<double> losses_after(const World& world, CheckpointJob& job) {
  std::vector<double> mine;
  for (int step = kBefore; step < kBefore + kAfter; ++step) {
    mine.push_back(job.step(step));
  }
  std::vector<double> losses(mine.size());
  for (const auto& one : world.all_gather(mine)) {
    for (std::size_t i = 0; i < losses.size(); ++i) {
      losses[i] += one[i] / world.size();
    }
  }
  return losses;
}

// The losses after the save, of the job that was not interrupted.
std::vector<double> save_and_go_on(
    const JobLayout& layout, const std::string& folder, bool asynchronous) {
  const auto ranks = run_ranks(layout.ranks, [&](World world, Rank& self) {
    CheckpointJob job(world, layout, 7);
    CheckpointSaver saver(world, folder, {.asynchronous = asynchronous});
    EXPECT_EQ(saver.newest(), std::nullopt);
    for (int step = 0; step < kBefore; ++step) {
      job.step(step);
    }
    job.state().values["note"] = "of " + layout.name;
    saver.save(kBefore, job.state());
    report(self, losses_after(world, job));
    saver.wait();
  });
  expect_all_ok(ranks);
  return losses_of(ranks[0]);
}

// The losses of each layout, one after another. They have as many ranks, which
// start once.
std::vector<double> load_and_go_on(
    const std::vector<JobLayout>& layouts, const std::string& folder) {
  const int ranks = layouts.front().ranks;
  const auto ended = run_ranks(ranks, [&](World world, Rank& self) {
    for (const auto& layout : layouts) {
      SCOPED_TRACE("to " + layout.name);
      CheckpointJob job(world, layout, 8);
      const auto loaded = load_checkpoint(world, folder, job.state());
      EXPECT_EQ(loaded.step, kBefore);
      EXPECT_THAT(loaded.missing, IsEmpty());
      EXPECT_THAT(job.state().values["note"], HasSubstr("of "));
      report(self, losses_after(world, job));
    }
  });
  expect_all_ok(ended);
  return losses_of(ended[0]);
}

// Whatever the strategy and the budget, losses are equal in bits then. (Of other
// units kernels treat other elements one by one.)
bool add_in_the_same_order(const JobLayout& one, const JobLayout& two) {
  return one.ranks == two.ranks && one.replicate == two.replicate &&
      one.axes == two.axes && one.ddp == two.ddp && one.units == two.units;
}

class Reshard : public ::testing::TestWithParam<JobLayout> {};

TEST_P(Reshard, T46EveryLayoutGoesOnWhereThisOneStopped) {
  const ScratchFolder scratch;
  const auto& saved = GetParam();
  const auto expected =
      save_and_go_on(saved, scratch.path() + "/run", saved.ranks % 2 == 0);
  ASSERT_EQ(expected.size(), kAfter);
  std::map<int, std::vector<JobLayout>> by_ranks;
  for (const auto& layout : job_layouts()) {
    by_ranks[layout.ranks].push_back(layout);
  }
  for (const auto& [ranks, layouts] : by_ranks) {
    const auto found = load_and_go_on(layouts, scratch.path() + "/run/step-2");
    ASSERT_EQ(found.size(), layouts.size() * kAfter);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const auto& layout = layouts[i / kAfter];
      const auto step = i % kAfter;
      SCOPED_TRACE(str(saved.name, " to ", layout.name, ", step ", step));
      if (add_in_the_same_order(saved, layout)) {
        EXPECT_EQ(found[i], expected[step]);
      } else {
        EXPECT_NEAR(found[i], expected[step], kRounding);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Reshard,
    ::testing::ValuesIn(job_layouts()),
    [](const auto& given) { return given.param.name; });

// Every rank a replica, with its part of the optimizer's state.
TEST(ReshardReplicas, T46OptimizerStateOfTwoReplicasGoesOnInFourAndBack) {
  const auto replicas = [](int count) {
    return JobLayout{
        .name = str(count, " replicas"),
        .ranks = count,
        .replicate = count,
        .axes = OptimizerAxes::kBoth};
  };
  for (const int saved : {2, 4}) {
    const ScratchFolder scratch;
    const auto folder = scratch.path() + "/run";
    const auto expected = save_and_go_on(replicas(saved), folder, false);
    const auto found =
        load_and_go_on({replicas(6 - saved)}, folder + "/step-2");
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t step = 0; step < found.size(); ++step) {
      EXPECT_NEAR(found[step], expected[step], kRounding) << step;
    }
  }
}

class CheckpointNames : public ::testing::TestWithParam<int> {};

TEST_P(CheckpointNames, T44AreComparedStrictlyOrReported) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    torch::manual_seed(1);
    torch::nn::Sequential small(torch::nn::Linear(3, 5));
    torch::nn::Sequential large(
        torch::nn::Linear(3, 5), torch::nn::BatchNorm1d(5));
    auto one = fully_shard(*small, world);
    auto two = fully_shard(*large, world);
    CheckpointState less;
    less.add(one.named_parameters());
    CheckpointState more;
    more.add(two.named_parameters());
    more.add_buffers(*large);
    CheckpointSaver saver(world, folder);
    saver.save(1, less);
    saver.save(2, more);
    EXPECT_THAT(
        error_of([&] { load_checkpoint(world, folder + "/step-1", more); }),
        HasSubstr(
            "expected all that the job has, found no model 1.bias, model"));
    const auto missing =
        load_checkpoint(world, folder + "/step-1", more, {.strict = false});
    EXPECT_THAT(
        missing.missing,
        ElementsAre(
            "model 1.bias", "model 1.num_batches_tracked",
            "model 1.running_mean", "model 1.running_var", "model 1.weight"));
    EXPECT_THAT(
        error_of([&] { load_checkpoint(world, folder + "/step-2", less); }),
        HasSubstr("expected nothing that the job lacks, found model 1.bias"));
    const auto unexpected =
        load_checkpoint(world, folder + "/step-2", less, {.strict = false});
    EXPECT_EQ(unexpected.unexpected.size(), 5U);
    EXPECT_THAT(
        error_of([&] { load_checkpoint(world, folder + "/step-3", less); }),
        HasSubstr("step-3: expected a complete checkpoint, found no such "));
    torch::nn::Sequential other(torch::nn::Linear(3, 6));
    auto three = fully_shard(*other, world);
    CheckpointState shapes;
    shapes.add(three.named_parameters());
    EXPECT_THAT(
        error_of([&] { load_checkpoint(world, folder + "/step-1", shapes); }),
        AllOf(HasSubstr("expected shape [6"), HasSubstr("found [5")));
  }));
}

// Only the first layer trains, and the last is frozen: neither has state.
TEST_P(CheckpointNames, T47StateOfWhatWasNeverSteppedIsNeitherSavedNorKept) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto make = [] {
      torch::manual_seed(3);
      torch::nn::Sequential model(
          torch::nn::Linear(3, 5), torch::nn::Linear(5, 5),
          torch::nn::Linear(5, 2));
      model[2]->as<torch::nn::Linear>()->weight.requires_grad_(false);
      return model;
    };
    auto model = make();
    auto fsdp = fully_shard(*model, world);
    AdamW adamw(fsdp.named_parameters());
    model[0]
        ->as<torch::nn::Linear>()
        ->forward(torch::ones({2, 3}))
        .sum()
        .backward();
    adamw.step();
    CheckpointState state;
    state.add(fsdp.named_parameters());
    state.add("optimizer", adamw, fsdp.named_parameters());
    CheckpointSaver saver(world, folder);
    saver.save(1, state);
    auto again = make();
    auto sharded = fully_shard(*again, world);
    AdamW restored(sharded.named_parameters());
    for (const auto& name : restored.names()) {
      restored.state(name).exp_avg.fill_(7);
      restored.state(name).step.fill_(7);
    }
    CheckpointState into;
    into.add(sharded.named_parameters());
    into.add("optimizer", restored, sharded.named_parameters());
    load_checkpoint(world, folder + "/step-1", into);
    for (const auto& name : restored.names()) {
      const bool stepped = name.starts_with("0.");
      EXPECT_EQ(restored.state(name).step.item<float>(), stepped ? 1 : 0);
      EXPECT_TRUE(
          torch::equal(restored.state(name).exp_avg, adamw.state(name).exp_avg))
          << name;
    }
  }));
}

// One layer with an optimizer that has made a step.
template <typename Make>
struct SteppedJob {
  SteppedJob(const World& world, const Make& make) : model(made()) {
    fsdp.emplace(fully_shard(*model, world));
    optimizer.emplace(make(fsdp->named_parameters()));
    model->forward(torch::ones({2, 3})).sum().backward();
    optimizer->step();
    state.add(fsdp->named_parameters());
    state.add("optimizer", *optimizer, fsdp->named_parameters());
  }
  static torch::nn::Linear made() {
    torch::manual_seed(3);
    return torch::nn::Linear(3, 5);
  }

  torch::nn::Linear model;
  std::optional<FullyShardedDataParallel> fsdp;
  std::optional<std::invoke_result_t<Make, NamedParameters>> optimizer;
  CheckpointState state;
};

// Else moments would be dropped, or begin anew, without a word.
TEST_P(CheckpointNames, T44StateOfAnotherOptimizerIsNoLessCompared) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto fused = [](const NamedParameters& parameters) {
      return AdamW(parameters);
    };
    const auto sgd = [](const NamedParameters& parameters) {
      return Sgd(parameters, {.learning_rate = 0.1, .momentum = 0.9});
    };
    SteppedJob adamw_job(world, fused);
    SteppedJob sgd_job(world, sgd);
    CheckpointSaver saver(world, folder);
    saver.save(1, adamw_job.state);
    const auto before = gather_full_state(world, sgd_job.state);
    const auto error = error_of(
        [&] { load_checkpoint(world, folder + "/step-1", sgd_job.state); });
    EXPECT_THAT(
        error,
        HasSubstr(
            "expected all that the job has, found no "
            "optimizer momentum_buffer.bias, optimizer momentum_buffer.wei"));
    const auto report = load_checkpoint(
        world, folder + "/step-1", sgd_job.state, {.strict = false});
    EXPECT_THAT(
        report.missing,
        ElementsAre(
            "optimizer momentum_buffer.bias",
            "optimizer momentum_buffer.weight"));
    EXPECT_THAT(
        report.unexpected,
        ElementsAre(
            "optimizer exp_avg.bias", "optimizer exp_avg.weight",
            "optimizer exp_avg_sq.bias", "optimizer exp_avg_sq.weight",
            "optimizer step.bias", "optimizer step.weight"));
    const auto after = gather_full_state(world, sgd_job.state);
    if (world.rank() == 0) {  // What is reported is left as it is.
      const std::string name = "momentum_buffer.weight";
      EXPECT_TRUE(torch::equal(
          after.at("optimizer").at(name), before.at("optimizer").at(name)));
    }
  }));
}

TEST_P(CheckpointNames, T44StateThatTheOptimizerHasNoUseForIsAnError) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto with_momentum = [](double momentum) {
      return [momentum](const NamedParameters& parameters) {
        return Sgd(parameters, {.learning_rate = 0.1, .momentum = momentum});
      };
    };
    SteppedJob some(world, with_momentum(0.9));
    SteppedJob none(world, with_momentum(0.0));
    CheckpointSaver saver(world, folder);
    saver.save(1, some.state);
    EXPECT_THAT(
        error_of(
            [&] { load_checkpoint(world, folder + "/step-1", none.state); }),
        HasSubstr("expected nothing that the job lacks, found "
                  "optimizer momentum_buffer.bias"));
    // And what was saved without any begins anew.
    saver.save(2, none.state);
    const auto report = load_checkpoint(world, folder + "/step-2", some.state);
    EXPECT_THAT(report.missing, IsEmpty());
    for (const auto& name : some.optimizer->names()) {
      EXPECT_FALSE(some.optimizer->momentum_buffer(name).any().item<bool>());
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    CheckpointNames,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
