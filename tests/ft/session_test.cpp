// SPDX-License-Identifier: Apache-2.0
//
// A single replica of one rank with a model: what a session permits, and how it and the coordinator
// authenticate each other.
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/ft/replica_session.h>
#include <sherd/optim/adamw.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include "base/check.h"
#include "ckpt/file_system.h"
#include "net/net_testing.h"
#include "support/coordinator_process.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"
#include "support/small_models.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

class LoneReplica {
 public:
  LoneReplica(
      const World& world,
      const ft::SessionOptions& options,
      std::function<void(std::int64_t)> after_step = nullptr)
      : model_(Chain(3, 6)),
        fsdp_(fully_shard(*model_, world)),
        adamw_(
            fsdp_.named_parameters(),
            {.learning_rate = 1e-3, .weight_decay = 0.5}),
        after_step_(std::move(after_step)),
        session_(
            world,
            fsdp_.named_parameters(),
            state(),
            [this](std::int64_t step) {
              adamw_.step();
              if (after_step_) {
                after_step_(step);
              }
            },
            options) {}

  void train(std::int64_t steps) {
    while (const auto plan = session_.begin_step()) {
      if (plan->step > steps) {
        break;
      }
      make(*plan);
    }
    session_.close();
  }
  void make(const ft::TrainingStep& plan) {
    const auto first = plan.samples.front().begin;
    auto x = integer_rows(static_cast<int>(first), 0, 6);
    x = model_->layer(1).forward(model_->layer(0).forward(x));
    model_->head(x).sum().backward();
    EXPECT_TRUE(session_.finish_step());
  }
  ft::ReplicaSession& session() { return session_; }
  Chain& model() { return model_; }
  FullyShardedDataParallel& fsdp() { return fsdp_; }

 private:
  CheckpointState state() {
    CheckpointState all;
    all.add(fsdp_.named_parameters());
    all.add("adamw", adamw_, fsdp_.named_parameters());
    return all;
  }

  Chain model_;
  FullyShardedDataParallel fsdp_;
  AdamW adamw_;
  const std::function<void(std::int64_t)> after_step_;
  ft::ReplicaSession session_;
};

void run_world(const std::function<void(const World&)>& body, int ranks = 1) {
  const testing::ScratchFolder folder;
  expect_all_ok(run_processes(ranks, [&](int rank, Rank&) {
    const auto store =
        c10::make_intrusive<c10d::FileStore>(folder.path() + "/store", ranks);
    body(World::from_store(store, rank, ranks, test_world_options()));
  }));
}

void run_alone(
    const ft::SessionOptions& options,
    const std::function<void(LoneReplica&)>& body) {
  run_world([&](const World& world) {
    LoneReplica replica(world, options);
    body(replica);
  });
}

TEST(Session, AfterCloseNothingBegins) {
  const CoordinatorProcess coordinator({});
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_alone(options, [](LoneReplica& replica) {
    replica.train(3);
    auto& session = replica.session();
    EXPECT_EQ(session.step(), 3);
    EXPECT_THAT(session.state_name(), HasSubstr("step 3 of "));
    EXPECT_THAT(
        error_of([&] { (void)session.begin_step(); }),
        HasSubstr("found begin_step() after close()"));
    EXPECT_THAT(
        error_of([&] { (void)session.finish_step(); }),
        HasSubstr("expected begin_step() before finish_step()"));
    session.leave();
    session.close();
  });
}

// Weight decay would change it.
TEST(Session, WhatNoReplicaHasAGradientOfStays) {
  const CoordinatorProcess coordinator({});
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_alone(options, [](LoneReplica& replica) {
    replica.model()->layer(0).weight.set_requires_grad(false);
    const auto values = [&] {
      const auto whole =
          replica.fsdp().summon_full_parameters({.read_only = true});
      std::map<std::string, at::Tensor> all;
      for (const auto& item : replica.model()->named_parameters()) {
        all[item.key()] = whole.tensor(item.key()).clone();
      }
      return all;
    };
    const auto before = values();
    replica.train(3);
    for (const auto& [name, value] : values()) {
      const bool stays =
          name == "layers.0.weight" || name.starts_with("layers.2.");
      EXPECT_EQ(torch::equal(value, before.at(name)), stays) << name;
    }
  });
}

// One parameter, of which the test brings the parts of a backward by hand.
struct HandFedParameter {
  at::Tensor values = at::zeros({3});
  std::weak_ptr<BackwardUpdate> backward{};

  NamedParameters named() {
    NamedParameters all;
    all.items.push_back({"a", values});
    all.update_in_backward =
        [this](const BackwardUpdate& update) -> std::shared_ptr<void> {
      auto held = std::make_shared<BackwardUpdate>(update);
      backward = held;
      return held;
    };
    return all;
  }
};

TEST(Session, ABackwardThatBrokeOffCostsTheGradientsOfOneStep) {
  const CoordinatorProcess coordinator({});
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_world([&](const World& world) {
    HandFedParameter a;
    CheckpointState state;
    state.add(a.named());
    ft::ReplicaSession session(
        world, a.named(), state, [](std::int64_t) {}, options);
    const auto first = session.begin_step();
    ASSERT_TRUE(first);
    session.last_backward();
    a.backward.lock()->update(0, 0, at::ones({1}));
    EXPECT_THAT(
        error_of([&] { (void)session.finish_step(); }),
        HasSubstr("a backward broke off"));
    const auto second = session.begin_step();
    ASSERT_TRUE(second);
    EXPECT_EQ(second->step, 1);
    EXPECT_NE(second->samples.front().begin, first->samples.front().begin);
    EXPECT_TRUE(session.finish_step());
    session.close();
  });
}

// Its backward counts for nothing then, and slices are as before it.
TEST(Session, AfterAStepThatWasNotMadeParametersCanBeRead) {
  ft::CoordinateOptions coordinating;
  coordinating.samples_per_replica = 2;  // One for each rank.
  const CoordinatorProcess coordinator(coordinating);
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_world(
      [&](const World& world) {
        LoneReplica replica(world, options);
        auto& session = replica.session();
        auto loss = [&] {
          return replica.model()->head(torch::ones({2, 6})).sum();
        };
        for (const bool finite : {true, false, true}) {
          ASSERT_TRUE(session.begin_step());
          {
            const torch::NoGradGuard no_grad;
            EXPECT_TRUE(loss().isfinite().item<bool>());
          }
          (loss() * (finite ? 1.0 : NAN)).backward();
          EXPECT_EQ(session.finish_step(), finite);
        }
        EXPECT_EQ(session.step(), 2);
        session.close();
      },
      2);
}

TEST(Session, IsNotUsedInsideAFunctionThatItCalls) {
  const CoordinatorProcess coordinator({});
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_world([&](const World& world) {
    LoneReplica* self = nullptr;
    int refused = 0;
    const auto misuse = [&] {
      auto& session = self->session();
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { session.close(); }, [&] { (void)session.begin_step(); },
               [&] { (void)session.finish_step(); }}) {
        EXPECT_THAT(
            error_of(call),
            HasSubstr("inside a function that the session calls; expected "
                      "leave() there"));
        ++refused;
      }
    };
    LoneReplica replica(world, options, [&](std::int64_t) { misuse(); });
    self = &replica;
    replica.session().other_work(misuse);
    replica.train(1);
    EXPECT_EQ(refused, 6);
  });
}

// What an update has done by then may be half a step.
TEST(Session, AnUpdateCannotSaveTheState) {
  const CoordinatorProcess coordinator({});
  const testing::ScratchFolder folder;
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_world([&](const World& world) {
    ft::ReplicaCheckpoints checkpoints(world, {}, {.folder = folder.path()});
    LoneReplica* self = nullptr;
    LoneReplica replica(world, options, [&](std::int64_t step) {
      EXPECT_FALSE(self->session().state_is_known());
      EXPECT_THAT(
          error_of([&] { checkpoints.save(self->session()); }),
          HasSubstr(str("found it inside the update to step ", step)));
    });
    self = &replica;
    replica.train(2);
    EXPECT_TRUE(replica.session().state_is_known());
  });
}

TEST(Session, AFolderOfCheckpointsThatWasMovedIsMadeAgain) {
  const CoordinatorProcess coordinator({});
  const testing::ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  run_world([&](const World& world) {
    CheckpointState state;
    state.add("numbers", {{"one", at::ones({1})}});
    ft::ReplicaCheckpoints checkpoints(world, state, {.folder = folder});
    LoneReplica replica(world, options);
    auto& session = replica.session();
    for (const char* away : {"-1", "-2"}) {
      replica.make(session.begin_step().value());
      checkpoints.save(session);
      checkpoints.wait();
      EXPECT_FALSE(ckpt::share_folder(folder, session.run() + 1, {}).ok());
      std::filesystem::rename(folder, folder + away);
    }
    EXPECT_TRUE(std::filesystem::exists(folder + "-1/step-1"));
    EXPECT_TRUE(std::filesystem::exists(folder + "-2/step-2"));
    session.close();
  });
}

TEST(Session, AnUpdateThatThrowsLeavesNoStateThatHasAName) {
  const CoordinatorProcess coordinator({});
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  const auto fail_in_two = [](std::int64_t step) {
    if (step == 2) {
      throw std::runtime_error("the log is full");
    }
  };
  run_world([&](const World& world) {
    LoneReplica replica(world, options, fail_in_two);
    auto& session = replica.session();
    EXPECT_THAT(
        error_of([&] { replica.train(3); }), HasSubstr("the log is full"));
    EXPECT_FALSE(session.state_is_known());
    EXPECT_EQ(session.step(), 1);
    const std::string why = "after an exception in the update to step 2";
    EXPECT_THAT(error_of([&] { (void)session.state_name(); }), HasSubstr(why));
    EXPECT_THAT(error_of([&] { (void)session.begin_step(); }), HasSubstr(why));
    session.close();  // Waits for nobody.
  });
}

// Other replicas might be on other hosts, which do not reach 127.0.0.1.
TEST(Session, AsksForAnAddressIfItFindsNone) {
  ft::SessionOptions options;
  options.coordinator = "no-such-host.invalid:4300";
  run_world([&](const World& world) {
    EXPECT_THAT(
        error_of([&] { LoneReplica(world, options); }),
        HasSubstr("SHERD_HOST: expected the address at which other replicas "
                  "reach this host"));
  });
}

TEST(Session, CertificatesOfOneAuthorityAreEnough) {
  const testing::ScratchFolder folder;
  const auto mine = net::testing::make_certificate(
      folder.path(), "one", net::PeerRole::kCoordinator);
  const auto other =
      net::testing::make_certificate_of(folder.path(), "other", "one");
  ft::CoordinateOptions coordinating;
  coordinating.tls_certificate = mine.certificate;
  coordinating.tls_key = mine.key;
  coordinating.tls_authority = mine.authority;
  const CoordinatorProcess coordinator(coordinating);
  ft::SessionOptions options;
  options.coordinator = coordinator.address();
  options.tls_certificate = other.certificate;
  options.tls_key = other.key;
  options.tls_authority = other.authority;
  run_alone(options, [](LoneReplica& replica) {
    replica.train(3);
    EXPECT_EQ(replica.session().step(), 3);
  });
}

}  // namespace
}  // namespace sherd::test
