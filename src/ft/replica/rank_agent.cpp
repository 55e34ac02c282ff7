// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/rank_agent.h"

#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/final_refusal.h"
#include "base/log.h"
#include "base/status.h"
#include "ft/ring/block_digest.h"

namespace sherd::ft {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

// Memory is not shared if test hooks have to see the bytes.
bool shares_memory(const RankAgentOptions& options) {
  return options.memory.empty() && !options.hooks.route && !options.hooks.spoil;
}

// The size of the gradients and their sum.
std::size_t floats_of(const RankAgentOptions& options) {
  return 2 * static_cast<std::size_t>(sum_of(options.buckets));
}

std::span<float> memory_of(
    const RankAgentOptions& options,
    std::optional<ring::SharedFloats>& shared) {
  if (!options.memory.empty()) {
    SHERD_ASSERT(options.memory.size() == floats_of(options));
    return options.memory;
  }
  shared.emplace(floats_of(options));
  return {shared->data(), shared->size()};
}

}  // namespace

RankAgent::RankAgent(
    net::Loop& loop,
    RankAgentOptions options,
    OnRankEvent tell,
    std::function<void()> snapshot_wanted)
    : loop_(loop),
      options_(std::move(options)),
      tell_(std::move(tell)),
      memory_(memory_of(options_, shared_)),
      own_gradients_(memory_.first(memory_.size() / 2)),
      sum_(memory_.last(memory_.size() / 2)),
      transfer_(std::make_unique<TransferServer>(
          loop,
          TransferServerOptions{
              .host = options_.host,
              .security = options_.security,
              .shard_rank = options_.shard_rank,
              .user_timeout = options_.timeouts.link,
              .sums_kept = options_.sums_kept,
              .sums_bytes_max = options_.sums_bytes_max,
              .bytes_per_s_max = options_.fetch_bytes_per_s_max},
          std::move(snapshot_wanted))),
      ring_(std::make_unique<Ring>(
          RingOptions{
              .bind_host = options_.host,
              .replica = options_.replica,
              .incarnation = options_.incarnation,
              .shard_rank = options_.shard_rank,
              .elements = options_.buckets,
              .connect_timeout = options_.timeouts.connect,
              .user_timeout = options_.timeouts.link,
              .memory = shares_memory(options_) ? &*shared_ : nullptr},
          ring_events())) {}

RankAgent::~RankAgent() = default;

RankAddress RankAgent::address() const {
  return {options_.host, ring_->port(), transfer_->port()};
}

void RankAgent::reach(const char* point, std::int64_t step) const {
  if (options_.hooks.reach) {
    options_.hooks.reach(point, step);
  }
}

// Called in the ring's thread.
RingEvents RankAgent::ring_events() {
  return {
      .joined =
          [this](Epoch epoch) {
            loop_.post([this, epoch] {
              reach("joined", static_cast<std::int64_t>(epoch.number));
              tell_(JoinedEvent{epoch});
            });
          },
      .reduced =
          [this](Attempt attempt, std::uint64_t digest) {
            loop_.post([this, attempt, digest] {
              reach("reduced", attempt.step);
              const bool spoiled = options_.hooks.spoil &&
                  options_.hooks.spoil(attempt.step, sum_.data());
              set_sum_of(attempt);
              tell_(ReducedEvent{
                  attempt,
                  spoiled ? ring::digest_of(options_.buckets, sum_.data())
                          : digest});
              queue_.push(attempt);
              reach("voted", attempt.step);
            });
          },
      .failed =
          [this](const Epoch& epoch, const RingEnding& ending) {
            tell(Suspicion{
                epoch, ending.accused, ending.reason, ending.reporter});
          }};
}

void RankAgent::tell(RankEvent event) {
  loop_.post([this, event = std::move(event)] { tell_(event); });
}

// The serial changes with the program and, once the program has computed, with the slices that are
// reduced. A backward is one phase, no matter what is reduced meanwhile.
TrainingProgress RankAgent::progress() const {
  const auto ring = ring_->progress();
  TrainingProgress progress;
  progress.activity = activity_.load(std::memory_order_relaxed);
  constexpr std::uint64_t kSlices = 1U << 24U;
  progress.serial = activity_changes_.load(std::memory_order_relaxed) * kSlices;
  progress.place = place_of(ring);
  if (progress.activity == Activity::kReducing) {
    progress.serial +=
        static_cast<std::uint64_t>(ring.place ? ring.place->slices_done : 0);
    progress.waits_for = ring.waits_for;
    progress.to_read = ring.to_read;
    if (!ring.attempt) {
      progress.activity = Activity::kWaiting;
    }
  }
  return progress;
}

std::vector<LinkSpeed> RankAgent::link_speeds() const {
  return ring_->progress().speeds;
}

// Nullopt if this is the only member: others cannot wait for it.
std::optional<RingPosition> RankAgent::place_of(
    const RingProgress& ring) const {
  auto place = ring.place;
  if (!place || place->links.empty()) {
    return std::nullopt;
  }
  if (place->slices > 0 && place->bucket < options_.bucket_names.size()) {
    place->unit = options_.bucket_names[place->bucket];
  }
  return place;
}

// ---- tasks ----

void RankAgent::take(const RankTask& task) {
  std::visit([this](const auto& one) { on(one); }, task);
}

void RankAgent::on(const StartRunTask& task) {
  run_ = task.run;
  ring_->set_run(run_, task.key);
  transfer_->set_run(run_);
}

void RankAgent::on(const RingMembership& ring) {
  auto routed = ring;
  if (options_.hooks.route) {
    for (auto& member : routed.members) {
      member.port = options_.hooks.route(member.replica, member.port);
    }
  }
  // A name look-up may take many seconds, and heartbeats wait for whatever blocks this loop.
  joins_thread_.post([this, routed = std::move(routed)]() noexcept {
    const auto joined =
        status_of([&] { ring_->join(routed); }, ErrorCode::kUnavailable);
    if (!joined.ok()) {
      loop_.post([joined] { joined.throw_if_failed(); });
    }
    return Status();
  });
}

void RankAgent::on(const ComputeTask& task) {
  ring_->forget();
  computing_ = task.serial;
  given_.assign(options_.buckets.size(), false);
  if (task.serial != 0) {
    collector_.reset();  // The rank has caught up.
  }
  queue_.push(task);
}

void RankAgent::set_sum_of(const std::optional<Attempt>& attempt) {
  const std::lock_guard lock(sum_mutex_);
  sum_of_ = attempt;
}

void RankAgent::on(const ReduceTask& task) {
  set_sum_of(std::nullopt);
  ring_->begin(task.attempt, task.weights);
  reach("reducing", task.attempt.step);
}

void RankAgent::on(const StopReduceTask& task) { ring_->stop(task.epoch); }

// The requester learns at once which state it will get, so that it can ask other donors for the
// same.
void RankAgent::on(const SnapshotTask& task) {
  if (transfer_->promise(task.state)) {
    queue_.push(task);
  }
}

void RankAgent::on(const InstallTask& task) {
  SHERD_ASSERT(fetched_.has_value(), "the leader installs what was fetched");
  // Installing overwrites the sum, which counterparts might still read.
  ring_->forget();
  fetched_->serial = task.serial;
  queue_.push(*std::exchange(fetched_, std::nullopt));
}

// Only the last task counts; the gradients of earlier ones are obsolete.
void RankAgent::give(std::uint64_t serial, int bucket) {
  const auto index = static_cast<std::size_t>(bucket);
  if (serial == 0 || serial != computing_ || given_[index]) {
    return;
  }
  given_[index] = true;
  const auto* mine = gradients(bucket).data();
  ring_->give(bucket, mine, sum_.data() + (mine - own_gradients_.data()));
}

// ---- for the program ----

std::span<const float> RankAgent::gradients(int bucket) const {
  const auto begin = options_.buckets.begin();
  const auto at = std::accumulate(begin, begin + bucket, std::int64_t{0});
  return own_gradients_.subspan(
      static_cast<std::size_t>(at), static_cast<std::size_t>(begin[bucket]));
}

// Throws if the replica was ended with a reason.
bool RankAgent::has_left(const TrainingTask& task) const {
  const auto* stop = std::get_if<StopTask>(&task);
  if (stop != nullptr && !stop->reason.empty()) {
    const bool is_final = is_final_refusal(stop->reason);
    throw Error(
        str("[ft] ", stop->reason, is_final ? kFinalRefusal : ""),
        is_final ? ErrorCode::kInvalidArgument : ErrorCode::kAborted);
  }
  return stop != nullptr;
}

std::optional<ComputeTask> RankAgent::next(const TrainingCallbacks& program) {
  for (;;) {
    set_idle();
    const auto task = queue_.front();
    if (has_left(task)) {
      return std::nullopt;
    }
    queue_.pop();
    activity_changes_.fetch_add(1, std::memory_order_relaxed);
    if (const auto* compute = std::get_if<ComputeTask>(&task)) {
      activity_.store(Activity::kComputing, std::memory_order_relaxed);
      return *compute;
    }
    serve(task, program);
  }
}

// Carries out what changes or copies the state; other tasks are no longer of use.
void RankAgent::serve(
    const TrainingTask& task, const TrainingCallbacks& program) {
  if (const auto* snapshot = std::get_if<SnapshotTask>(&task)) {
    execute(*snapshot, program);
  } else if (const auto* install = std::get_if<InstallFetchedTask>(&task)) {
    execute(*install, program);
  } else if (const auto* apply = std::get_if<ApplyTask>(&task)) {
    // The program did not wait for the decision, and may have changed what it had copied.
    prepared_.reset();
    execute(*apply, program);
  }
}

void RankAgent::give(const ComputeTask& task, int bucket) {
  loop_.post([this, serial = task.serial, bucket] { give(serial, bucket); });
}

bool RankAgent::finish(
    const ComputeTask& task, const TrainingCallbacks& program) {
  set_activity(Activity::kReducing);
  give_all(task);
  reach("given", task.base.step + 1);
  return wait_for_decision(program);
}

void RankAgent::give_all(const ComputeTask& task) {
  for (std::size_t i = 0; i < options_.buckets.size(); ++i) {
    give(task, static_cast<int>(i));
  }
}

bool RankAgent::refuse(
    const ComputeTask& task,
    const GradientFault& fault,
    const TrainingCallbacks& program) {
  set_activity(Activity::kReducing);
  tell_bad(task, fault);
  return wait_for_decision(program);
}

void RankAgent::tell_bad(const ComputeTask& task, const GradientFault& fault) {
  log_warning(
      str("[ft] step ", task.base.step + 1,
          ": gradients are of no use: ", fault.reason));
  tell(BadGradientsEvent{task.serial, fault});
}

void RankAgent::give_up(const ComputeTask& task, const std::string& reason) {
  if (task.samples.empty()) {
    give_all(task);  // Nobody reads them.
  } else {
    tell_bad(task, {reason, false});
  }
  set_idle();
}

// Waits until the written gradients are applied (true) or obsolete (false).
bool RankAgent::wait_for_decision(const TrainingCallbacks& program) {
  for (;;) {
    const auto task = queue_.front();
    if (const auto* apply = std::get_if<ApplyTask>(&task)) {
      queue_.pop();
      execute(*apply, program);
      set_idle();
      return true;
    }
    if (const auto* snapshot = std::get_if<SnapshotTask>(&task)) {
      queue_.pop();
      execute(*snapshot, program);
      continue;
    }
    const auto* summed = std::get_if<Attempt>(&task);
    if (summed == nullptr) {
      set_idle();
      return false;
    }
    queue_.pop();
    prepare(*summed, program);
  }
}

// Copies what other replicas and the update need of the sum, while members vote and the coordinator
// writes. If the sum is given up meanwhile, the copy is dropped.
void RankAgent::prepare(
    const Attempt& attempt, const TrainingCallbacks& program) {
  prepared_.reset();
  PreparedSum prepared{attempt, {}};
  if (options_.sums_kept > 0) {
    prepared.bytes.reserve(sum_.size() * sizeof(float));
  }
  std::size_t at = 0;
  for (std::size_t i = 0; i < options_.buckets.size(); ++i) {
    const std::lock_guard lock(sum_mutex_);
    if (sum_of_ != attempt) {
      return;
    }
    const auto elements = static_cast<std::size_t>(options_.buckets[i]);
    if (options_.sums_kept > 0) {
      prepared.bytes.append(
          reinterpret_cast<const char*>(sum_.data() + at),
          elements * sizeof(float));
    }
    if (program.prepare) {
      program.prepare(static_cast<int>(i), sum_.data());
    }
    at += elements;
  }
  prepared_ = std::move(prepared);
}

void RankAgent::set_activity(Activity activity) {
  activity_.store(activity, std::memory_order_relaxed);
  activity_changes_.fetch_add(1, std::memory_order_relaxed);
}

// What the program does on its own may take any time.
void RankAgent::set_idle() {
  activity_.store(Activity::kIdle, std::memory_order_relaxed);
}

void RankAgent::other_work(const std::function<void()>& work) {
  struct Scope {
    RankAgent& agent;
    Activity before;
    ~Scope() { agent.set_activity(before); }
  };
  const Scope scope{*this, activity_.load(std::memory_order_relaxed)};
  set_activity(Activity::kOtherWork);
  work();
}

void RankAgent::end(const TrainingCallbacks& program) {
  set_idle();
  tell(FinishedEvent{});
  for (;;) {
    const auto task = queue_.front();
    if (has_left(task)) {
      return;
    }
    queue_.pop();
    // Installs a state if the rank's own was wrong.
    serve(task, program);
    set_idle();
  }
}

void RankAgent::execute(
    const ApplyTask& task, const TrainingCallbacks& program) {
  set_activity(Activity::kApplying);
  reach("committed", task.commit.result.step);
  if (!prepared_ || prepared_->attempt != task.commit.attempt) {
    prepare(task.commit.attempt, program);
  }
  SHERD_ASSERT(prepared_.has_value(), "no sum is given up that is committed");
  auto prepared = *std::exchange(prepared_, std::nullopt);
  if (options_.sums_kept > 0) {
    auto bytes = std::make_shared<const std::string>(std::move(prepared.bytes));
    loop_.post([this, commit = task.commit, bytes = std::move(bytes)] {
      transfer_->keep(commit, bytes);
    });
  }
  program.update(task.commit, sum_.data());
  const auto& state = task.commit.result;
  tell(WrittenEvent{0, state, digest_of(state, program)});
  reach("applied", task.commit.result.step);
}

// Nullopt for steps that do not compare digests.
std::optional<StateDigest> RankAgent::digest_of(
    const StateId& state, const TrainingCallbacks& program) {
  if (options_.digest_every <= 0 || !program.digest ||
      state.step % options_.digest_every != 0) {
    return std::nullopt;
  }
  return StateDigest{state, program.digest(), std::exchange(copied_, false)};
}

void RankAgent::execute(
    const SnapshotTask& task, const TrainingCallbacks& program) {
  std::shared_ptr<const std::string> bytes;
  try {
    other_work([&] {
      bytes = std::make_shared<const std::string>(program.snapshot());
    });
  } catch (...) {
    // The program may go on, after Ctrl-C for example.
    loop_.post([this, state = task.state] { transfer_->withdraw(state); });
    throw;
  }
  // A process that cannot offer its state ends and is restarted.
  digests_thread_.post(
      [this, state = task.state, bytes = std::move(bytes)]() noexcept {
        auto digests = transfer_->digests_of(*bytes);
        loop_.post([this, state, bytes, digests = std::move(digests)] {
          transfer_->offer(state, bytes, digests);
        });
        return Status();
      });
  reach("offered", task.state.step);
}

void RankAgent::execute(
    const InstallFetchedTask& fetched, const TrainingCallbacks& program) {
  activity_.store(Activity::kFetching, std::memory_order_relaxed);
  reach("installing", fetched.state.step);
  std::optional<StateDigest> digest;
  if (fetched.commit) {
    std::memcpy(sum_.data(), fetched.bytes->data(), fetched.bytes->size());
    for (std::size_t i = 0; program.prepare && i < options_.buckets.size();
         ++i) {
      program.prepare(static_cast<int>(i), sum_.data());
    }
    program.update(*fetched.commit, sum_.data());
    loop_.post(
        [this, fetched] { transfer_->keep(*fetched.commit, fetched.bytes); });
    digest = digest_of(fetched.state, program);
  } else {
    program.restore(fetched.state, *fetched.bytes);
    copied_ = true;
  }
  tell(WrittenEvent{fetched.serial, fetched.state, digest});
  reach("installed", fetched.state.step);
}

}  // namespace sherd::ft
