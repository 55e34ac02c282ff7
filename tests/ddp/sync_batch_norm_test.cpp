// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation over all ranks, beside LibTorch's over the whole batch in one process. Ids
// are those of docs/design/tests.md.
#include "ddp/replica_parity.h"
#include "support/over_messages.h"
#include "support/ranks.h"
#include "support/stage.h"

#include <gmock/gmock.h>
#include <sherd/ddp/sync_batch_norm.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/sgd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "world/world_impl.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::BatchNormOptions;

class SyncBatchNormOn : public ::testing::TestWithParam<int> {};

// `Norm` is LibTorch's or sherd's.
template <typename Norm>
struct NormNetImpl : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  Norm first{nullptr}, second{nullptr};
  explicit NormNetImpl(const BatchNormOptions& options) {
    in = register_module("in", torch::nn::Linear(3, 4));
    first = register_module("first", Norm(options));
    out = register_module("out", torch::nn::Linear(4, 4));
    second = register_module("second", Norm(options));
    fill_with_integers(*this);
    const torch::NoGradGuard no_grad;
    in->bias.mul_(30);  // A mean that is large against the deviation.
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(out(torch::tanh(first(in(x)))));
  }
};
using PlainNet = NormNetImpl<torch::nn::BatchNorm1d>;
using SyncNet = NormNetImpl<SyncBatchNorm>;

// One to four rows on each rank, other ones each time.
std::int64_t first_row(int batch, int rank) {
  std::int64_t row = 0;
  for (int before = 0; before < rank; ++before) {
    row += 1 + (batch + before) % 4;
  }
  return row;
}

torch::Tensor norm_rows(int batch, int begin_rank, int end_rank) {
  const auto all = small_integers({40, 3}, batch).to(torch::kDouble);
  const auto noise = torch::sin(torch::arange(120) * (1.7 + batch));
  const auto begin = first_row(batch, begin_rank);
  return (all + noise.view({40, 3}).to(torch::kDouble))
      .narrow(0, begin, first_row(batch, end_rank) - begin);
}

// The mean over ranks of what this adds up to is what one process has.
template <typename Net>
torch::Tensor norm_loss(Net& net, const torch::Tensor& x) {
  const auto y = net.forward(x);
  return (y * torch::cos(torch::arange(4)) + y.square() * y).sum();
}

void expect_same_buffers(
    const torch::nn::Module& found,
    const torch::nn::Module& expected,
    double tolerance) {
  for (const auto& item : expected.named_buffers()) {
    expect_close(
        found.named_buffers()[item.key()], item.value(), tolerance, item.key());
  }
}

std::vector<BatchNormOptions> norm_options() {
  return {
      BatchNormOptions(4), BatchNormOptions(4).momentum(std::nullopt),
      BatchNormOptions(4).affine(false).eps(0.1),
      BatchNormOptions(4).track_running_stats(false)};
}

TEST_P(SyncBatchNormOn, T66EqualsOneProcessWithTheWholeBatch) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : norm_options()) {
      auto plain = std::make_shared<PlainNet>(options);
      auto sync = std::make_shared<SyncNet>(options);
      synchronise_batch_norm(*sync, world);
      auto ddp = replicate(*sync, world, {.bucket_bytes = 100});
      torch::optim::SGD sgd(sync->parameters(), 0.01);
      torch::optim::SGD plain_sgd(plain->parameters(), 0.01);
      for (int batch = 0; batch < 3; ++batch) {
        // Whole batches have at least two rows.
        auto x = norm_rows(batch + 1, world.rank(), world.rank() + 1);
        auto whole = norm_rows(batch + 1, 0, world.size());
        x.requires_grad_();
        whole.requires_grad_();
        norm_loss(*sync, x).backward();
        (norm_loss(*plain, whole) / world.size()).backward();
        const auto begin = first_row(batch + 1, world.rank());
        expect_close(
            x.grad(), whole.grad().narrow(0, begin, x.size(0)) * world.size(),
            1e-9, "gradient of the input");
        for (const auto& item : plain->named_parameters()) {
          expect_close(
              sync->named_parameters()[item.key()].grad(), item.value().grad(),
              1e-9, "gradient of " + item.key());
        }
        expect_same_buffers(*sync, *plain, 1e-12);
        sgd.step();
        plain_sgd.step();
        sgd.zero_grad();
        plain_sgd.zero_grad();
      }
      // Each rank on its own.
      sync->eval();
      plain->eval();
      const auto x = norm_rows(9, world.rank(), world.rank() + 1);
      if (options.track_running_stats() || x.size(0) > 1) {
        expect_close(
            sync->forward(x).detach(), plain->forward(x).detach(), 1e-9,
            "evaluation");
      }
      expect_same_buffers(*sync, *plain, 1e-12);
    }
  }));
}

torch::nn::Sequential stacked_norms() {
  torch::nn::Sequential net(
      torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(BatchNormOptions(4)),
      torch::nn::Tanh(),
      Stage(
          torch::nn::Linear(4, 4),
          torch::nn::BatchNorm1d(BatchNormOptions(4).affine(false)),
          torch::nn::BatchNorm1d(
              BatchNormOptions(4).track_running_stats(false))));
  fill_with_integers(*net);
  net->to(torch::kDouble);
  return net;
}

// Names and, of parameters, objects; buffers have the memory that they had.
std::vector<std::pair<std::string, const void*>> tensors_of_net(
    const torch::nn::Module& net) {
  std::vector<std::pair<std::string, const void*>> tensors;
  for (const auto& item : net.named_parameters()) {
    tensors.emplace_back(item.key(), item.value().unsafeGetTensorImpl());
  }
  for (const auto& item : net.named_buffers()) {
    tensors.emplace_back(item.key(), item.value().const_data_ptr());
  }
  return tensors;
}

TEST_P(SyncBatchNormOn, C23ConvertsWhatASequentialHolds) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto plain = stacked_norms();
    auto sync = stacked_norms();
    sync->ptr(3)->train(false);
    const auto before = tensors_of_net(*sync);
    EXPECT_EQ(convert_sync_batch_norm(*sync), 3);
    EXPECT_EQ(tensors_of_net(*sync), before);
    EXPECT_EQ(convert_sync_batch_norm(*sync), 0);  // None is left.
    EXPECT_TRUE(sync->ptr(1)->is_training());
    EXPECT_FALSE(sync->ptr(3)->children().at(1)->is_training());
    sync->train();
    synchronise_batch_norm(*sync, world);
    auto ddp = replicate(*sync, world, {.bucket_bytes = 100});
    torch::optim::SGD sgd(sync->parameters(), 0.01);
    torch::optim::SGD plain_sgd(plain->parameters(), 0.01);
    for (int batch = 1; batch < 4; ++batch) {
      const auto loss = [](torch::nn::Sequential& net, const torch::Tensor& x) {
        const auto y = net->forward(x);
        return (y * torch::cos(torch::arange(4)) + y.square() * y).sum();
      };
      loss(sync, norm_rows(batch, world.rank(), world.rank() + 1)).backward();
      (loss(plain, norm_rows(batch, 0, world.size())) / world.size())
          .backward();
      for (auto* optimizer : {&sgd, &plain_sgd}) {
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    expect_same_buffers(*sync, *plain, 1e-9);
    for (const auto& item : plain->named_parameters()) {
      expect_close(
          sync->named_parameters()[item.key()].detach(), item.value().detach(),
          1e-9, item.key());
    }
  }));
}

TEST(ConvertSyncBatchNorm, C23WhatCodeCallsByItsTypeIsNamedAndLeft) {
  struct Net : torch::nn::Module {
    torch::nn::BatchNorm2d member{nullptr};
    torch::nn::ModuleList list;
    torch::nn::Sequential sequential{torch::nn::BatchNorm1d(4)};
    Net() {
      member = register_module("member", torch::nn::BatchNorm2d(4));
      register_module("list", list);
      list->push_back(torch::nn::BatchNorm3d(4));
      register_module("sequential", sequential);
    }
  };
  const auto net = std::make_shared<Net>();
  EXPECT_THAT(
      error_of([&] { convert_sync_batch_norm(*net); }),
      AllOf(
          HasSubstr("found member, list.0, which C++ code calls"),
          HasSubstr("sherd::SyncBatchNorm")));
  EXPECT_NE(net->sequential->ptr(0)->as<torch::nn::BatchNorm1dImpl>(), nullptr);
  torch::nn::BatchNorm1d alone(4);
  EXPECT_THAT(
      error_of([&] { convert_sync_batch_norm(*alone); }),
      HasSubstr("found the module itself"));
  Net on_the_stack;
  EXPECT_THAT(
      error_of([&] { convert_sync_batch_norm(on_the_stack); }),
      HasSubstr("found member, list.0, which C++ code calls"));
  // One layer in two places stays one.
  torch::nn::Sequential twice(Stage(alone, alone), alone);
  EXPECT_EQ(convert_sync_batch_norm(*twice), 1);
  EXPECT_EQ(twice->ptr(0)->children().at(1), twice->ptr(1));
}

template <typename Plain>
void expect_parity_of_images(
    const World& world,
    const torch::Tensor& whole,
    c10::ScalarType dtype,
    double tolerance) {
  Plain plain(BatchNormOptions(5));
  SyncBatchNorm sync(BatchNormOptions(5));
  synchronise_batch_norm(*sync, world);
  const auto begin = [&](int rank) {  // The last rank has none but on its own.
    const auto parts = std::max(1, world.size() - 1);
    return whole.size(0) * std::min(rank, parts) / parts;
  };
  const auto mine = begin(world.rank());
  const auto count = begin(world.rank() + 1) - mine;
  auto x = whole.narrow(0, mine, count).clone().to(dtype).requires_grad_();
  auto all = whole.clone().requires_grad_();
  const auto found = sync(x);
  const auto expected = plain(all);
  EXPECT_EQ(found.scalar_type(), dtype);
  const auto weights =
      torch::cos(torch::arange(whole.numel()) * 0.3).view(whole.sizes());
  (found * weights.narrow(0, mine, count)).sum().backward();
  (expected * weights).sum().backward();
  const auto part = [&](const torch::Tensor& tensor) {
    return tensor.narrow(0, mine, count);
  };
  const auto close = [&](const torch::Tensor& ours, const torch::Tensor& theirs,
                         const char* what) {
    expect_close(
        ours.detach().to(torch::kFloat), theirs.detach(), tolerance, what);
  };
  close(found, part(expected), "output");
  close(x.grad(), part(all.grad()), "gradient");
  close(sync->running_var, plain->running_var, "variance");
  // In bits.
  const auto sums = world.all_gather(
      {sync->running_mean.sum().item<double>(),
       sync->running_var.square().sum().item<double>()});
  for (const auto& sum : sums) {
    EXPECT_EQ(sum, sums[0]);
  }
}

TEST_P(SyncBatchNormOn, T66TakesImagesOfAnyLayoutAndEmptyBatches) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::manual_seed(1);
    const auto images = torch::randn({6, 5, 3, 4}) * 2 + 7;
    using Two = torch::nn::BatchNorm2d;
    expect_parity_of_images<Two>(world, images, torch::kFloat, 1e-4);
    expect_parity_of_images<Two>(
        world, images.contiguous(at::MemoryFormat::ChannelsLast), torch::kFloat,
        1e-4);
    expect_parity_of_images<Two>(world, images - 7, torch::kBFloat16, 4e-2);
    expect_parity_of_images<torch::nn::BatchNorm3d>(
        world, torch::randn({6, 5, 2, 3, 2}), torch::kFloat, 1e-4);
  }));
}

TEST_P(SyncBatchNormOn, T66WhatFollowsMayWriteItsResult) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool affine : {true, false}) {
      SyncBatchNorm norm(BatchNormOptions(3).affine(affine));
      synchronise_batch_norm(*norm, world);
      const auto gradient_of = [&](bool in_place) {
        const auto x = norm_rows(1, world.rank(), world.rank() + 1)
                           .to(torch::kFloat)
                           .requires_grad_();
        auto y = norm(x);
        y = in_place ? torch::relu_(y) : torch::relu(y);
        (y * torch::cos(torch::arange(3))).sum().backward();
        return x.grad();
      };
      EXPECT_TRUE(torch::equal(gradient_of(true), gradient_of(false)));
    }
  }));
}

// As under a gradient scaler: the gradients fit into fp16, their products with the result do not.
TEST_P(SyncBatchNormOn, T66LargeGradientsInHalfPrecisionAreSummedInFloat) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto rows = torch::sin(torch::arange(36 * 5) * 1.7).view({36, 5});
    const auto whole = (rows * rows * rows * 50).to(torch::kHalf);
    auto all = whole.to(torch::kFloat).requires_grad_();
    torch::nn::BatchNorm1d plain(BatchNormOptions(5).affine(false));
    const auto expected = plain(all);
    const auto gradient = expected.detach().sign() * 4e4;
    EXPECT_GT((expected * gradient).max().item<double>(), 65504.0);
    expected.backward(gradient);

    SyncBatchNorm sync(BatchNormOptions(5).affine(false));
    synchronise_batch_norm(*sync, world);
    const auto count = 36 / world.size();
    const auto part = [&](const torch::Tensor& tensor) {
      return tensor.narrow(0, count * world.rank(), count);
    };
    auto x = part(whole).clone().requires_grad_();
    sync(x).backward(part(gradient).to(torch::kHalf));
    EXPECT_TRUE(torch::allclose(
        x.grad().to(torch::kFloat), part(all.grad()), 2e-2, 5.0))
        << x.grad() << part(all.grad());
  }));
}

// Sharded, by shared memory and by messages, with each strategy.
TEST_P(SyncBatchNormOn, T66GoesWithShardedModels) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& shard :
         {FullyShardOptions{}, over_messages(),
          over_messages({.strategy = Strategy::kNoShard})}) {
      auto plain = std::make_shared<PlainNet>(BatchNormOptions(4));
      auto sync = std::make_shared<SyncNet>(BatchNormOptions(4));
      synchronise_batch_norm(*sync, world);
      auto fsdp = fully_shard(*sync, world, shard);
      auto sgd = Sgd(fsdp.named_parameters(), {.learning_rate = 0.01});
      torch::optim::SGD plain_sgd(plain->parameters(), 0.01);
      for (int batch = 0; batch < 3; ++batch) {
        const auto whole = norm_rows(batch + 1, 0, world.size());
        const auto mine = norm_rows(batch + 1, world.rank(), world.rank() + 1);
        norm_loss(*sync, mine).backward();
        (norm_loss(*plain, whole) / world.size()).backward();
        sgd.step();
        sgd.zero_grad();
        plain_sgd.step();
        plain_sgd.zero_grad();
      }
      expect_same_buffers(*sync, *plain, 1e-9);
      const auto all = full_parameters(*sync, fsdp);
      for (const auto& item : plain->named_parameters()) {
        expect_close(all[item.key()], item.value().detach(), 1e-9, item.key());
      }
    }
  }));
}

TEST_P(SyncBatchNormOn, T66MistakesAreErrorsOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto net = std::make_shared<PlainNet>(BatchNormOptions(4));
    EXPECT_THAT(
        error_of([&] { synchronise_batch_norm(*net, world); }),
        HasSubstr("expected a module with sherd::SyncBatchNorm"));
    SyncBatchNorm norm(BatchNormOptions(4));
    synchronise_batch_norm(*norm, world);
    EXPECT_THAT(
        error_of([&] { norm(torch::ones({2, 3})); }),
        HasSubstr("[batch, 4, ...], found Float of shape [2, 3]"));
    const auto one = torch::ones({world.rank() == 0 ? 1 : 0, 4});
    EXPECT_THAT(
        error_of([&] { norm(one); }), HasSubstr("xpected more than 1 value"));
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), world.size() == 1 ? 1 : 0);
    if (world.size() == 1) {
      return;
    }
    auto x = torch::ones({2, 4}).requires_grad_();
    const auto sum = norm(x).square().sum();
    EXPECT_THAT(
        error_of([&] {
          torch::autograd::grad({sum}, {x}, {}, true, /*create_graph=*/true);
        }),
        HasSubstr("with create_graph"));
    SyncBatchNorm other(BatchNormOptions(world.rank() == 1 ? 5 : 4));
    EXPECT_THAT(
        error_of([&] { synchronise_batch_norm(*other, world); }),
        AllOf(
            HasSubstr("rank 0 has (root) of 4"),
            HasSubstr("rank 1 has (root) of 5")));
  }));
}

TEST_P(SyncBatchNormOn, T66RanksThatRunDifferentLayersAreTold) {
  const auto body = [](World world) {
    if (world.size() == 1) {
      return;
    }
    auto net = std::make_shared<SyncNet>(BatchNormOptions(4));
    net->to(torch::kFloat);
    synchronise_batch_norm(*net, world);
    const auto x = torch::ones({2, 4}).requires_grad_();
    const auto y = net->first(x);
    for (int turn = 0; turn < 2; ++turn) {  // The same again instead of a hang.
      EXPECT_THAT(
          error_of([&] {
            if (world.rank() == 1) {
              y.sum().backward({}, /*retain_graph=*/true);
            } else {
              net->second(x);
            }
          }),
          HasSubstr(
              "rank 0 is in the forward of batch norm 'second', rank 1 in the "
              "backward of batch norm 'first'"));
    }
  };
  expect_all_ok(run_ranks(GetParam(), body));
}

TEST(SyncBatchNormFailure, T66ARankThatLeavesALayerOutIsNamed) {
  RankOptions options;
  options.world.deadline = std::chrono::seconds(2);
  options.close_world = false;
  const auto report = run_ranks(
      2,
      [](World world) {
        auto net = std::make_shared<SyncNet>(BatchNormOptions(4));
        synchronise_batch_norm(*net, world);
        const auto& store = world.impl()->store;
        if (world.rank() == 1) {
          store->wait({"given up"});
          return;
        }
        const auto x = torch::ones({2, 3}, torch::kDouble);
        EXPECT_THAT(
            error_of([&] { net->forward(x); }),
            AllOf(HasSubstr("rank 1"), HasSubstr("batch norm 'first'")));
        store->set("given up", "");
      },
      options);
  expect_all_ok(report);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SyncBatchNormOn,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
