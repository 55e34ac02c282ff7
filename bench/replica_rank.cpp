// SPDX-License-Identifier: Apache-2.0
#include "bench/replica_rank.h"

#include <unistd.h>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/ft/replica_session.h>
#include <sherd/optim/adamw.h>
#include <sherd/world/world.h>
#include <torch/torch.h>
#include "base/digest.h"
#include "bench/step_gate.h"
#include "bench/step_log.h"
#include "bench/workload.h"

namespace sherd::bench {
namespace {

std::atomic<bool> leave_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

class ReplicaRank {
 public:
  ReplicaRank(
      const World& world, const StepRunnerOptions& options, StepLogWriter& file)
      : work_(options.work),
        hash_every_(options.hash_every),
        gate_(options.gate),
        file_(file),
        model_(model_config(options.work)),
        fsdp_(fully_shard(*model_, world, shard_options(options))),
        adamw_(fsdp_.named_parameters(), {.learning_rate = kLearningRate}),
        session_(
            world,
            fsdp_.named_parameters(),
            state(),
            [this](std::int64_t step) { update(step); },
            session_options()) {}

  void run() {
    bool asked = false;
    for (;;) {
      if (!asked && leave_asked.load(std::memory_order_relaxed)) {
        asked = true;
        session_.leave();
      }
      const auto plan = session_.begin_step();
      if (!plan) {
        break;
      }
      if (!gate_.empty()) {
        wait_at_gate(gate_, plan->step);
      }
      take_part(*plan);
    }
    session_.close();
    fsdp_.close();
  }

 private:
  CheckpointState state() {
    CheckpointState all;
    all.add(fsdp_.named_parameters());
    all.add("adamw", adamw_, fsdp_.named_parameters());
    return all;
  }

  ft::SessionOptions session_options() const {
    auto options = ft::SessionOptions::from_environment();
    for (const auto& word : flags_of(work_)) {
      options.config += word + " ";
    }
    return options;
  }

  void take_part(const ft::TrainingStep& plan) {
    std::optional<at::Tensor> loss;
    if (!plan.samples.empty()) {
      const auto bytes = rows_of(plan.samples);
      loss = model_->loss(
          bytes.narrow(1, 0, work_.sequence).contiguous(),
          bytes.narrow(1, 1, work_.sequence).contiguous());
      session_.last_backward();
      loss->backward();
    }
    kind_ = loss ? StepEvent::Kind::kComputed : StepEvent::Kind::kFollowed;
    const bool made = session_.finish_step();
    kind_ = StepEvent::Kind::kReplayed;
    if (!loss) {
      return;
    }
    loss->item<double>();  // Every training loop reads it.
    if (!made) {
      file_.add({.kind = StepEvent::Kind::kDropped, .step = plan.step});
    }
  }

  at::Tensor rows_of(const std::vector<ft::SampleSpan>& spans) const {
    std::vector<std::int64_t> numbers;
    for (const auto& span : spans) {
      for (auto number = span.begin; number < span.end; ++number) {
        numbers.push_back(number);
      }
    }
    return random_rows(numbers, work_.sequence + 1);
  }

  void update(std::int64_t step) {
    adamw_.step();
    const bool hashed = hash_every_ > 0 && step % hash_every_ == 0;
    file_.add(
        {.kind = kind_,
         .step = step,
         .hash = hashed ? std::optional(hash()) : std::nullopt});
  }

  std::uint64_t hash() {
    std::vector<std::uint64_t> parts;
    const auto add = [&](const at::Tensor& tensor) {
      parts.push_back(digest_of(
          tensor.const_data_ptr(), static_cast<std::size_t>(tensor.nbytes())));
    };
    for (const auto& item : fsdp_.named_parameters().items) {
      add(item.slice);
    }
    for (const auto& item : adamw_.tensors({})) {
      add(item.tensor);
    }
    return digest_of(parts.data(), parts.size() * sizeof(std::uint64_t));
  }

  const Workload work_;
  const int hash_every_;
  const std::string gate_;  // Empty if steps wait for nobody.
  StepLogWriter& file_;
  StepEvent::Kind kind_ = StepEvent::Kind::kReplayed;  // For the next update.
  models::Gpt model_;
  FullyShardedDataParallel fsdp_;
  AdamW adamw_;
  ft::ReplicaSession session_;
};

}  // namespace

void train_as_replica(const StepRunnerOptions& options) {
  // Before anything that takes time, since until then the signal kills.
  struct sigaction action = {};
  action.sa_handler = [](int) {
    leave_asked.store(true, std::memory_order_relaxed);
  };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR1, &action, nullptr);
  StepLogWriter file(
      options.folder,
      {.replica = number_in("SHERD_REPLICA"),
       .rank = number_in("RANK"),
       .process = ::getpid()});
  auto world = World::from_environment();
  ReplicaRank(world, options, file).run();
  world.close();
}

}  // namespace sherd::bench
