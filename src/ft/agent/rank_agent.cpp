// SPDX-License-Identifier: Apache-2.0
#include "ft/agent/rank_agent.h"

#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "ft/ring/digest.h"

namespace sherd::ft {
namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& numbers) {
  std::int64_t sum = 0;
  for (const auto number : numbers) {
    sum += number;
  }
  return sum;
}

}  // namespace

RankAgent::RankAgent(net::Loop& loop, RankAgentOptions options, Tell tell)
    : loop_(loop),
      options_(std::move(options)),
      tell_(std::move(tell)),
      mine_(static_cast<std::size_t>(sum_of(options_.buckets))),
      sum_(mine_.size()),
      transfer_(std::make_unique<TransferServer>(
          loop,
          TransferServerOptions{
              .host = options_.host,
              .security = options_.security,
              .shard_rank = options_.shard_rank,
              .sums_kept = options_.sums_kept,
              .bytes_per_s_max = options_.fetch_bytes_per_s_max},
          [this] {
            if (snapshot_wanted_) {
              snapshot_wanted_();
            }
          })),
      ring_(std::make_unique<Ring>(
          RingOptions{
              .bind_host = options_.host,
              .replica = options_.replica,
              .incarnation = options_.incarnation,
              .shard_rank = options_.shard_rank},
          ring_events())) {
  ring_->set_layout(options_.buckets);
}

RankAgent::~RankAgent() = default;

RankAddress RankAgent::address() const {
  return {options_.host, ring_->port(), transfer_->port()};
}

void RankAgent::on_snapshot_wanted(std::function<void()> wanted) {
  snapshot_wanted_ = std::move(wanted);
}

void RankAgent::reach(const char* point, std::int64_t step) const {
  if (options_.hooks.reach) {
    options_.hooks.reach(point, step);
  }
}

// The ring's thread hands over to the loop.
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
              tell_(ReducedEvent{attempt, digest});
              reach("voted", attempt.step);
            });
          },
      .failed =
          [this](const RingFailure& failure) {
            tell(PeerLostEvent{
                {failure.epoch, failure.accused, failure.reason}});
          }};
}

void RankAgent::tell(AgentEvent event) {
  loop_.post([this, event = std::move(event)] { tell_(event); });
}

// It moves with the program and with the bytes that are reduced.
Progress RankAgent::progress() const {
  const auto ring = ring_->progress();
  Progress progress;
  progress.activity = activity_.load(std::memory_order_relaxed);
  constexpr std::uint64_t kSlices = 1U << 24U;
  progress.serial = moves_.load(std::memory_order_relaxed) * kSlices +
      static_cast<std::uint64_t>(ring.slices_done);
  if (progress.activity == Activity::kReducing) {
    progress.waits_for = ring.waits_for;
    if (!ring.attempt) {
      progress.activity = Activity::kWaiting;
    }
  }
  return progress;
}

// ---- commands ----

void RankAgent::take(const Command& command) {
  std::visit([this](const auto& one) { on(one); }, command);
}

void RankAgent::on(const RunCommand& command) {
  run_ = command.run;
  ring_->set_run(run_);
  transfer_->set_run(run_);
}

void RankAgent::on(const JoinCommand& command) {
  if (!options_.hooks.route) {
    ring_->join(command.epoch);
    return;
  }
  auto epoch = command.epoch;
  for (auto& member : epoch.members) {
    member.port = options_.hooks.route(member.replica, member.port);
  }
  ring_->join(std::move(epoch));
}

void RankAgent::on(const ComputeCommand& command) {
  ring_->forget();
  computing_ = command.serial;
  orders_.push(command);
}

void RankAgent::on(const ReduceCommand& command) {
  ring_->begin(command.attempt, command.weights);
  reach("reducing", command.attempt.step);
}

void RankAgent::on(const StopReduceCommand& command) {
  ring_->stop(command.epoch);
}

void RankAgent::on(const ApplyCommand& command) { orders_.push(command); }

void RankAgent::on(const SnapshotCommand& command) { orders_.push(command); }

void RankAgent::on(const StopCommand& command) { orders_.push(command); }

net::HostAddress RankAgent::donor(const RankAddress& address) const {
  return {address.host, address.fetch_port};
}

FetchOptions RankAgent::fetch_options() const {
  FetchOptions options;
  options.run = run_;
  options.shard_rank = options_.shard_rank;
  options.security = options_.security;
  return options;
}

void RankAgent::on(const FetchStateCommand& command) {
  reach("fetching", command.state.step);
  fetched_.reset();
  fetch_ = fetch_snapshot(
      loop_, donor(command.donor), fetch_options(), command.state,
      [this, serial = command.serial,
       state = command.state](Result<std::string> bytes) {
        if (!bytes.ok()) {
          fetched(serial, bytes.status());
          return;
        }
        fetched(
            serial,
            Fetched{
                false,
                {},
                state,
                std::make_shared<const std::string>(std::move(bytes).value())});
      });
}

void RankAgent::on(const FetchSumCommand& command) {
  fetched_.reset();
  fetch_ = fetch_sum(
      loop_, donor(command.donor), fetch_options(), command.base,
      [this, serial = command.serial](Result<FetchedSum> sum) {
        if (!sum.ok()) {
          fetched(serial, sum.status());
          return;
        }
        auto [commit, bytes] = std::move(sum).value();
        if (bytes.size() != sum_.size() * sizeof(float)) {
          fetched(
              serial,
              Status(
                  ErrorCode::kPeerMismatch,
                  str("[ft] expected a sum of ", sum_.size() * sizeof(float),
                      " bytes, found ", bytes.size())));
          return;
        }
        fetched(
            serial,
            Fetched{
                true, commit, commit.result,
                std::make_shared<const std::string>(std::move(bytes))});
      });
}

void RankAgent::fetched(std::uint64_t serial, Result<Fetched> result) {
  FetchedEvent event;
  event.serial = serial;
  if (!result.ok()) {
    event.failure = result.status().message();
  } else {
    fetched_ = std::move(result).value();
    if (fetched_->is_sum) {
      event.commit = fetched_->commit;
      event.digest = digest_of(*fetched_->bytes);
    }
  }
  tell(std::move(event));
}

void RankAgent::on(const DropFetchCommand&) {
  fetch_.reset();
  fetched_.reset();
}

void RankAgent::on(const InstallCommand& command) {
  SHERD_ASSERT(fetched_.has_value(), "the leader installs what was fetched");
  orders_.push(
      InstallOrder{command.serial, *std::exchange(fetched_, std::nullopt)});
}

// As the ring says it of what it has reduced.
std::uint64_t RankAgent::digest_of(const std::string& sum) const {
  std::vector<float> values(sum_.size());
  std::memcpy(values.data(), sum.data(), sum.size());
  std::vector<std::span<const float>> buckets;
  std::size_t at = 0;
  for (const auto elements : options_.buckets) {
    const auto count = static_cast<std::size_t>(elements);
    buckets.emplace_back(values.data() + at, count);
    at += count;
  }
  return ring::digest_of(buckets);
}

// Of the task that was asked for last alone: others have become useless.
void RankAgent::give(std::uint64_t serial) {
  if (serial != computing_) {
    return;
  }
  std::int64_t at = 0;
  for (std::size_t i = 0; i < options_.buckets.size(); ++i) {
    ring_->give(static_cast<int>(i), mine_.data() + at, sum_.data() + at);
    at += options_.buckets[i];
  }
}

// ---- the program's ----

std::optional<ComputeCommand> RankAgent::next(const RankProgram& program) {
  for (;;) {
    rest();
    const auto order = orders_.front();
    if (const auto* stop = std::get_if<StopCommand>(&order)) {
      if (stop->reason.empty()) {
        return std::nullopt;
      }
      throw Error("[ft] " + stop->reason, ErrorCode::kAborted);
    }
    orders_.pop();
    moves_.fetch_add(1, std::memory_order_relaxed);
    if (const auto* compute = std::get_if<ComputeCommand>(&order)) {
      activity_.store(Activity::kComputing, std::memory_order_relaxed);
      return *compute;
    }
    if (const auto* install = std::get_if<InstallOrder>(&order)) {
      make(*install, program);
    } else if (const auto* snapshot = std::get_if<SnapshotCommand>(&order)) {
      make(*snapshot, program);
    } else {
      SHERD_ASSERT(false, "a sum is applied by who reduced it");
    }
  }
}

bool RankAgent::finish(const ComputeCommand& task, const RankProgram& program) {
  activity_.store(Activity::kReducing, std::memory_order_relaxed);
  moves_.fetch_add(1, std::memory_order_relaxed);
  loop_.post([this, serial = task.serial] { give(serial); });
  reach("given", task.base.step + 1);
  for (;;) {
    const auto order = orders_.front();
    if (const auto* apply = std::get_if<ApplyCommand>(&order)) {
      orders_.pop();
      make(*apply, program);
      rest();
      return true;
    }
    const auto* snapshot = std::get_if<SnapshotCommand>(&order);
    if (snapshot == nullptr) {
      rest();
      return false;
    }
    orders_.pop();
    make(*snapshot, program);
  }
}

// What the program does for itself, as long as it likes: others wait for it in the
// next step at the latest.
void RankAgent::rest() {
  activity_.store(Activity::kIdle, std::memory_order_relaxed);
}

void RankAgent::end(const RankProgram& program) {
  rest();
  tell(FinishedEvent{});
  for (;;) {
    const auto order = orders_.front();
    if (std::holds_alternative<StopCommand>(order)) {
      return;
    }
    orders_.pop();
    if (const auto* snapshot = std::get_if<SnapshotCommand>(&order)) {
      make(*snapshot, program);
    }
  }
}

void RankAgent::make(const ApplyCommand& order, const RankProgram& program) {
  activity_.store(Activity::kApplying, std::memory_order_relaxed);
  moves_.fetch_add(1, std::memory_order_relaxed);
  reach("committed", order.commit.result.step);
  if (options_.sums_kept > 0) {
    auto bytes = std::make_shared<const std::string>(
        reinterpret_cast<const char*>(sum_.data()),
        sum_.size() * sizeof(float));
    loop_.post([this, commit = order.commit, bytes = std::move(bytes)] {
      transfer_->keep(commit, bytes);
    });
  }
  program.update(order.commit, sum_.data());
  tell(AppliedEvent{order.commit.result});
  reach("applied", order.commit.result.step);
}

void RankAgent::make(const SnapshotCommand& order, const RankProgram& program) {
  auto bytes = std::make_shared<const std::string>(program.snapshot());
  loop_.post([this, state = order.state, bytes = std::move(bytes)] {
    transfer_->offer(state, bytes);
  });
  reach("offered", order.state.step);
}

void RankAgent::make(const InstallOrder& order, const RankProgram& program) {
  activity_.store(Activity::kFetching, std::memory_order_relaxed);
  const auto& fetched = order.fetched;
  reach("installing", fetched.state.step);
  if (fetched.is_sum) {
    std::memcpy(sum_.data(), fetched.bytes->data(), fetched.bytes->size());
    program.update(fetched.commit, sum_.data());
    loop_.post(
        [this, fetched] { transfer_->keep(fetched.commit, fetched.bytes); });
  } else {
    program.restore(*fetched.bytes);
  }
  tell(InstalledEvent{order.serial, fetched.state});
  reach("installed", fetched.state.step);
}

}  // namespace sherd::ft
