// SPDX-License-Identifier: Apache-2.0
#include <sherd/ft/replica_session.h>

#include <unistd.h>
#include <atomic>
#include <charconv>
#include <cstring>
#include <random>
#include <utility>
#include <ATen/Functions.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/rank_environment.h"
#include "ft/agent/replica_agent.h"
#include "ft/protocol/samples.h"
#include "ft/session/samples_of_rank.h"
#include "ft/session/state_bytes.h"
#include "net/security.h"

namespace sherd::ft {
namespace {

int number_of(const char* name, const std::string& text) {
  int value = 0;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  SHERD_CHECK(
      error == std::errc() && stop == end && value >= 0, "[ft] ", name,
      ": expected a number from 0 on, found \"", text, "\"");
  return value;
}

// A spare waits here until it takes a place: the launcher writes the number.
std::string line_from(int descriptor) {
  std::string line;
  char next = 0;
  while (::read(descriptor, &next, 1) == 1) {
    if (next == '\n') {
      return line;
    }
    line += next;
  }
  throw Error(
      "[ft] the launcher ended before this spare was needed",
      ErrorCode::kAborted);
}

std::uint64_t hash_of(const std::vector<std::string>& texts) {
  Hash64 hash;
  for (const auto& text : texts) {
    hash.add(text);
  }
  return hash.value();
}

// Rank 0's, for all.
Incarnation new_life(const World& world) {
  std::random_device random;
  const auto drawn = (std::uint64_t{random()} << 32U | random()) | 1U;
  return std::stoull(world.all_gather_texts(std::to_string(drawn)).front());
}

net::Security security_of(const SessionOptions& options) {
  return options.secret_file.empty()
      ? net::Security()
      : net::read_shared_secret(options.secret_file);
}

}  // namespace

SessionOptions SessionOptions::from_environment() {
  const auto lookup = process_environment();
  const auto read = [&](const char* name) {
    auto value = lookup(name);
    SHERD_CHECK(
        value.has_value(), "[ft] expected ", name,
        " to be set, as sherd run --fault-tolerant does; found it unset");
    return *value;
  };
  SessionOptions options;
  options.coordinator = read("SHERD_COORDINATOR");
  const auto spare = lookup("SHERD_SPARE");
  options.replica = number_of(
      "SHERD_REPLICA",
      spare ? line_from(number_of("SHERD_SPARE", *spare))
            : read("SHERD_REPLICA"));
  options.replicas = number_of("SHERD_REPLICAS", read("SHERD_REPLICAS"));
  options.secret_file = lookup("SHERD_SECRET_FILE").value_or("");
  return options;
}

struct ReplicaSession::Impl {
  Impl(
      const World& of,
      const NamedParameters& trained,
      CheckpointState all,
      std::function<void(std::int64_t)> how,
      const SessionOptions& given)
      : world(of),
        state(std::move(all)),
        update(std::move(how)),
        options(given) {
    std::vector<std::int64_t> buckets;
    for (const auto& item : trained.items) {
      SHERD_CHECK(
          item.slice.scalar_type() == at::kFloat && item.slice.is_cpu(),
          "[ft] ", item.name, ": expected an fp32 tensor on the CPU, found ",
          c10::toString(item.slice.scalar_type()));
      parameters.push_back(item.slice);
      elements += item.slice.numel();
    }
    buckets.push_back(elements);
    const auto texts = world.all_gather_texts(
        std::to_string(hash_of({state_bytes(state, world.rank())})));
    ReplicaAgentOptions starting;
    starting.rank.replica = static_cast<ReplicaId>(options.replica);
    starting.rank.incarnation = new_life(world);
    starting.rank.shard_rank = world.rank();
    starting.rank.host = options.host;
    starting.rank.security = security_of(options);
    starting.rank.buckets = std::move(buckets);
    starting.rank.sums_kept = options.sums_kept;
    starting.rank.fetch_bytes_per_s_max =
        static_cast<std::uint64_t>(options.fetch_bytes_per_s_max);
    starting.ranks = world.size();
    starting.coordinator = net::parse_host_address(options.coordinator);
    starting.config =
        hash_of({options.config, std::to_string(world.size())}) | 1U;
    starting.held = {0, first_lineage(starting.config, hash_of(texts))};
    agent = std::make_unique<ReplicaAgent>(std::move(starting));
    agent->start(world.all_gather_texts(agent->address()));
    program = {
        .snapshot = [this] { return state_bytes(state, world.rank()); },
        .restore =
            [this](std::string_view bytes) {
              restore_state(state, world.rank(), bytes);
            },
        .update = [this](
                      const Commit& commit,
                      const float* sum) { make_step(commit, sum); }};
  }

  void clear_gradients() {
    for (const auto& parameter : parameters) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

  void take_gradients(float* to) const {
    for (const auto& parameter : parameters) {
      const auto bytes = static_cast<std::size_t>(parameter.nbytes());
      const auto& gradient = parameter.grad();
      if (gradient.defined()) {
        const auto plain = gradient.contiguous();
        std::memcpy(to, plain.const_data_ptr<float>(), bytes);
      } else {
        std::memset(to, 0, bytes);
      }
      to += parameter.numel();
    }
  }

  // Of the replicas' sum, as if backward had brought it.
  void make_step(const Commit& commit, const float* sum) {
    for (const auto& parameter : parameters) {
      auto gradient = parameter.grad();
      if (!gradient.defined()) {
        gradient = at::empty_like(parameter);
        parameter.mutable_grad() = gradient;
      }
      gradient.detach().copy_(at::from_blob(
          const_cast<float*>(sum),  // Only read.
          parameter.sizes(), at::kFloat));
      sum += parameter.numel();
    }
    samples = commit.samples;
    update(commit.result.step);
    clear_gradients();
    step.store(commit.result.step, std::memory_order_relaxed);
  }

  const World world;
  const CheckpointState state;
  const std::function<void(std::int64_t)> update;
  const SessionOptions options;
  std::vector<at::Tensor> parameters;
  std::int64_t elements = 0;
  std::atomic<std::int64_t> step{0};
  std::int64_t samples = 0;  // Of the step that is being made.
  RankProgram program;
  std::optional<ComputeCommand> task;
  std::unique_ptr<ReplicaAgent> agent;
};

ReplicaSession::ReplicaSession(
    const World& world,
    const NamedParameters& parameters,
    CheckpointState state,
    std::function<void(std::int64_t)> update,
    const SessionOptions& options)
    : impl_(std::make_unique<Impl>(
          world, parameters, std::move(state), std::move(update), options)) {}

ReplicaSession::~ReplicaSession() = default;

std::optional<TrainingStep> ReplicaSession::begin_step() {
  auto& all = *impl_;
  SHERD_CHECK_AS(
      kFailedPrecondition, !all.task,
      "[ft] expected finish_step() after begin_step(), found another one");
  all.task = all.agent->next(all.program);
  if (!all.task) {
    return std::nullopt;
  }
  all.clear_gradients();
  all.step.store(all.task->base.step, std::memory_order_relaxed);
  TrainingStep plan;
  plan.step = all.task->base.step + 1;
  plan.replica_samples = count_of(all.task->samples);
  plan.replicas = all.task->replicas;
  for (const auto& range :
       samples_of_rank(all.task->samples, all.world.rank(), all.world.size())) {
    plan.samples.push_back({range.begin, range.end});
  }
  return plan;
}

bool ReplicaSession::finish_step() {
  auto& all = *impl_;
  SHERD_CHECK_AS(
      kFailedPrecondition, all.task.has_value(),
      "[ft] expected begin_step() before finish_step(), found none");
  const auto task = *std::exchange(all.task, std::nullopt);
  all.take_gradients(all.agent->gradients());
  return all.agent->finish(task, all.program);
}

std::int64_t ReplicaSession::step() const {
  return impl_->step.load(std::memory_order_relaxed);
}

std::int64_t ReplicaSession::samples_of_update() const {
  return impl_->samples;
}

void ReplicaSession::leave() { impl_->agent->leave(); }

void ReplicaSession::close() {
  impl_->agent->end(impl_->program);
  impl_->agent.reset();
}

}  // namespace sherd::ft
