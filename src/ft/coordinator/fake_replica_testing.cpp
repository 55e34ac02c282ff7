// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/fake_replica_testing.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/hash.h"
#include "ft/wire/codec.h"

namespace sherd::ft::test {
namespace {

// The state that all replicas begin with.
StateId first_state() { return {0, first_lineage(1, 2)}; }

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

FakeReplica::FakeReplica(net::Loop& loop, const FakeReplicaOptions& options)
    : loop_(loop),
      options_(options),
      machine_(
          {.replica = options.replica,
           .incarnation = options.incarnation,
           .config = 1,
           .held = first_state()}),
      random_(options.incarnation) {
  std::vector<RankAddress> addresses;
  for (std::size_t rank = 0; rank < options.ranks; ++rank) {
    addresses.push_back(
        {str("10.0.", options.replica / 256, ".", options.replica % 256),
         static_cast<std::uint16_t>(20000 + rank),
         static_cast<std::uint16_t>(40000 + rank)});
  }
  addresses_ = std::move(addresses);
  net::ReconnectingClientOptions redial;
  redial.dial.security = options.security;
  // The same as leaders use.
  redial.backoff.longest = std::chrono::milliseconds(250);
  redial_ = std::make_unique<net::ReconnectingClient>(
      loop, options.address, redial, [this] { return random_(); },
      net::ReconnectingClientHandlers{
          .on_connected =
              [this] {
                ++connected_;
                reports_ = {};
                views_ = {};
                send(machine_.report());
              },
          .on_frame = [this](const net::Frame& frame) { received(frame); },
          .on_lost = [](const Status&) {},
          .on_failed = [](const Status&) {}});
  beat();
}

void FakeReplica::beat() {
  ++beats_;
  // The serials of its ranks change with what they reduce, independently of the replica's.
  ranks_.assign(options_.ranks, progress_);
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].serial += beats_ * (rank + 1);
    ranks_[rank].rank = static_cast<std::uint32_t>(rank);
  }
  send(machine_.report());
  beat_timer_ = loop_.after(options_.beat, [this] { beat(); });
}

void FakeReplica::send(Report report) {
  report.progress = progress_;
  report.ranks = ranks_;
  report.addresses = addresses_;
  if (!silent_ && connection() != nullptr) {
    const auto payload = reports_.bytes_of(report);
    bytes_ += net::kFrameHeaderBytes + payload.size();
    connection()->send(static_cast<std::uint16_t>(FrameType::kReport), payload);
  }
}

void FakeReplica::received(const net::Frame& frame) {
  bytes_ += net::kFrameHeaderBytes + frame.payload.size();
  const auto status = views_.read(frame.payload);
  SHERD_ASSERT(status.ok(), "a view that nobody understands");
  const RunView& view = views_.view();
  // The version, the number and the mask of a message without parts.
  constexpr std::size_t kAcknowledgementBytes = 10;
  if (frame.payload.size() <= kAcknowledgementBytes && !view.wrong) {
    // A thousand of these share a thread, and taking a view costs a copy of it.
    return;
  }
  for (const auto& commit : view.recent) {
    if (commits_.empty() || commit.attempt > commits_.back().attempt) {
      commits_.push_back(commit);
    }
  }
  carry_out(machine_.received(view));
}

void FakeReplica::after(Duration delay, std::function<void()> work) {
  std::erase_if(work_, [](const auto& timer) { return !timer.pending(); });
  work_.push_back(loop_.after(delay, std::move(work)));
}

void FakeReplica::later(Duration delay, std::function<void()> work) {
  after(delay, [this, work = std::move(work)] {
    if (hangs_) {
      kept_.push_back(work);
      return;
    }
    ++progress_.serial;
    work();
  });
}

void FakeReplica::go_on() {
  hangs_ = silent_ = false;
  for (const auto& work : std::exchange(kept_, {})) {
    ++progress_.serial;
    work();
  }
}

void FakeReplica::enter(Activity activity) {
  progress_.activity = activity;
  if (hangs_in_ == activity) {
    hangs_ = true;
    hangs_in_.reset();
  }
}

void FakeReplica::carry_out(const Tasks& tasks) {
  for (const auto& task : tasks) {
    carry_out_one(task);
  }
}

void FakeReplica::carry_out_one(const Task& task) {
  if (options_.on_task) {
    options_.on_task(task);
  }
  std::visit(
      Overloaded{
          // Computing takes no time unless it hangs, and cancelled work ends late.
          [](const auto&) {},
          // Another thread connects, so a replica that hangs joins as well.
          [&](const EpochMembers& join) {
            after(Duration(0), [this, epoch = join.epoch] {
              carry_out(machine_.joined(epoch));
            });
          },
          [&](const ReduceTask& reduce) {
            enter(
                hangs_in_ == Activity::kComputing ? Activity::kComputing
                                                  : Activity::kReducing);
            later(options_.step, [this, attempt = reduce.attempt] {
              enter(Activity::kWaiting);
              carry_out(machine_.reduced(
                  attempt, mix64(static_cast<std::uint64_t>(attempt.step))));
            });
          },
          [&](const ApplyTask& apply) {
            enter(Activity::kApplying);
            later(Duration(0), [this, state = apply.commit.result] {
              enter(Activity::kWaiting);
              carry_out(machine_.applied(state));
            });
          },
          [&](const CatchUpTask& task_of) {
            fetched_ = task_of.target;
            later(
                Duration(0), [this] { carry_out(machine_.fetched(fetched_)); });
          },
          [&](const StopCatchUpTask&) {},
          [&](const InstallTask& install) {
            carry_out(machine_.installed(install.serial, fetched_));
          },
          [&](const StopTask& stop) { stopped_ = stop.reason; },
          [&](const ReportTask& report) { send(report.report); }},
      task);
}

bool run_until(
    net::Loop& loop, const std::function<bool()>& done, Duration limit) {
  const Instant until = loop.now() + limit;
  net::Timer timer;
  std::function<void()> look = [&] {
    if (done() || loop.now() >= until) {
      loop.stop();
      return;
    }
    timer = loop.after(std::chrono::milliseconds(3), look);
  };
  look();
  loop.run();
  return done();
}

}  // namespace sherd::ft::test
