// SPDX-License-Identifier: Apache-2.0
//
// Muon over shards whose gradients ranks share, beside AdamW for the rest: the
// bits of one process that holds everything, and of ranks that all do.
#include "support/delay.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <chrono>
#include <random>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include "base/check.h"

namespace sherd::test {
namespace {

using Values = torch::OrderedDict<std::string, torch::Tensor>;

struct Job {
  int steps = 3;
  int micro_batches = 1;
  int replicas = 1;
  std::vector<std::string> matrices = {"*.weight"};
  MuonOptions muon = {.learning_rate = 0.05};
  bool adamw_first = false;
  // Before the optimizers.
  std::function<void(const FullyShardedDataParallel&)> gradients_ended;
  FullyShardOptions shard;

  Job() {
    shard.exchange = ExchangeKind::kSharedMemory;
    shard.share_gradients = true;
  }
};

class Optimizers {
 public:
  Optimizers(const NamedParameters& parameters, const Job& job)
      : Optimizers(split(parameters, job.matrices), job) {}

  void step() {
    if (adamw_first_) {
      adamw_.step();
    }
    muon_.step();
    if (!adamw_first_) {
      adamw_.step();
    }
    adamw_.zero_grad();
    muon_.zero_grad();
  }

 private:
  Optimizers(const SplitParameters& parameters, const Job& job)
      : muon_(parameters.matching, job.muon),
        adamw_(parameters.rest, {.learning_rate = 0.05}),
        adamw_first_(job.adamw_first) {}

  Muon muon_;
  AdamW adamw_;
  const bool adamw_first_;
};

template <typename Model>
Values train(
    const World& world,
    const std::function<Model()>& make,
    const Pass<Model>& pass,
    const Job& job) {
  Model model = make();
  auto fsdp =
      fully_shard(*model, Mesh(world, {.replicate = job.replicas}), job.shard);
  Optimizers optimizers(fsdp.named_parameters(), job);
  for (int step = 0; step < job.steps; ++step) {
    for (int micro = 0; micro < job.micro_batches; ++micro) {
      pass(model, step * job.micro_batches + micro, world.rank()).backward();
    }
    if (job.gradients_ended) {
      job.gradients_ended(fsdp);
    }
    optimizers.step();
  }
  auto values = full_parameters(*model, fsdp);
  fsdp.close();
  return values;
}

// By this process alone; ranks' gradients are added in their order.
template <typename Model>
Values train_alone(
    const World& world,
    const std::function<Model()>& make,
    const Pass<Model>& pass,
    const Job& job) {
  Model model = make();
  const auto leaves = unique_parameters(*model);
  NamedParameters parameters;
  for (const auto& leaf : leaves) {
    parameters.items.push_back({leaf.name, leaf.tensor});
  }
  Optimizers optimizers(parameters, job);
  for (int step = 0; step < job.steps; ++step) {
    for (int micro = 0; micro < job.micro_batches; ++micro) {
      reference_backward<Model>(
          model, leaves, pass, step * job.micro_batches + micro, world,
          job.shard);
    }
    optimizers.step();
  }
  Values values;
  for (const auto& leaf : leaves) {
    values.insert(leaf.name, leaf.tensor.detach());
  }
  return values;
}

void expect_equal(
    const Values& found, const Values& expected, double tolerance = 0.0) {
  for (const auto& value : expected) {
    expect_close(found[value.key()], value.value(), tolerance, value.key());
  }
}

// The same, where every rank has everything and does all of Muon's work.
Job replicated(Job job) {
  job.shard.strategy = Strategy::kNoShard;
  job.shard.share_gradients = false;
  return job;
}

models::Gpt gpt() { return small_gpt({}); }

Job gpt_job() {
  Job job;
  job.matrices = {"h.*.c_*.weight"};
  return job;
}

// Of units of one parameter; one that nobody cuts.
Job uneven() {
  Job job;
  job.shard.units = units::by_name("*");
  job.shard.granularity = [](const std::string& name, const at::Tensor& t) {
    return name == "second.weight" ? t.numel() : 1;
  };
  return job;
}

class SharedMemoryMuon : public testing::TestWithParam<int> {};

TEST_P(SharedMemoryMuon, WithAdamWOnAGptEqualsOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto job = gpt_job();
    expect_equal(
        train<models::Gpt>(world, gpt, token_loss<models::Gpt>, job),
        train_alone<models::Gpt>(world, gpt, token_loss<models::Gpt>, job));
  }));
}

TEST_P(SharedMemoryMuon, UnevenCutsAndMicroBatchesEqualOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] { return IntegerMlp(); };
    auto job = uneven();
    job.steps = 4;
    job.micro_batches = 2;
    for (const bool adamw_first : {false, true}) {
      job.adamw_first = adamw_first;
      const auto found = train<IntegerMlp>(world, make, integer_loss, job);
      expect_equal(
          found, train<IntegerMlp>(world, make, integer_loss, replicated(job)));
      // Micro-batches are scaled one by one; a third is no fp32 number, and
      // iterations multiply what that costs.
      job.muon.iteration_dtype = at::kFloat;
      expect_equal(
          train<IntegerMlp>(world, make, integer_loss, job),
          train_alone<IntegerMlp>(world, make, integer_loss, job),
          world.size() == 3 ? 1e-3 : 0.0);
      job.muon.iteration_dtype = at::kBFloat16;
    }
  }));
}

TEST_P(SharedMemoryMuon, TiedAndFrozenMatricesEqualOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] {
      auto model = gpt();
      for (auto& parameter : model->named_parameters()) {
        if (parameter.key().starts_with("h.1.")) {
          parameter.value().set_requires_grad(false);
        }
      }
      return model;
    };
    auto job = gpt_job();
    job.matrices.emplace_back("wte.weight");  // The head's, too.
    expect_equal(
        train<models::Gpt>(world, make, token_loss<models::Gpt>, job),
        train_alone<models::Gpt>(world, make, token_loss<models::Gpt>, job));
  }));
}

// Masters are private to each rank, gradients shared all the same.
TEST_P(SharedMemoryMuon, InBf16EqualsRanksThatHoldEverything) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto job = gpt_job();
    job.shard.mixed_precision.param_dtype = torch::kBFloat16;
    for (const auto iteration : {at::kFloat, at::kBFloat16}) {
      job.muon.iteration_dtype = iteration;
      expect_equal(
          train<models::Gpt>(world, gpt, token_loss<models::Gpt>, job),
          train<models::Gpt>(
              world, gpt, token_loss<models::Gpt>, replicated(job)));
    }
  }));
}

// Momentum is that of the matrices; the bits are those of gradients that were made wide.
TEST_P(SharedMemoryMuon, WithNarrowGradientsEqualsRanksThatHoldEverything) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto job = gpt_job();
    job.shard.mixed_precision.param_dtype = torch::kBFloat16;
    job.shard.mixed_precision.keep_low_precision_grads = true;
    expect_equal(
        train<models::Gpt>(world, gpt, token_loss<models::Gpt>, job),
        train<models::Gpt>(
            world, gpt, token_loss<models::Gpt>, replicated(job)));
    auto model = gpt();
    auto fsdp = fully_shard(*model, world, job.shard);
    const auto parts = split(fsdp.named_parameters(), job.matrices);
    Muon muon(parts.matching, job.muon);
    // A load makes buffers before the first step does.
    if (!muon.names().empty()) {
      (void)muon.momentum_buffer(muon.names().front());
    }
    token_loss(model, 0, world.rank()).backward();
    muon.step();
    for (const auto& name : muon.names()) {
      EXPECT_EQ(muon.momentum_buffer(name).scalar_type(), torch::kFloat);
    }
  }));
}

// A layer that only the last rank uses, and one batch in which nobody does.
TEST_P(SharedMemoryMuon, UnusedMatricesEqualOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] { return Chain(3, 6); };
    const int last = world.size() - 1;
    const Pass<Chain> pass = [&](Chain& model, int batch, int rank) {
      auto x = model->layer(0).forward(integer_rows(batch, rank, 6));
      if (batch != 1 && rank == last) {
        x = model->layer(1).forward(x);
      }
      return model->head(model->layer(2).forward(x)).sum();
    };
    Job job;
    job.steps = 4;
    expect_equal(
        train<Chain>(world, make, pass, job),
        train_alone<Chain>(world, make, pass, job),
        world.size() == 3 ? 1e-3 : 0.0);
  }));
}

// As clipping does, at different times: an owner must not read before.
TEST_P(SharedMemoryMuon, WaitsForRanksThatStillWriteTheirGradients) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] { return IntegerMlp(); };
    int step = 0;
    auto job = uneven();
    job.gradients_ended = [&](const FullyShardedDataParallel& fsdp) {
      if (world.rank() == step++ % world.size()) {
        be_late(std::chrono::milliseconds(20));
      }
      for (const auto& item : fsdp.named_parameters().items) {
        item.slice.grad().mul_(1.0 + step);
      }
    };
    const auto found = train<IntegerMlp>(world, make, integer_loss, job);
    step = 0;
    expect_equal(
        found, train<IntegerMlp>(world, make, integer_loss, replicated(job)));
  }));
}

// Ranks are late anywhere between the meetings of a step.
TEST_P(SharedMemoryMuon, HasTheSameBitsWhoeverIsLate) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto job = gpt_job();
    job.steps = 8;
    const auto expected =
        train<models::Gpt>(world, gpt, token_loss<models::Gpt>, job);
    const auto seed = static_cast<unsigned>(17 + world.rank());
    SCOPED_TRACE(str("seed ", seed));
    std::mt19937 random(seed);
    const auto be_late_at_random = [&] {
      be_late(std::chrono::microseconds(random() % 3000));
    };
    job.gradients_ended = [&](const auto&) { be_late_at_random(); };
    const Pass<models::Gpt> late = [&](models::Gpt& model, int batch,
                                       int rank) {
      be_late_at_random();
      auto loss = token_loss(model, batch, rank);
      be_late_at_random();
      return loss;
    };
    expect_equal(train<models::Gpt>(world, gpt, late, job), expected);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SharedMemoryMuon,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

TEST(SharedMemoryMuonHybrid, EveryReplicaDealsItsMatrices) {
  expect_all_ok(run_ranks(4, [](World world) {
    auto job = gpt_job();
    job.replicas = 2;
    job.muon.iteration_dtype = at::kFloat;
    // Replicas add up gradients in another order.
    expect_equal(
        train<models::Gpt>(world, gpt, token_loss<models::Gpt>, job),
        train<models::Gpt>(
            world, gpt, token_loss<models::Gpt>, replicated(job)),
        1e-3);
  }));
}

}  // namespace
}  // namespace sherd::test
