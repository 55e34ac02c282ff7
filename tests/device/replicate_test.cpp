// SPDX-License-Identifier: Apache-2.0
//
// Replicated training on devices: the bits of training on CPUs, without a wait of the host and
// without new memory after the first steps.
#include <gmock/gmock.h>
#include <sherd/ddp/replicate.h>
#include <sherd/optim/adamw.h>
#include "device/device_models.h"
#include "device/device_ranks.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct ReplicaOutcome {
  std::vector<double> losses = {};
  std::vector<torch::Tensor> parameters = {};
};

class ReplicaTrainer {
 public:
  ReplicaTrainer(
      const World& world, c10::Device device, const ReplicateOptions& options)
      : device_(device),
        ddp(replicate(*model, world, options)),
        optimizer(ddp.named_parameters(), {.learning_rate = 0.05}) {
    for (int batch = 0; batch < 4; ++batch) {
      batches_.push_back(batch_on(device, batch, world.rank()));
    }
  }

  torch::Tensor step(int number) {
    {
      const auto local = ddp.no_sync();
      backward(number);
    }
    const auto loss = backward(number + 1);
    optimizer.step();
    optimizer.zero_grad();
    return loss;
  }

 private:
  torch::Tensor backward(int number) {
    const auto loss =
        loss_of(model, batches_[static_cast<std::size_t>(number % 4)]);
    loss.backward();
    return loss.detach();
  }

  const c10::Device device_;
  std::vector<torch::Tensor> batches_;

 public:
  DeviceMlp model = mlp_on(device_);
  DistributedDataParallel ddp;
  AdamW optimizer;
};

// Several buckets, one of them of one layer.
ReplicateOptions in_buckets() {
  ReplicateOptions options;
  options.bucket_bytes = 512;
  options.first_bucket_bytes = 64;
  return options;
}

std::vector<ReplicaOutcome> replica_outcomes(
    int ranks, bool on_device, const DeviceRanksOptions& of_ranks = {}) {
  std::vector<ReplicaOutcome> all(static_cast<std::size_t>(ranks));
  auto options = in_buckets();
  options.exchange = ExchangeKind::kCollective;
  run_device_ranks(
      ranks,
      [&](const DeviceRank& self) {
        auto& mine = all[static_cast<std::size_t>(self.world.rank())];
        ReplicaTrainer trainer(
            self.world, on_device ? self.device : c10::Device(c10::kCPU),
            options);
        for (int step = 0; step < 4; ++step) {
          mine.losses.push_back(trainer.step(step).item<double>());
        }
        for (const auto& parameter : trainer.model->parameters()) {
          mine.parameters.push_back(parameter.detach().cpu().clone());
        }
      },
      of_ranks);
  return all;
}

void expect_bits_of_the_cpu(int ranks, const DeviceRanksOptions& options = {}) {
  SCOPED_TRACE(ranks);
  const auto found = replica_outcomes(ranks, true, options);
  const auto expected = replica_outcomes(ranks, false);
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    EXPECT_EQ(found[rank].losses, expected[rank].losses);
    ASSERT_EQ(found[rank].parameters.size(), expected[rank].parameters.size());
    for (std::size_t p = 0; p < found[rank].parameters.size(); ++p) {
      EXPECT_TRUE(
          torch::equal(found[rank].parameters[p], expected[rank].parameters[p]))
          << "rank " << rank << ", parameter " << p;
    }
  }
}

TEST(DeviceReplicate, T50TrainsToTheBitsOfTheCpu) {
  for (const int ranks : {1, 2, 4}) {
    expect_bits_of_the_cpu(ranks);
  }
}

TEST(DeviceReplicate, DeterministicSumsHaveTheBitsOfTheCpu) {
  const DeviceRanksOptions backwards{.sums_backwards = true};
  EXPECT_NE(
      replica_outcomes(3, true, backwards)[0].losses,
      replica_outcomes(3, false)[0].losses);
  const DeterministicAlgorithms on;
  expect_bits_of_the_cpu(3, backwards);
}

TEST(DeviceReplicate, AStepMakesTheHostNeitherWaitNorAllocate) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    run_device_ranks(ranks, [&](const DeviceRank& self) {
      ReplicaTrainer trainer(self.world, self.device, in_buckets());
      for (int step = 0; step < 3; ++step) {
        trainer.step(step);
      }
      trainer.ddp.synchronize();
      const auto before = host_synchronisations(self.device);
      torch::Tensor loss;
      {
        const CaptureScope capture(self.device);
        loss = trainer.step(3);
      }
      EXPECT_EQ(host_synchronisations(self.device), before);
      trainer.ddp.synchronize();
    });
  }
}

// Without any one of the waits of rank 0 that rank finds an access that nothing orders.
std::string fault_of_replicas(
    bool hooked, int stream, int left_out, std::vector<int>* counts) {
  std::string fault;
  DeviceRanksOptions options;
  options.disorderly = left_out >= 0;
  options.deadline = std::chrono::seconds(left_out < 0 ? 20 : 2);
  auto in_one_exchange = in_buckets();
  in_one_exchange.learn_bucket_order = false;
  const auto train = [&](const DeviceRank& self, const StreamWaits* waits) {
    auto mine = in_one_exchange;
    mine.hook = hooked ? quantise() : nullptr;
    ReplicaTrainer trainer(self.world, self.device, mine);
    trainer.step(0);
    trainer.step(1);
    if (waits != nullptr && counts != nullptr) {
      *counts = waits->counts();
    }
  };
  std::mutex mu;
  run_device_ranks(
      2,
      [&](const DeviceRank& self) {
        std::optional<StreamWaits> waits;
        if (self.world.rank() == 0) {
          waits.emplace(self.device);
          waits->leave_out(static_cast<std::size_t>(stream), left_out);
        }
        const auto found =
            error_of([&] { train(self, waits ? &*waits : nullptr); });
        const auto of_frees = take_faults(self.device);
        const std::lock_guard lock(mu);
        if (waits) {
          fault = found + (of_frees.empty() ? "" : of_frees.front());
        }
      },
      options);
  return fault;
}

void expect_every_wait_of_replicas_is_needed(bool hooked) {
  std::vector<int> counts;
  ASSERT_EQ(fault_of_replicas(hooked, 0, -1, &counts), "no error");
  for (std::size_t stream = 0; stream < counts.size(); ++stream) {
    for (int wait = 0; wait < counts[stream]; ++wait) {
      EXPECT_THAT(
          fault_of_replicas(hooked, static_cast<int>(stream), wait, nullptr),
          HasSubstr("[checking device]"))
          << "without wait " << wait << " of " << counts[stream]
          << " of stream " << stream;
    }
  }
}

TEST(DeviceReplicate, T30EveryWaitIsNeeded) {
  expect_every_wait_of_replicas_is_needed(false);
}

TEST(DeviceReplicate, EveryWaitWithAHookIsNeeded) {
  expect_every_wait_of_replicas_is_needed(true);
}

TEST(DeviceReplicate, WhatOneRankAloneCannotDoIsAnErrorOfAll) {
  run_device_ranks(
      2,
      [&](const DeviceRank& self) {
        auto model = mlp_on(self.device);
        if (self.world.rank() == 1) {
          model->third->to(c10::kCPU);
        }
        EXPECT_THAT(
            error_of([&] { (void)replicate(*model, self.world); }),
            AllOf(
                HasSubstr("third.weight is on cpu"),
                HasSubstr(
                    self.world.rank() == 0
                        ? "rank 1 cannot replicate its module"
                        : "expected all parameters and buffers on one")));
      },
      {.disorderly = true});
}

TEST(DeviceReplicate, ParametersOnTwoDevicesAreAnErrorThatNamesThem) {
  for (const bool cpu : {true, false}) {
    run_device_ranks(
        2,
        [&](const DeviceRank& self) {
          auto model = mlp_on(self.device);
          model->third->to(c10::kCPU);
          if (!cpu) {
            model->third->to(checking_device(self.world.rank() + 4));
          }
          EXPECT_THAT(
              error_of([&] { (void)replicate(*model, self.world); }),
              AllOf(
                  HasSubstr(
                      cpu ? "third.weight is on cpu, and first.weight"
                          : "third.weight is on checking:"),
                  HasSubstr(
                      "expected all parameters and buffers on one device")));
        },
        {.disorderly = true});
  }
}

}  // namespace
}  // namespace sherd::test
