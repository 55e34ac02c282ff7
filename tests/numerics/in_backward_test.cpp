// SPDX-License-Identifier: Apache-2.0
//
// AdamW that updates while backward runs is AdamW that updates after it, up to
// the rounding of a slice's last few elements, and says no where it cannot be.
// Where step() does it all the same (messages, one rank), bits are equal.
#include "support/error_of.h"
#include "support/parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <map>
#include <memory>
#include <string>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/sgd.h>

namespace sherd::test {
namespace {

class InBackward : public testing::TestWithParam<int> {};

// LibTorch's kernel rounds what does not fill a vector otherwise, and slices end
// elsewhere where several are updated by one call.
constexpr double kRounding = 1e-6;

constexpr std::int64_t kWidth =
    200;  // Weights of 78 KiB, in bf16, travel alone.

// Layers that travel alone, small biases, one that only some batches use.
struct ForkedImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, rare{nullptr},
      head{nullptr};
  ForkedImpl() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth + 3));
    rare = register_module("rare", torch::nn::Linear(kWidth + 3, kWidth + 3));
    head = register_module("head", torch::nn::Linear(kWidth + 3, 1));
  }
  torch::Tensor forward(const torch::Tensor& x, bool detour) {
    auto y = torch::tanh(second(torch::tanh(first(x))));
    return head(detour ? torch::tanh(rare(y)) : y);
  }
};
TORCH_MODULE(Forked);

// Rank 0 takes the detour in batch 1, all in batch 2, none else. Over messages
// ranks use the same units in forward: there all go where rank 0 does.
torch::Tensor forked_loss(
    Forked& model, int batch, const World& world, bool together = false) {
  const auto rows = torch::sin(torch::arange(4 * kWidth, torch::kFloat)
                                   .mul(0.1 * (1 + batch) + world.rank())
                                   .view({4, kWidth}));
  const bool detour =
      batch == 2 || (batch == 1 && (together || world.rank() == 0));
  return model->forward(rows, detour).square().mean();
}

struct Trained {
  std::vector<torch::Tensor> losses;
  torch::OrderedDict<std::string, torch::Tensor> parameters;
  std::vector<torch::Tensor> states;
};

Trained train(
    const World& world, const FullyShardOptions& shard, bool in_backward) {
  constexpr int kSteps = 5;
  const bool together = shard.exchange == ExchangeKind::kCollective;
  Forked model;
  auto fsdp = fully_shard(*model, world, shard);
  AdamWOptions options;
  options.in_backward = in_backward;
  options.groups = {
      {.names = {"first.*"}, .learning_rate_scale = 0.5, .weight_decay = 0.0}};
  const auto named = fsdp.named_parameters();
  AdamW adamw(named, options);
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    adamw.set_learning_rate(1e-2 / (1 + step));
    {
      auto scope = fsdp.no_sync();
      forked_loss(model, 10 + step, world, together).backward();
    }
    auto loss = forked_loss(model, step, world, together);
    loss.backward();
    for (const auto& item : named.items) {
      if (in_backward && named.update_in_backward &&
          item.name == "first.weight") {
        EXPECT_FALSE(item.slice.grad().defined()) << item.name;
      }
    }
    adamw.step();
    adamw.zero_grad();
    trained.losses.push_back(loss.detach());
  }
  trained.parameters = full_parameters(*model, fsdp);
  for (const auto& name : adamw.names()) {
    const auto state = adamw.state(name);
    trained.states.push_back(state.exp_avg.clone());
    trained.states.push_back(state.exp_avg_sq.clone());
    trained.states.push_back(state.step.clone());
  }
  return trained;
}

void expect_equal(const Trained& within, const Trained& after) {
  for (std::size_t i = 0; i < after.losses.size(); ++i) {
    expect_close(
        within.losses[i], after.losses[i], kRounding,
        "loss " + std::to_string(i));
  }
  for (const auto& item : after.parameters) {
    expect_close(
        within.parameters[item.key()], item.value(), kRounding, item.key());
  }
  ASSERT_EQ(within.states.size(), after.states.size());
  for (std::size_t i = 0; i < after.states.size(); ++i) {
    expect_close(
        within.states[i], after.states[i], kRounding,
        "state " + std::to_string(i));
  }
}

TEST_P(InBackward, EqualsAStepAfterBackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange :
         {ExchangeKind::kSharedMemory, ExchangeKind::kCollective}) {
      MixedPrecision bf16;
      bf16.param_dtype = torch::kBFloat16;
      auto narrow_gradients = bf16;
      narrow_gradients.keep_low_precision_grads = true;
      for (const auto& precision : {MixedPrecision(), bf16, narrow_gradients}) {
        FullyShardOptions shard;
        shard.units = units::by_name("*");
        shard.exchange = exchange;
        shard.mixed_precision = precision;
        expect_equal(train(world, shard, true), train(world, shard, false));
      }
    }
  }));
}

// Units of one layer, of two, and of one again.
struct ThreePartsImpl : torch::nn::Module {
  torch::nn::Linear part1{nullptr}, part3{nullptr};
  torch::nn::Sequential part2{nullptr};
  ThreePartsImpl() {
    torch::manual_seed(7);
    part1 = register_module("part1", torch::nn::Linear(kWidth, kWidth));
    part2 = register_module(
        "part2",
        torch::nn::Sequential(
            torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
            torch::nn::Linear(kWidth, kWidth)));
    part3 = register_module("part3", torch::nn::Linear(kWidth, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return part3(torch::tanh(part2->forward(torch::tanh(part1(x)))));
  }
};
TORCH_MODULE(ThreeParts);

// Frozen in some steps only: a part of a unit, all of it.
torch::OrderedDict<std::string, torch::Tensor> train_with_flags(
    const World& world, const FullyShardOptions& shard, bool in_backward) {
  constexpr int kSteps = 6;
  ThreeParts model;
  auto fsdp = fully_shard(*model, world, shard);
  AdamW adamw(
      fsdp.named_parameters(),
      {.learning_rate = 1e-2, .in_backward = in_backward});
  for (int step = 0; step < kSteps; ++step) {
    for (auto& item : model->part2->named_parameters()) {
      const bool early = item.key().starts_with("0.");
      item.value().requires_grad_(step % 3 == 0 || (step % 3 == 1 && !early));
    }
    const auto rows = torch::sin(torch::arange(4 * kWidth, torch::kFloat)
                                     .mul(0.1 * (1 + step) + world.rank())
                                     .view({4, kWidth}));
    model->forward(rows).square().mean().backward();
    adamw.step();
    adamw.zero_grad();
  }
  return full_parameters(*model, fsdp);
}

TEST_P(InBackward, WhatIsFrozenLaterIsReadAfterItsUnitIsReduced) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange :
         {ExchangeKind::kSharedMemory, ExchangeKind::kCollective}) {
      FullyShardOptions shard;
      shard.units = units::by_name("part?");
      shard.exchange = exchange;
      const auto within = train_with_flags(world, shard, true);
      for (const auto& item : train_with_flags(world, shard, false)) {
        expect_close(within[item.key()], item.value(), kRounding, item.key());
      }
    }
  }));
}

// A model and its optimizer, over shared memory whatever the environment says.
struct Subject {
  Forked model;
  std::optional<FullyShardedDataParallel> fsdp;
  std::optional<AdamW> adamw;
  explicit Subject(const World& world) {
    FullyShardOptions shard;
    shard.units = units::by_name("*");
    shard.exchange = ExchangeKind::kSharedMemory;
    fsdp.emplace(fully_shard(*model, world, shard));
    AdamWOptions options;
    options.in_backward = true;
    adamw.emplace(fsdp->named_parameters(), options);
  }
};

// What backward has brought, for each slice, and how much of it.
struct Taken {
  std::map<std::string, torch::Tensor> sums;
  std::shared_ptr<void> held;

  explicit Taken(const NamedParameters& named) {
    BackwardUpdate update;
    for (const auto& item : named.items) {
      update.names.push_back(item.name);
    }
    update.writes = false;
    update.update = [this, named, names = update.names](
                        std::size_t index, std::int64_t begin,
                        const at::Tensor& part) {
      auto& sum = sums[names[index]];
      if (!sum.defined()) {
        sum = torch::zeros_like(named.items[index].slice);
      }
      sum.detach().narrow(0, begin, part.numel()).copy_(part);
    };
    held = named.update_in_backward(std::move(update));
  }
};

// Nothing is written, so nothing has to be published between two backwards.
TEST(InBackwardTakes, GradientsAloneAsBackwardWouldShowThem) {
  expect_all_ok(run_ranks(2, [](World world) {
    FullyShardOptions shard;
    shard.units = units::by_name("*");
    shard.exchange = ExchangeKind::kSharedMemory;
    Forked shown;
    Forked taken;
    auto plain = fully_shard(*shown, world, shard);
    auto fsdp = fully_shard(*taken, world, shard);
    for (const int batch : {0, 2}) {
      forked_loss(shown, batch, world).backward();
      const auto loss = forked_loss(taken, batch, world);
      const auto named = fsdp.named_parameters();
      std::size_t came = 0;
      {
        const Taken bag(named);
        loss.backward();
        for (std::size_t i = 0; i < named.items.size(); ++i) {
          const auto& item = named.items[i];
          const auto sum = bag.sums.find(item.name);
          const auto& here =
              sum == bag.sums.end() ? item.slice.grad() : sum->second;
          const auto& there = plain.named_parameters().items[i].slice.grad();
          ASSERT_EQ(here.defined(), there.defined()) << item.name;
          EXPECT_TRUE(!here.defined() || torch::equal(here, there))
              << item.name << ", batch " << batch;
        }
        came = bag.sums.size();
      }
      EXPECT_GT(came, 0U);
      for (const auto& item : named.items) {
        item.slice.mutable_grad() = torch::ones_like(item.slice);
      }
      EXPECT_GT(fsdp.clip_grad_norm(1.0), 1.0);
      for (auto* handle : {&plain, &fsdp}) {
        for (const auto& item : handle->named_parameters().items) {
          item.slice.mutable_grad().reset();
        }
      }
    }
  }));
}

TEST(InBackwardRefuses, ClippingWhereNoGradientIsLeft) {
  expect_all_ok(run_ranks(2, [](World world) {
    Subject subject(world);
    forked_loss(subject.model, 0, world).backward();
    EXPECT_THAT(
        error_of([&] { (void)subject.fsdp->clip_grad_norm(1.0); }),
        testing::HasSubstr("no gradient left to clip"));
    subject.adamw->step();
  }));
}

TEST(InBackwardRefuses, ASecondOptimizerOfTheSameSlices) {
  expect_all_ok(run_ranks(2, [](World world) {
    Subject subject(world);
    AdamWOptions options;
    options.in_backward = true;
    EXPECT_THAT(
        error_of([&] { AdamW(subject.fsdp->named_parameters(), options); }),
        testing::HasSubstr("updated in backward by another optimizer"));
    subject.adamw.reset();
    AdamW(subject.fsdp->named_parameters(), options);
  }));
}

TEST(InBackwardRefuses, ASecondBackwardBeforeTheStep) {
  expect_all_ok(run_ranks(2, [](World world) {
    Subject subject(world);
    auto first = forked_loss(subject.model, 0, world);
    auto second = forked_loss(subject.model, 1, world);
    first.backward();
    EXPECT_THAT(
        error_of([&] { second.backward(); }),
        testing::HasSubstr("second backward before the step"));
  }));
}

TEST(InBackwardRefuses, ReadingAParameterAfterItsUpdate) {
  expect_all_ok(run_ranks(2, [](World world) {
    Subject subject(world);
    auto& model = subject.model;
    const auto x = torch::ones({2, kWidth});
    // The use through detach() gives no gradient, and is run backward last.
    const auto early = torch::tanh(torch::nn::functional::linear(
        model->first(x), model->second->weight.detach()));
    const auto loss = torch::tanh(model->rare(early)).sum() +
        model->second(torch::tanh(torch::ones({2, kWidth}))).sum();
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        testing::HasSubstr(
            "reads parameter second.weight in a backward after its gradient "
            "was complete"));
  }));
}

// Rank 0 alone keeps a gradient of what is frozen then, so rank 1 must not read it either.
TEST(InBackwardRefuses, ReadingWhatAnotherRankKeepsAGradientOf) {
  expect_all_ok(run_ranks(2, [](World world) {
    Subject subject(world);
    auto& model = subject.model;
    {
      const auto scope = subject.fsdp->no_sync();
      forked_loss(model, 1, world).backward();
    }
    for (auto& parameter : model->rare->parameters()) {
      parameter.requires_grad_(false);
    }
    EXPECT_THAT(
        error_of([&] { forked_loss(model, 2, world).backward(); }),
        testing::HasSubstr("reads parameter rare.weight in a backward"));
  }));
}

// A generator whose discriminator learns first, from values that carry no gradient.
TEST(InBackward, ABackwardOfAnotherModelIsNoStep) {
  for (const int ranks : {2, 3}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      Subject subject(world);
      torch::manual_seed(3);
      torch::nn::Linear other(1, 1);
      auto fsdp = fully_shard(*other, world);
      Sgd sgd(fsdp.named_parameters(), {.learning_rate = 0.1});
      for (int step = 0; step < 3; ++step) {
        const auto made = subject.model->forward(
            torch::ones({2, kWidth}).mul(1 + step), /*detour=*/true);
        other(made.detach()).sum().backward();
        sgd.step();
        sgd.zero_grad();
        other(made).sum().backward();
        subject.adamw->step();
        subject.adamw->zero_grad();
        sgd.zero_grad();
        fsdp.publish();
      }
    }));
  }
}

// Both ranks are told, since both have updated something.
TEST(InBackward, ABackwardThatFailsOnOneRankEndsTheTraining) {
  expect_all_ok(run_ranks(2, [](World world) {
    Subject subject(world);
    auto& model = subject.model;
    const auto x = torch::tanh(model->first(torch::ones({2, kWidth})));
    if (world.rank() == 1) {
      x.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
        if (gradient.defined()) {
          throw std::runtime_error("poisoned by the test");
        }
        return gradient;
      });
    }
    const auto loss = model->head(torch::tanh(model->second(x))).sum();
    const auto error = error_of([&] { loss.backward(); });
    EXPECT_THAT(error, testing::HasSubstr("poisoned by the test"));
    EXPECT_THAT(
        error_of([&] { forked_loss(subject.model, 0, world); }),
        testing::HasSubstr("this model is lost"));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    InBackward,
    testing::Values(1, 2, 3),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
