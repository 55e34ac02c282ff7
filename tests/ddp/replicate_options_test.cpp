// SPDX-License-Identifier: Apache-2.0
//
// Replicas' further options, and what they tell of themselves. Ids are those of
// docs/design/tests.md.
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>
#include <gmock/gmock.h>
#include <sherd/fsdp/fully_shard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "world/world_impl.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class ReplicateOptionsOf : public ::testing::TestWithParam<int> {};

void mean_of_floating_point(const NamedTensors& buffers, HookGroup& group) {
  for (const auto& [name, tensor] : buffers) {
    if (tensor.is_floating_point()) {
      group.all_reduce_mean(tensor);
    }
  }
}

TEST_P(ReplicateOptionsOf, T58AHookDecidesWhatBecomesOfBuffers) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Norm model;
    std::vector<Norm> alone(static_cast<std::size_t>(world.size()));
    auto ddp =
        replicate(*model, world, {.buffer_hook = mean_of_floating_point});
    const auto rows = [](int rank) {
      return integer_rows(0, rank, 3) * (rank + 1.5);
    };
    model->forward(rows(world.rank())).sum().backward();
    auto mean = torch::zeros({4});
    for (int rank = 0; rank < world.size(); ++rank) {
      auto& one = alone[static_cast<std::size_t>(rank)];
      one->forward(rows(rank));
      mean += one->norm->running_mean;
    }
    expect_close(
        model->norm->running_mean, mean / world.size(), 1e-6, "mean of means");
    EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), 1);
  }));
}

// As for a generator, while its discriminator learns: its own backward still needs the buffers.
TEST_P(ReplicateOptionsOf, T58ABackwardOfAnotherModelLeavesBuffersAlone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Norm model;
    int calls = 0;
    ReplicateOptions options;
    options.buffer_hook = [&](const NamedTensors& buffers, HookGroup& group) {
      ++calls;
      mean_of_floating_point(buffers, group);
    };
    auto ddp = replicate(*model, world, options);
    auto other = torch::ones({1}).requires_grad_();
    const auto made = model->forward(integer_rows(0, world.rank(), 3));
    (made.detach().sum() * other).sum().backward();
    EXPECT_EQ(calls, 0);
    // Only the last rank has a gradient, and all take part.
    if (world.rank() == world.size() - 1) {
      made.sum().backward();
    } else {
      (model->forward(integer_rows(0, world.rank(), 3)).detach().sum() * other)
          .sum()
          .backward();
    }
    EXPECT_EQ(calls, world.size() == 1 ? 0 : 1);
  }));
}

TEST_P(ReplicateOptionsOf, T58ABufferHookThatThrowsIsToldToAll) {
  const auto body = [](World world) {
    if (world.size() == 1) {
      return;
    }
    Norm model;
    ReplicateOptions options;
    options.buffer_hook = [&](const NamedTensors& buffers, HookGroup& group) {
      if (world.rank() == 1) {
        throw std::runtime_error("thrown by the test");
      }
      mean_of_floating_point(buffers, group);
    };
    auto ddp = replicate(*model, world, options);
    EXPECT_THAT(
        error_of([&] {
          model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
        }),
        HasSubstr("thrown by the test"));
    EXPECT_THAT(ddp.report().error, HasSubstr("thrown by the test"));
    options.broadcast_buffers = false;
    EXPECT_THAT(
        error_of([&] { (void)replicate(*Norm(), world, options); }),
        HasSubstr("buffer_hook needs broadcast_buffers"));
  };
  expect_all_ok(run_ranks(GetParam(), body, {.close_world = false}));
}

TEST_P(ReplicateOptionsOf, T65DelayedParametersAreReducedLast) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ReplicaParity options;
    options.replicate.bucket_bytes = 300;
    options.replicate.delayed = {"third.weight", "second.bias"};
    const auto report = expect_replica_parity<IntegerMlp>(
        world, [] { return IntegerMlp(); }, integer_loss, options);
    ASSERT_GE(report.buckets.size(), 2U);
    std::vector<std::string> last;
    for (const auto& bucket : report.buckets) {
      last.insert(last.end(), bucket.begin(), bucket.end());
    }
    last.erase(last.begin(), last.end() - 2);
    EXPECT_THAT(last, UnorderedElementsAre("third.weight", "second.bias"));
    IntegerMlp model;
    EXPECT_THAT(
        error_of([&] {
          (void)replicate(*model, world, {.delayed = {"fourth.weight"}});
        }),
        HasSubstr("options.delayed names 'fourth.weight'"));
  }));
}

TEST_P(ReplicateOptionsOf, C20IgnoredParametersAndBuffersStayEachRanksOwn) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto loss_of = [&](const torch::Tensor& weight,
                             const torch::Tensor& bias,
                             const torch::Tensor& offset, int step) {
      const auto x = integer_rows(step, world.rank(), 3);
      const auto y = torch::nn::functional::linear(x, weight, bias) + offset;
      return y.square().sum() * (world.rank() + 1);
    };
    torch::nn::Linear model(3, 2);
    fill_with_integers(*model);
    {
      const torch::NoGradGuard no_grad;
      model->bias.add_(world.rank());
    }
    const auto offset = model->register_buffer(
        "offset", torch::full({2}, 1.0F + static_cast<float>(world.rank())));
    const auto own_offset = offset.clone();
    auto ddp = replicate(*model, world, {.ignored = {"bias", "offset"}});
    torch::optim::SGD sgd(model->parameters(), 0.125);
    for (int step = 0; step < 3; ++step) {
      const auto weight = model->weight.detach().clone().requires_grad_();
      const auto bias = model->bias.detach().clone().requires_grad_();
      loss_of(weight, bias, own_offset, step).backward();
      loss_of(model->weight, model->bias, offset, step).backward();
      expect_close(model->bias.grad(), bias.grad(), 0.0, "own gradient");
      const auto flat = weight.grad().view({-1}).to(torch::kDouble);
      auto mean = torch::zeros_like(flat);
      for (const auto& one : world.all_gather(std::vector<double>(
               flat.data_ptr<double>(), flat.data_ptr<double>() + 6))) {
        mean += torch::tensor(one, torch::kDouble) / world.size();
      }
      expect_close(
          model->weight.grad().view({-1}).to(torch::kDouble), mean, 1e-6,
          "mean gradient");
      sgd.step();
      sgd.zero_grad();
    }
    expect_close(offset, own_offset, 0.0, "own buffer");
    for (const auto& one : world.all_gather(
             {model->bias[0].item<double>(),
              model->weight[0][0].item<double>()})) {
      EXPECT_EQ(one[1], model->weight[0][0].item<double>());
    }
  }));
}

TEST(Replicas, AddUpWhatTwoThreadsBringUnderNoSync) {
  expect_all_ok(run_ranks(2, [](World world) {
    constexpr int kBackwards = 200;
    Chain model(1, 4);
    auto ddp = replicate(*model, world);
    const auto x = torch::ones({1, 4});
    {
      const auto scope = ddp.no_sync();
      const auto several = [&] {
        for (int i = 0; i < kBackwards; ++i) {
          model->forward(x).sum().backward();
        }
      };
      std::jthread other(several);
      several();
    }
    const auto found = model->parameters().back().grad().clone();
    model->zero_grad();
    {
      const auto scope = ddp.no_sync();
      model->forward(x).sum().backward();
    }
    const auto one = model->parameters().back().grad();
    EXPECT_TRUE(torch::equal(found, one * 2 * kBackwards)) << found << one;
  }));
}

TEST_P(ReplicateOptionsOf, T61TheReportTellsWhatWasDone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 4);
    auto ddp = replicate(
        *model, world, {.bucket_bytes = 300, .first_bucket_bytes = 8});
    const auto step = [&](int batch) {
      model->forward(integer_rows(batch, world.rank(), 4)).sum().backward();
    };
    {
      const auto local = ddp.no_sync();
      step(0);
    }
    EXPECT_EQ(ddp.report().backwards, 0);
    EXPECT_EQ(ddp.report().last.backward_ms, 0);
    step(1);
    step(2);
    auto report = ddp.report();
    EXPECT_THAT(report.module, HasSubstr("ChainImpl"));
    EXPECT_EQ(report.world_size, world.size());
    EXPECT_EQ(report.rank, world.rank());
    EXPECT_GE(report.threads, 1);
    EXPECT_EQ(report.parameters, static_cast<int>(model->parameters().size()));
    EXPECT_GT(report.parameter_bytes, 0);
    EXPECT_THAT(report.dtypes, ElementsAre("Float"));
    EXPECT_TRUE(report.same_graph);
    EXPECT_FALSE(report.joining);
    EXPECT_THAT(report.error, IsEmpty());
    EXPECT_THAT(report.hook, IsEmpty());
    for (const auto& times : {report.last, report.mean}) {
      EXPECT_GE(times.forward_ms, 0);
      EXPECT_GE(times.backward_ms, 0);
      EXPECT_GE(times.communication_ms, times.overlap_ms);
      EXPECT_GE(times.overlap_ms, 0);
    }
    if (world.size() == 1) {
      EXPECT_THAT(report.exchange, IsEmpty());
      return;
    }
    EXPECT_GT(report.last.forward_ms, 0);
    EXPECT_GT(report.last.backward_ms, 0);
    EXPECT_GT(report.last.overlap_ms, 0);
    EXPECT_THAT(report.exchange, Not(IsEmpty()));
    EXPECT_EQ(report.ready_order.size(), model->parameters().size());
    EXPECT_EQ(report.ready_order.back().substr(0, 8), "layers.0");
    EXPECT_EQ(report.unused_bytes, 0);
    model->layer(0).forward(integer_rows(0, 0, 4)).sum().backward();
    report = ddp.report();
    EXPECT_FALSE(report.same_graph);
    EXPECT_THAT(report.unused, Not(IsEmpty()));
    EXPECT_GT(report.unused_bytes, 0);
    const auto join = ddp.join();
    EXPECT_TRUE(ddp.report().joining);
  }));
}

// Every rank uses the first layer and the head, and rank 0 what `also` says.
torch::Tensor loss_of_some(
    Chain& chain, int batch, int rank, std::optional<std::size_t> also) {
  auto x = chain->layer(0).forward(integer_rows(batch, rank, 6)).clamp(-2, 2);
  if (also && rank == 0) {
    x = chain->layer(*also).forward(x).clamp(-2, 2);
  }
  return chain->head(x).sum();
}

TEST_P(ReplicateOptionsOf, T53BucketsThatNoRankUsesAreLeftOut) {
  struct Batch {
    std::optional<std::size_t> also;
    std::int64_t reduces;  // Of ten buckets, one for each tensor.
  };
  const std::vector<Batch> batches = {{2, 10}, {{}, 6}, {{}, 4}, {1, 6},
                                      {{}, 6}, {{}, 4}, {2, 6}};
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const bool with_hook : {false, true}) {
      Chain model(4, 6), reference(4, 6);
      const auto leaves = unique_parameters(*reference);
      ReplicateOptions options;
      options.bucket_bytes = options.first_bucket_bytes = 1;
      options.learn_bucket_order = false;
      options.hook = with_hook ? all_reduce_mean() : nullptr;
      auto ddp = replicate(*model, world, options);
      int number = 0;
      std::int64_t bytes_of_all = 0;
      for (const auto& [also, reduces] : batches) {
        const Pass<Chain> pass = [also](Chain& chain, int batch, int rank) {
          return loss_of_some(chain, batch, rank, also);
        };
        const auto before = ddp.report();
        pass(model, number, world.rank()).backward();
        reference_backward<Chain>(reference, leaves, pass, number, world);
        expect_same_gradients(*model, leaves);
        model->zero_grad();
        reference->zero_grad();
        const auto after = ddp.report();
        EXPECT_EQ(
            after.reduces - before.reduces, world.size() > 1 ? reduces : 0)
            << "batch " << number;
        const auto bytes = after.gradient_bytes - before.gradient_bytes;
        bytes_of_all = number == 0 ? bytes : bytes_of_all;
        EXPECT_EQ(bytes < bytes_of_all, world.size() > 1 && reduces < 10);
        ++number;
      }
    }
  }));
}

TEST_P(ReplicateOptionsOf, T53AfterABackwardGivenUpEveryBucketIsReduced) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    Chain model(4, 6);
    auto ddp = replicate(
        *model, world,
        {.bucket_bytes = 1,
         .first_bucket_bytes = 1,
         .learn_bucket_order = false});
    const auto reduces_of = [&](bool throws) {
      const auto before = ddp.report().reduces;
      auto x = model->layer(0).forward(integer_rows(0, world.rank(), 6));
      if (throws && world.rank() == 1) {
        x.register_hook([](const torch::Tensor&) -> torch::Tensor {
          throw std::runtime_error("poisoned by the test");
        });
      }
      const auto error = error_of([&] { model->head(x).sum().backward(); });
      EXPECT_THAT(
          error, HasSubstr(throws ? "poisoned by the test" : "no error"));
      return ddp.report().reduces - before;
    };
    EXPECT_EQ(reduces_of(false), 10);
    EXPECT_EQ(reduces_of(false), 4);
    EXPECT_EQ(reduces_of(true), 4);
    EXPECT_EQ(reduces_of(false), 10);
    EXPECT_EQ(reduces_of(false), 4);
  }));
}

// Replicas of which each updates its part of every parameter, beside replicas that update all.
void expect_replicas_with_cut_updates(
    const World& world, const MakeStep& make_step, double tolerance) {
  IntegerMlp whole, cut;
  auto ddp = replicate(*whole, world);
  FullyShardOptions options;
  options.optimizer_axes = OptimizerAxes::kBoth;
  auto fsdp =
      fully_shard(*cut, Mesh(world, {.replicate = world.size()}), options);
  const auto step = make_step(whole->parameters());
  const auto cut_step = make_step(fsdp.parameters());
  for (int batch = 0; batch < 3; ++batch) {
    const auto loss = integer_loss(whole, batch, world.rank());
    const auto cut_loss = integer_loss(cut, batch, world.rank());
    expect_close(cut_loss.detach(), loss.detach(), tolerance, "loss");
    loss.backward();
    cut_loss.backward();
    step();
    cut_step();
    fsdp.publish();
  }
  for (const auto& item : full_parameters(*cut, fsdp)) {
    expect_close(
        item.value(), whole->named_parameters()[item.key()].detach(), tolerance,
        item.key());
  }
  double mine = 0, all = 0;
  for (const auto& slice : fsdp.parameters()) {
    mine += static_cast<double>(slice.numel());
  }
  for (const auto& one : world.all_gather({mine})) {
    all += one[0];
  }
  EXPECT_EQ(all, 7 * 15 + 15 + 15 * 5 + 5 + 5 + 1);
  EXPECT_LT(mine, all);
  // What a rank has whole is used where it is, not gathered within a budget.
  EXPECT_EQ(fsdp.report().budget_bytes, 0);
}

// In bits, since means over two or four ranks are exact.
TEST(ReplicateMesh, T50OptimizerStateCutOverReplicasChangesNothing) {
  for (const int ranks : {2, 4}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      expect_replicas_with_cut_updates(world, sign_steps(), 0.0);
      expect_replicas_with_cut_updates(
          world,
          steps_of<torch::optim::SGD>(
              torch::optim::SGDOptions(0.01).momentum(0.9)),
          1e-5);
    }));
  }
}

// Of four ranks two by two have their own model, and all have another.
TEST(ReplicateMesh, T63OverOverlappingSubgroups) {
  expect_all_ok(run_ranks(4, [](World world) {
    const Mesh mesh(world, {.replicate = 2});
    IntegerMlp ours, everybodys, reference;
    const auto leaves = unique_parameters(*reference);
    auto small = replicate(*ours, mesh);
    auto large = replicate(*everybodys, world);
    EXPECT_EQ(small.report().world_size, 2);
    EXPECT_EQ(small.report().rank, world.rank() / 2);
    for (int batch = 0; batch < 2; ++batch) {
      (integer_loss(ours, batch, world.rank()) +
       integer_loss(everybodys, batch, world.rank()))
          .backward();
      reference_backward<IntegerMlp>(
          reference, leaves, integer_loss, batch, world);
      expect_same_gradients(*everybodys, leaves);
      reference->zero_grad();
      for (const int rank : mesh.replicate_ranks()) {
        (integer_loss(reference, batch, rank) / 2).backward();
      }
      expect_same_gradients(*ours, leaves);
      ours->zero_grad();
      everybodys->zero_grad();
      reference->zero_grad();
    }
    // From rows to pairs of neighbours' places: everybody, then the rows again.
    small.set_world(world);
    EXPECT_EQ(small.report().world_size, 4);
    small.set_mesh(mesh);
    integer_loss(ours, 3, world.rank()).backward();
    EXPECT_TRUE(ours->first->weight.grad().defined());
  }));
}

// Two ranks become three; the third has just begun.
TEST(ReplicateMesh, T62HooksBeginAgainWithOtherRanks) {
  expect_all_ok(run_ranks(3, [](World world) {
    Chain model(2, 16);
    const auto hook = power_sgd({.start_step = 1});
    std::optional<DistributedDataParallel> ddp;
    const auto step = [&](int batch) {
      model->forward(integer_rows(batch, world.rank(), 16)).sum().backward();
      model->zero_grad();
    };
    if (world.rank() < 2) {
      const auto two = World::from_store(
          c10::make_intrusive<c10d::PrefixStore>("two", world.impl()->store),
          world.rank(), 2, world.options());
      ddp.emplace(replicate(*model, two, {.hook = hook}));
      for (int batch = 0; batch < 3; ++batch) {
        step(batch);
      }
      EXPECT_GT(hook->state().size(), 1U);
      ddp->set_world(world);
      EXPECT_EQ(hook->state().size(), 1U);
    } else {
      ddp.emplace(replicate(*model, world, {.hook = hook}));
    }
    for (int batch = 0; batch < 3; ++batch) {
      step(batch);
    }
    model->forward(integer_rows(9, world.rank(), 16)).sum().backward();
    for (const auto& parameter : model->parameters()) {
      auto all = world.all_gather({parameter.grad().sum().item<double>()});
      EXPECT_EQ(all[0], all[1]);
      EXPECT_EQ(all[0], all[2]);
    }
    ddp->close();
    world.barrier();
  }));
}

TEST(ReplicateMesh, T64ARankThatDoesNotComeIsNamed) {
  RankOptions options;
  options.world.deadline = std::chrono::seconds(4);
  options.close_world = false;
  const auto report = run_ranks(
      3,
      [](World world) {
        IntegerMlp model;
        auto ddp = replicate(*model, world);
        const auto& store = world.impl()->store;
        if (world.rank() == 1) {
          store->wait({"given up by 0", "given up by 2"});
          return;
        }
        EXPECT_THAT(
            error_of([&] { integer_loss(model, 0, world.rank()).backward(); }),
            HasSubstr("rank 1"));
        store->set("given up by " + std::to_string(world.rank()), "");
      },
      options);
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
  EXPECT_EQ(report[2].exit_code, 0) << report[2].output;
}

class Uneven final : public CommHook {
 public:
  explicit Uneven(int rank) : rank_(rank) {}
  std::string name() const override { return "uneven"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    group.all_reduce_mean(
        bucket.gradients.narrow(0, 0, bucket.gradients.numel() - rank_));
  }

 private:
  int rank_;
};

TEST_P(ReplicateOptionsOf, T64CallsOfHooksAreComparedWhenAskedFor) {
  const auto body = [](World world) {
    if (world.size() == 1) {
      return;
    }
    ASSERT_EQ(::setenv("SHERD_DEBUG", "all", 1), 0);
    EXPECT_THAT(
        error_of([&] { (void)replicate(*IntegerMlp(), world); }),
        HasSubstr("SHERD_DEBUG: expected detail or off, found 'all'"));
    ASSERT_EQ(::setenv("SHERD_DEBUG", "detail", 1), 0);
    {
      IntegerMlp model, reference;
      const auto leaves = unique_parameters(*reference);
      auto ddp = replicate(*model, world, {.hook = all_reduce_mean()});
      integer_loss(model, 0, world.rank()).backward();
      reference_backward<IntegerMlp>(reference, leaves, integer_loss, 0, world);
      expect_same_gradients(*model, leaves);
    }
    IntegerMlp model;
    auto ddp = replicate(
        *model, world, {.hook = std::make_shared<Uneven>(world.rank())});
    EXPECT_THAT(
        error_of([&] { integer_loss(model, 0, world.rank()).backward(); }),
        AllOf(
            HasSubstr("calls differ"), HasSubstr("gradients of bucket 0"),
            HasSubstr("all_reduce_mean of 24"), HasSubstr("Float")));
  };
  expect_all_ok(run_ranks(GetParam(), body, {.close_world = false}));
}

// Device code comes later; then this is what must hold.
INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateOptionsOf,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
