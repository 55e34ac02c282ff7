// SPDX-License-Identifier: Apache-2.0
#include <sherd/ft/replica_session.h>

#include <poll.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "base/rank_environment.h"
#include "base/text.h"
#include "device/host_memory.h"
#include "ft/protocol/samples.h"
#include "ft/replica/gradient_check.h"
#include "ft/replica/replica_agent.h"
#include "ft/replica/session/announced_host.h"
#include "ft/replica/session/replica_gradients.h"
#include "ft/replica/session/session_timeouts.h"
#include "ft/replica/session/state_bytes.h"
#include "net/authentication.h"
#include "net/security.h"

namespace sherd::ft {
namespace {

// 4 MiB: large enough to hide the fixed costs at the start and the end of a reduction.
constexpr std::int64_t kBucketElements = std::int64_t{1} << 20U;

int number_of(const char* name, const std::string& text) {
  const auto number = parse_number<int>(text);
  SHERD_CHECK(
      number && *number >= 0, "[ft] ", name,
      ": expected a number from 0 on, found \"", text, "\"");
  return *number;
}

// Waits for the next byte; nothing at the end. Throws Error if the program is interrupted; other
// signals with a handler do not end the wait.
std::optional<char> byte_from(int descriptor) {
  const int period = static_cast<int>(
      InterruptibleWait::kPeriod / std::chrono::milliseconds(1));
  InterruptibleWait interrupts;
  pollfd input{.fd = descriptor, .events = POLLIN, .revents = 0};
  while (::poll(&input, 1, InterruptibleWait::possible() ? period : -1) <= 0) {
    interrupts.poll().throw_if_failed();
  }
  char byte = 0;
  return ::read(descriptor, &byte, 1) == 1 ? std::optional(byte) : std::nullopt;
}

// A spare waits here until the launcher writes the number of the replica that it replaces.
std::string line_from(int descriptor) {
  std::string line;
  while (const auto next = byte_from(descriptor)) {
    if (*next == '\n') {
      return line;
    }
    line += *next;
  }
  throw Error(
      "[ft] the launcher ended before this spare was needed",
      ErrorCode::kAborted);
}

// Rank 0 draws it for all ranks.
Incarnation new_life(const World& world) {
  const auto drawn = std::to_string(net::random_number());
  return std::stoull(world.all_gather_texts(drawn).front());
}

GradientCheck::Options check_options(const SessionOptions& options) {
  return {
      .non_finite = options.non_finite_gradients,
      .outlier = options.outlier_gradients,
      .norm_ratio_max = options.norm_ratio_max};
}

// Memory for the agent if gradients are on a device; otherwise empty, and the agent has its own.
at::Tensor pinned_floats(const ReplicaGradients& gradients) {
  if (gradients.device().is_cpu()) {
    return {};
  }
  const auto& buckets = gradients.layout().buckets();
  const auto elements =
      std::accumulate(buckets.begin(), buckets.end(), std::int64_t{0});
  return device::empty_on_host({2 * elements}, at::kFloat, gradients.device())
      .zero_();
}

net::Security security_of(const SessionOptions& options) {
  return net::security_of(
      options.secret_file,
      {.certificate = options.tls_certificate,
       .key = options.tls_key,
       .authority = options.tls_authority});
}

}  // namespace

double learning_rate_factor(
    LearningRateScaling scaling,
    std::int64_t samples,
    std::int64_t samples_full) {
  SHERD_CHECK(
      samples > 0 && samples_full > 0,
      "[ft] expected samples of a step and of a full one, found ", samples,
      " and ", samples_full);
  const auto share =
      static_cast<double>(samples) / static_cast<double>(samples_full);
  switch (scaling) {
    case LearningRateScaling::kNone:
      return 1.0;
    case LearningRateScaling::kLinear:
      return share;
    case LearningRateScaling::kSquareRoot:
      return std::sqrt(share);
  }
  SHERD_ASSERT(false, "each scaling has a factor");
}

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
  options.replicas =
      number_of("SHERD_REPLICAS", lookup("SHERD_REPLICAS").value_or("1"));
  options.samples_full =
      number_of("SHERD_SAMPLES", lookup("SHERD_SAMPLES").value_or("0"));
  options.host = lookup("SHERD_HOST").value_or("");
  options.secret_file = lookup("SHERD_SECRET_FILE").value_or("");
  options.tls_certificate = lookup("SHERD_TLS_CERT").value_or("");
  options.tls_key = lookup("SHERD_TLS_KEY").value_or("");
  options.tls_authority = lookup("SHERD_TLS_CA").value_or("");
  options.timeouts = timeouts_of(lookup("SHERD_TIMEOUTS").value_or(""));
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
        options(given),
        parameters(trained),
        gradients(trained, kBucketElements),
        pinned(pinned_floats(gradients)),
        check(check_options(given)) {
    ReplicaAgentOptions starting;
    starting.coordinator = net::parse_host_address(options.coordinator);
    starting.rank.host = announced_host(
        options.host, starting.coordinator,
        net::route_to(starting.coordinator.host));
    starting.rank.replica = static_cast<ReplicaId>(options.replica);
    starting.rank.incarnation = new_life(world);
    starting.rank.shard_rank = world.rank();
    starting.rank.security = security_of(options);
    starting.rank.buckets = gradients.layout().buckets();
    starting.rank.bucket_names =
        bucket_names(gradients.layout(), gradients.names());
    if (pinned.defined()) {
      starting.rank.memory = {
          pinned.mutable_data_ptr<float>(),
          static_cast<std::size_t>(pinned.numel())};
    }
    SHERD_CHECK(
        options.sums_bytes_max >= 0 && options.fetch_bytes_per_s_max >= 0,
        "[ft] expected sums_bytes_max and fetch_bytes_per_s_max of 0 or more, "
        "found ",
        options.sums_bytes_max, " and ", options.fetch_bytes_per_s_max);
    starting.rank.sums_kept = options.sums_kept;
    starting.rank.sums_bytes_max =
        static_cast<std::uint64_t>(options.sums_bytes_max);
    starting.rank.digest_every = options.digest_every;
    starting.rank.fetch_bytes_per_s_max =
        static_cast<std::uint64_t>(options.fetch_bytes_per_s_max);
    check_timeouts(options.timeouts);
    starting.rank.timeouts = options.timeouts;
    starting.ranks = world.size();
    starting.warms_up = options.warm_up;
    starting.config =
        hash_of(std::array{options.config, std::to_string(world.size())}) | 1U;
    starting.held = options.held.empty() ? first_state(starting.config)
                                         : state_named(options.held);
    now_holds(starting.held);
    agent = std::make_unique<ReplicaAgent>(std::move(starting));
    agent->start(world.all_gather_texts(agent->address()));
    program = {
        .snapshot = [this] { return state_bytes(state, world.rank()); },
        .restore =
            [this](const StateId& fetched, std::string_view bytes) {
              change_state(
                  fetched, [&] { restore_state(state, world.rank(), bytes); });
              wasted = false;
            },
        .prepare = early_copies(),
        .update = [this](
                      const Commit& commit,
                      const float* sum) { make_step(commit, sum); },
        .digest = [this] { return parameter_digest(parameters); }};
  }

  // The identity of the initial state.
  StateId first_state(std::uint64_t config) const {
    const auto texts = world.all_gather_texts(
        std::to_string(state_digest(state, world.rank())));
    return {0, first_lineage(config, hash_of(texts))};
  }

  // For calls that may end the agent, which is at work below such a function.
  void expect_outside_program(const char* called) const {
    SHERD_CHECK_AS(
        kFailedPrecondition, !calls_program, "[ft] found ", called,
        " inside a function that the session calls; expected leave() there, "
        "after which begin_step() returns nothing");
  }
  void expect_open(const char* called) const {
    SHERD_CHECK_AS(
        kFailedPrecondition, agent, "[ft] expected an open session, found ",
        called, " after ", ended_by());
  }
  std::string ended_by() const {
    return lost_in
        ? str("an exception in the update to step ", *lost_in,
              ", which leaves a state that is unknown: start this process "
              "again")
        : "close()";
  }

  // Calls something of the agent that may change the state. If that throws halfway, nobody knows
  // the state: this rank must neither save nor serve it, and the others should not wait.
  template <typename Call>
  auto call(const Call& what) {
    try {
      return what(agent->rank());
    } catch (...) {
      if (lost_in) {
        const std::lock_guard lock(closing);
        agent.reset();
      }
      throw;
    }
  }
  void change_state(const StateId& to, const std::function<void()>& change) {
    lost_in = to.step;
    change();
    lost_in.reset();
    now_holds(to);
  }

  // Checks and gives a complete bucket while it is still in the cache.
  void give(const ComputeTask& of, int bucket) {
    if (check.inspect(
            static_cast<std::size_t>(bucket),
            agent->rank().gradients(bucket))) {
      agent->rank().give(of, bucket);
    }
  }

  // If that fails, the others must not wait for this rank: it takes part in the next step.
  void finish_gradients(const ComputeTask& of) {
    try {
      gradients.finish();
    } catch (...) {
      agent->rank().give_up(of, "some are missing");
      throw;
    }
  }

  // On a device there are none: it might still read a sum that was given up while the next one is
  // written over it.
  std::function<void(int, const float*)> early_copies() {
    if (!gradients.device().is_cpu()) {
      return {};
    }
    return
        [this](int bucket, const float* sum) { gradients.show(bucket, sum); };
  }

  // Makes the step from the replicas' sum, as if backward had left it in `.grad()`.
  void make_step(const Commit& commit, const float* sum) {
    const auto buckets = static_cast<int>(gradients.layout().buckets().size());
    for (int i = 0; !program.prepare && i < buckets; ++i) {
      gradients.show(i, sum);
    }
    samples = commit.samples;
    change_state(commit.result, [&] {
      // Ranks may still read what they have read since their last backward.
      if (backward_for != commit.result.step && parameters.before_load) {
        parameters.before_load();
      }
      const auto scope = in_program();
      update(commit.result.step);
    });
    wasted = false;
    gradients.clear();
  }

  // Slices are as they were before a step that was given up, and its backward counts for nothing.
  void forget_wasted_backward() {
    if (wasted && parameters.before_load) {
      parameters.before_load();
    }
    if (wasted && parameters.publish) {
      parameters.publish();
    }
    wasted = false;
  }

  // While it lives, the session runs a function of the program, which must not call it.
  struct InProgram {
    bool& flag;
    const bool before = std::exchange(flag, true);
    ~InProgram() { flag = before; }
  };
  InProgram in_program() { return {calls_program}; }

  void now_holds(const StateId& which) {
    held = which;
    step.store(which.step, std::memory_order_relaxed);
  }

  const World world;
  const CheckpointState state;
  const std::function<void(std::int64_t)> update;
  const SessionOptions options;
  const NamedParameters parameters;
  ReplicaGradients gradients;
  const at::Tensor pinned;  // The agent's gradients and sums.
  GradientCheck check;
  std::atomic<std::int64_t> step{0};
  std::uint64_t run = 0;
  StateId held;
  // The step to which the state is being changed, or was when that threw.
  std::optional<std::int64_t> lost_in;
  std::int64_t samples = 0;  // Samples of the step that is being made.
  // The step for which begin_step() has last given samples, the same on all ranks.
  std::optional<std::int64_t> backward_for;
  bool wasted = false;  // A backward was made whose step was not.
  bool calls_program = false;
  TrainingCallbacks program;
  std::optional<ComputeTask> task;
  std::unique_ptr<ReplicaAgent> agent;  // Null after close().
  std::mutex closing;                   // leave() comes from any thread.
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
  all.expect_outside_program("begin_step()");
  all.expect_open("begin_step()");
  SHERD_CHECK_AS(
      kFailedPrecondition, !all.task,
      "[ft] expected finish_step() after begin_step(), found another one");
  auto task = all.call([&](RankAgent& rank) { return rank.next(all.program); });
  if (!task) {
    return std::nullopt;
  }
  all.run = all.agent->rank().run();
  try {
    all.forget_wasted_backward();
    all.gradients.begin(
        all.agent->rank().gradients(),
        [&all, of = *task](int bucket) { all.give(of, bucket); });
  } catch (...) {
    all.agent->rank().give_up(*task, "the step did not begin");
    throw;
  }
  all.task = std::move(task);
  all.check.begin(all.gradients.layout().buckets().size());
  all.now_holds(all.task->base);
  TrainingStep plan;
  plan.step = all.task->base.step + 1;
  all.backward_for =
      all.task->samples.empty() ? std::nullopt : std::optional(plan.step);
  plan.replica_samples = count_of(all.task->samples);
  plan.replicas = all.task->replicas;
  plan.place = all.task->place;
  plan.warms_up = all.task->serial == 0;
  for (const auto& range :
       samples_of_rank(all.task->samples, all.world.rank(), all.world.size())) {
    plan.samples.push_back({range.begin, range.end});
  }
  return plan;
}

void ReplicaSession::last_backward() {
  SHERD_CHECK_AS(
      kFailedPrecondition, impl_->task.has_value(),
      "[ft] expected begin_step() before last_backward(), found none");
  impl_->gradients.last_backward();
}

bool ReplicaSession::finish_step() {
  auto& all = *impl_;
  all.expect_outside_program("finish_step()");
  SHERD_CHECK_AS(
      kFailedPrecondition, all.task.has_value(),
      "[ft] expected begin_step() before finish_step(), found none");
  const auto task = *std::exchange(all.task, std::nullopt);
  all.wasted = all.wasted || !task.samples.empty();
  all.finish_gradients(task);
  // A replica without samples contributes zeros.
  const auto fault = task.samples.empty() ? std::nullopt : all.check.finish();
  const bool made = all.call([&](RankAgent& rank) {
    return fault ? rank.refuse(task, *fault, all.program)
                 : rank.finish(task, all.program);
  });
  if (!made) {
    all.gradients.clear();  // They show a sum that was given up.
  }
  return made;
}

void ReplicaSession::other_work(const std::function<void()>& work) const {
  impl_->expect_open("other_work()");
  const auto scope = impl_->in_program();
  impl_->agent->rank().other_work(work);
}

std::uint64_t ReplicaSession::run() const { return impl_->run; }

std::int64_t ReplicaSession::step() const {
  return impl_->step.load(std::memory_order_relaxed);
}

bool ReplicaSession::state_is_known() const { return !impl_->lost_in; }

std::string ReplicaSession::state_name() const {
  SHERD_CHECK_AS(
      kFailedPrecondition, state_is_known(),
      "[ft] expected a state that has a name, found it ",
      impl_->agent ? str("inside the update to step ", *impl_->lost_in)
                   : str("after ", impl_->ended_by()));
  return name_of(impl_->held);
}

std::int64_t ReplicaSession::samples_of_update() const {
  return impl_->samples;
}

void ReplicaSession::leave() {
  const std::lock_guard lock(impl_->closing);
  if (impl_->agent) {
    impl_->agent->leave();
  }
}

void ReplicaSession::close() {
  auto& all = *impl_;
  if (!all.agent) {
    return;
  }
  all.expect_outside_program("close()");
  all.task.reset();
  all.call([&](RankAgent& rank) { rank.end(all.program); });
  const std::lock_guard lock(all.closing);
  all.agent.reset();
}

}  // namespace sherd::ft
