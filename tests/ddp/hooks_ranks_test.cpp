// SPDX-License-Identifier: Apache-2.0
//
// Communication hooks on several ranks (T57).
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplicateHooks : public ::testing::TestWithParam<int> {};

ReplicateOptions with_hook(CommHookPtr hook) {
  ReplicateOptions options;
  options.hook = std::move(hook);
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 8;
  return options;
}

TEST_P(ReplicateHooks, T57TheMeanIsWhatNoHookGives) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int micro : {1, 3}) {
      for (const bool view : {true, false}) {
        ReplicaParity options;
        options.micro_batches = micro;
        options.replicate = with_hook(all_reduce_mean());
        options.replicate.gradient_as_bucket_view = view;
        const auto report = expect_replica_parity<IntegerMlp>(
            world, [] { return IntegerMlp(); }, divisible_loss, options);
        EXPECT_EQ(report.hook, "all_reduce_mean");
      }
    }
  }));
}

TEST_P(ReplicateHooks, C12AHookMayComeAndGoBetweenSteps) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    std::vector<torch::Tensor> expected;
    for (const auto& hook :
         {CommHookPtr(), compress(at::kHalf), CommHookPtr()}) {
      ddp.set_hook(hook);
      EXPECT_EQ(ddp.report().hook, hook ? hook->name() : "");
      model->zero_grad();
      divisible_loss(model, 0, world.rank()).backward();
      const auto parameters = model->parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (expected.size() <= p) {
          expected.push_back(parameters[p].grad().clone());
        }
        EXPECT_TRUE(torch::equal(parameters[p].grad(), expected[p])) << p;
      }
    }
    auto join = ddp.join();
    if (world.size() > 1) {
      EXPECT_THAT(
          [&] { ddp.set_hook(nullptr); },
          ::testing::ThrowsMessage<Error>(HasSubstr("between two steps")));
    }
    join.finish();
  }));
}

TEST_P(ReplicateHooks, T57TheMeanOfALargeModel) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      return chain->forward(integer_rows(batch, rank, 200)).sum();
    };
    ReplicaParity options;
    options.replicate.hook = all_reduce_mean();
    expect_replica_parity<Chain>(
        world, [] { return Chain(2, 200); }, pass, options);
  }));
}

// Small integers are numbers of either.
TEST_P(ReplicateHooks, T57CompressedSmallIntegersAreExact) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 3) {
      return;  // Their mean need not be.
    }
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
        return chain->layer(0).forward(integer_rows(batch, rank, 6)).sum();
      };
      ReplicaParity options;
      options.replicate = with_hook(compress(dtype));
      expect_replica_parity<Chain>(
          world, [] { return Chain(2, 6); }, pass, options);
    }
  }));
}

TEST_P(ReplicateHooks, T53UnusedParametersNeedNoMoreThanWithoutAHook) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      const auto layer = static_cast<std::size_t>((batch + rank) % 3);
      return chain->layer(layer).forward(integer_rows(batch, rank, 6)).sum();
    };
    ReplicaParity options;
    options.replicate = with_hook(all_reduce_mean());
    expect_replica_parity<Chain>(
        world, [] { return Chain(4, 6); }, pass, options);
  }));
}

double checksum(torch::nn::Module& model) {
  double sum = 0;
  for (const auto& parameter : model.parameters()) {
    sum =
        sum * 1.01 + parameter.detach().to(torch::kDouble).sum().item<double>();
  }
  return sum;
}

bool equal_on_all(const World& world, torch::nn::Module& model) {
  const auto all = world.all_gather({checksum(model)});
  return std::all_of(
      all.begin(), all.end(), [&](const auto& one) { return one == all[0]; });
}

void expect_to_train_equal_replicas(const World& world, CommHookPtr hook) {
  auto model = small_gpt({.tied = false});
  auto options = with_hook(std::move(hook));
  options.bucket_bytes = 4000;
  auto ddp = replicate(*model, world, options);
  torch::optim::SGD sgd(
      model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    auto loss = token_loss(model, 0, world.rank());
    loss.backward();
    sgd.step();
    sgd.zero_grad();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_TRUE(equal_on_all(world, *model)) << ddp.report().hook;
  EXPECT_LT(last, first * 0.8) << ddp.report().hook;
}

TEST_P(ReplicateHooks, T57PowerSgdTrainsEqualReplicas) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_to_train_equal_replicas(
        world,
        power_sgd({.rank = 2, .start_step = 2, .batched = world.size() == 2}));
  }));
}

TEST_P(ReplicateHooks, T57QuantisedGradientsTrainEqualReplicas) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_to_train_equal_replicas(
        world,
        quantise(
            {.scale = world.size() == 2 ? QuantisationScale::kTensor
                                        : QuantisationScale::kChannel}));
  }));
}

TEST_P(ReplicateHooks, T57QuantisedGradientsAreTheMeanOfRoundedOnes) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Nothing is sent, and nothing rounded.
    }
    IntegerMlp model, reference;
    const auto leaves = unique_parameters(*reference);
    auto ddp = replicate(*model, world, with_hook(quantise()));
    const auto loss = [](IntegerMlp& mlp, int rank) {
      return mlp->forward(integer_rows(0, rank, 7) * 0.37).square().sum();
    };
    loss(model, world.rank()).backward();
    std::vector<torch::Tensor> means(leaves.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      reference->zero_grad();
      loss(reference, rank).backward();
      for (std::size_t p = 0; p < leaves.size(); ++p) {
        const auto& gradient = leaves[p].tensor.grad();
        const auto rows = gradient.dim() > 1 ? gradient.size(0) : 1;
        const auto row = gradient.reshape({rows, -1});
        const auto scale = row.abs().amax(1, true).clamp_min(1e-30) / 127;
        const auto part = (row / scale).round() * scale / world.size();
        means[p] = means[p].defined() ? means[p] + part : part;
      }
    }
    for (std::size_t p = 0; p < leaves.size(); ++p) {
      const auto gradient = model->named_parameters()[leaves[p].name].grad();
      expect_close(
          gradient, means[p].view(gradient.sizes()), 1e-5, leaves[p].name);
    }
  }));
}

TEST_P(ReplicateHooks, T57ModelsThatDriftApartAreAveraged) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Linear model(6, 1);
    fill_with_integers(*model);
    auto ddp =
        replicate(*model, world, with_hook(post_local_sgd({.start_step = 1})));
    const auto step = [&](int batch) {
      model->forward(integer_rows(batch, world.rank(), 6)).sum().backward();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) {
        if (parameter.grad().defined()) {
          parameter.sub_(parameter.grad(), 0.125);
          parameter.mutable_grad().reset();
        }
      }
    };
    step(0);
    EXPECT_TRUE(equal_on_all(world, *model));
    step(1);
    EXPECT_EQ(equal_on_all(world, *model), world.size() == 1);
    std::vector<double> mine;
    for (const auto& parameter : model->parameters()) {
      mine.push_back(parameter.detach().sum().item<double>());
    }
    const auto all = world.all_gather(mine);
    ddp.average_parameters();
    EXPECT_TRUE(equal_on_all(world, *model));
    for (std::size_t p = 0; p < mine.size(); ++p) {
      double mean = 0;
      for (const auto& rank : all) {
        mean += rank[p] / world.size();
      }
      EXPECT_NEAR(
          model->parameters()[p].detach().sum().item<double>(), mean, 1e-3);
    }
    step(2);  // Goes on.
  }));
}

// As a user would write one.
class Counting final : public CommHook {
 public:
  explicit Counting(int throws_at = -1) : throws_at_(throws_at) {}
  std::string name() const override { return "counting"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    if (calls++ == throws_at_) {
      throw std::runtime_error("the hook's own trouble");
    }
    EXPECT_EQ(bucket.last, bucket.index == 2);
    std::int64_t numel = 0;
    for (const auto& parameter : bucket.parameters) {
      numel += parameter.gradient.numel();
      names.push_back(parameter.name);
    }
    EXPECT_GE(bucket.gradients.numel(), numel);
    const auto all = group.all_gather(bucket.gradients);
    EXPECT_EQ(static_cast<int>(all.size()), group.size());
    bucket.gradients.fill_(bucket.step + 1);
  }

  int calls = 0;
  std::vector<std::string> names;

 private:
  const int throws_at_;
};

TEST_P(ReplicateHooks, T57AUsersHookDecidesWhatGradientsAre) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Nothing is reduced.
    }
    const auto hook = std::make_shared<Counting>();
    Chain model(2, 6);
    auto options = with_hook(hook);
    options.bucket_bytes = 100;
    options.learn_bucket_order = false;
    auto ddp = replicate(*model, world, options);
    for (int step = 0; step < 2; ++step) {
      model->forward(integer_rows(step, world.rank(), 6)).sum().backward();
      for (const auto& parameter : model->parameters()) {
        EXPECT_TRUE(
            at::equal(parameter.grad(), torch::full_like(parameter, step + 1)));
        parameter.mutable_grad().reset();
      }
    }
    EXPECT_EQ(hook->names.size(), 2 * model->parameters().size());
  }));
}

// Writes its bucket while it reads what it has gathered.
class GatheredMean final : public CommHook {
 public:
  std::string name() const override { return "gathered mean"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    const auto all = group.all_gather(bucket.gradients);
    bucket.gradients.zero_();
    for (const auto& theirs : all) {
      bucket.gradients.add_(theirs);
    }
    bucket.gradients.div_(group.size());
  }
};

TEST_P(ReplicateHooks, T57WhatIsGatheredLiesInMemoryOfItsOwn) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ReplicaParity options;
    options.replicate = with_hook(std::make_shared<GatheredMean>());
    expect_replica_parity<IntegerMlp>(
        world, [] { return IntegerMlp(); }, divisible_loss, options);
  }));
}

// LibTorch takes a column for contiguous whatever the stride of its dimension of size 1 is.
TEST_P(ReplicateHooks, T57AGraphOfATransposedRowMayBeUsedTwice) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto model = std::make_shared<torch::nn::Module>();
    const auto column =
        model->register_parameter("column", torch::ones({1, 5}).t());
    auto ddp = replicate(*model, world, with_hook(all_reduce_mean()));
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      const auto loss = column.pow(2).sum();
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
      expect_close(
          column.grad(), torch::full({5, 1}, 4.0), 0.0,
          "gradient of step " + std::to_string(step));
    }
  }));
}

// Assigns its result, of which the last `missing` elements are missing.
class AssignedMean final : public CommHook {
 public:
  explicit AssignedMean(std::int64_t missing = 0) : missing_(missing) {}
  std::string name() const override { return "assigned mean"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    const auto mean = bucket.gradients.clone();
    group.all_reduce_mean(mean);
    bucket.gradients = mean.narrow(0, 0, mean.numel() - missing_);
  }

 private:
  const std::int64_t missing_;
};

TEST_P(ReplicateHooks, T57AHookMayAssignItsResult) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& hook :
         {CommHookPtr(std::make_shared<AssignedMean>()),
          compress(at::kBFloat16, std::make_shared<AssignedMean>())}) {
      const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
        return chain->layer(0).forward(integer_rows(batch, rank, 6)).sum() * 12;
      };
      ReplicaParity options;
      options.replicate = with_hook(hook);
      expect_replica_parity<Chain>(
          world, [] { return Chain(2, 6); }, pass, options);
    }
  }));
}

TEST_P(ReplicateHooks, T57AnAssignedResultOfAnotherShapeIsRefused) {
  RankOptions ranks;
  ranks.close_world = false;  // It is lost.
  for (const bool compressed : {false, true}) {
    const auto body = [compressed](World world) {
      if (world.size() == 1) {
        return;
      }
      const auto hook = std::make_shared<AssignedMean>(1);
      Chain model(2, 6);
      auto ddp = replicate(
          *model, world,
          with_hook(compressed ? compress(at::kBFloat16, hook) : hook));
      EXPECT_THAT(
          error_of([&] {
            model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
          }),
          AllOf(
              HasSubstr("hook assigned mean has assigned gradients"),
              HasSubstr(compressed ? "expected BFloat16" : "expected Float")));
    };
    expect_all_ok(run_ranks(GetParam(), body, ranks));
  }
}

TEST_P(ReplicateHooks, T57AHookThatThrowsOnOneRankIsNamedByAll) {
  RankOptions ranks;
  ranks.close_world = false;  // It is lost.
  const auto body = [](World world) {
    if (world.size() == 1) {
      return;
    }
    const int last = world.size() - 1;
    Chain model(2, 6);
    auto options =
        with_hook(std::make_shared<Counting>(world.rank() == last ? 1 : -1));
    options.bucket_bytes = 100;
    options.learn_bucket_order = false;
    auto ddp = replicate(*model, world, options);
    const auto error = error_of([&] {
      model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
    });
    EXPECT_THAT(
        error, AllOf(HasSubstr("the hook's own trouble"), HasSubstr("bucket")));
    if (world.rank() != last) {
      EXPECT_THAT(error, HasSubstr("rank " + std::to_string(last)));
    }
    // The same again instead of a hang.
    EXPECT_THAT(
        error_of([&] {
          model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
        }),
        HasSubstr("the hook's own trouble"));
  };
  expect_all_ok(run_ranks(GetParam(), body, ranks));
}

TEST_P(ReplicateHooks, T57DifferentHooksAreRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    IntegerMlp model;
    const auto hook = world.rank() == 1 ? power_sgd() : all_reduce_mean();
    EXPECT_THAT(
        error_of([&] { (void)replicate(*model, world, with_hook(hook)); }),
        AllOf(HasSubstr("rank 1"), HasSubstr("power_sgd(rank 1)")));
  }));
}

// Nothing is exchanged between a hook that ranks disagree on and the next one.
TEST_P(ReplicateHooks, C12AHookThatWasRefusedMayBeReplaced) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    IntegerMlp model, reference;
    const auto leaves = unique_parameters(*reference);
    auto ddp = replicate(*model, world);
    const auto hook = world.rank() == 1 ? power_sgd() : all_reduce_mean();
    const auto names_it =
        AllOf(HasSubstr("rank 1"), HasSubstr("power_sgd(rank 1)"));
    for (int attempt = 0; attempt < 2; ++attempt) {
      EXPECT_THAT(error_of([&] { ddp.set_hook(hook); }), names_it);
      EXPECT_THAT(ddp.report().error, names_it);
      EXPECT_THAT(
          error_of([&] { divisible_loss(model, 0, world.rank()).backward(); }),
          names_it);
    }
    ddp.set_hook(nullptr);
    EXPECT_EQ(ddp.report().error, "");
    model->zero_grad();
    reference_backward<IntegerMlp>(reference, leaves, divisible_loss, 1, world);
    divisible_loss(model, 1, world.rank()).backward();
    expect_same_gradients(*model, leaves);
  }));
}

// The mean; tells which parameters' buckets it has reduced.
class AnnouncedMean final : public CommHook {
 public:
  std::string name() const override { return "announced mean"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    group.all_reduce_mean(bucket.gradients);
    const std::lock_guard lock(mu_);
    for (const auto& parameter : bucket.parameters) {
      reduced_.insert(parameter.name);
    }
    changed_.notify_all();
  }
  void forget() {
    const std::lock_guard lock(mu_);
    reduced_.clear();
  }
  bool wait_for(const std::string& parameter) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      return reduced_.contains(parameter);
    });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::set<std::string> reduced_;
};

// Its bucket, where its gradient lies, is reduced before the end of backward.
TEST_P(ReplicateHooks, T53AParameterFrozenLaterKeepsItsGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Nothing is reduced.
    }
    Chain model(3, 6);
    const auto hook = std::make_shared<AnnouncedMean>();
    auto options = with_hook(hook);
    options.bucket_bytes = 100;
    auto ddp = replicate(*model, world, options);
    const auto backward = [&](const std::function<void()>& in_backward) {
      auto x = model->layer(0).forward(integer_rows(0, world.rank(), 6));
      x.register_hook([&](const torch::Tensor&) { in_backward(); });
      x = model->layer(2).forward(model->layer(1).forward(x));
      model->head(x).sum().backward();
    };
    backward([] {});
    auto& frozen = model->layer(2).weight;
    const auto before = frozen.grad().clone();
    EXPECT_GT(before.abs().sum().item<double>(), 0.0);
    for (auto& parameter : model->layer(2).parameters()) {
      parameter.requires_grad_(false);
    }
    hook->forget();
    backward([&] { EXPECT_TRUE(hook->wait_for("layers.2.weight")); });
    EXPECT_TRUE(torch::equal(frozen.grad(), before));
    // Its bucket is left out now.
    backward([] {});
    EXPECT_TRUE(torch::equal(frozen.grad(), before));
  }));
}

struct WordsAndRowsImpl : torch::nn::Module {
  torch::nn::Linear rows{nullptr};
  torch::nn::Embedding table{nullptr};
  WordsAndRowsImpl() {
    rows = register_module("rows", torch::nn::Linear(6, 4));
    table = register_module(
        "table",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true)));
    fill_with_integers(*this);
  }
  // Backward reaches the table first, and calls `between` before it reaches the rows.
  torch::Tensor loss(
      int batch, int rank, const std::function<void()>& between = [] {}) {
    const auto x = rows(integer_rows(batch, rank, 6));
    x.register_hook([between](const torch::Tensor&) { between(); });
    return (x + table(torch::tensor({batch, batch + 1}))).sum();
  }
};
TORCH_MODULE(WordsAndRows);

TEST_P(ReplicateHooks, T62AFailuresSparseGradientsAreForgotten) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Nothing fails.
    }
    WordsAndRows model, reference;
    auto ddp = replicate(*model, world);
    std::optional<JoinScope> join = ddp.join();
    const auto failing =
        model->loss(0, world.rank(), [&] { join.reset(); });  // Not finished.
    EXPECT_THAT(
        error_of([&] { failing.backward(); }), HasSubstr("without finish()"));
    ddp.set_hook(nullptr);
    model->zero_grad();
    model->loss(4, world.rank()).backward();
    reference->loss(4, world.rank()).backward();
    EXPECT_TRUE(torch::equal(
        model->table->weight.grad().to_dense(),
        reference->table->weight.grad().to_dense()));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateHooks,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
