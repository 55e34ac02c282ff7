// SPDX-License-Identifier: Apache-2.0
//
// The replicas of a simulated world: how they carry out the tasks of their state machines.
#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/hash.h"
#include "ft/protocol/reduce_shape.h"
#include "sim/world.h"
#include "sim/world_process.h"

namespace sherd::sim {
namespace {

// A sum that another replica has: it is as large as a bucket's, and arrives over one link.
constexpr Duration kFetchSum = std::chrono::milliseconds(1);
constexpr Duration kRetryFetch = std::chrono::seconds(1);
// The progress limit of an all-reduce.
constexpr Duration kRingTimeout = std::chrono::seconds(5);

std::uint64_t contribution(
    const ft::Lineage& parameters,
    const std::vector<ft::SampleRange>& samples) {
  Hash64 all;
  all.add(parameters.high).add(parameters.low);
  for (const auto& range : samples) {
    all.add(static_cast<std::uint64_t>(range.begin));
    all.add(static_cast<std::uint64_t>(range.end));
  }
  return all.value();
}

std::uint64_t sum_of(
    const ft::Attempt& attempt,
    const std::map<ft::ReplicaId, std::uint64_t>& contributions) {
  Hash64 all;
  all.add(attempt.epoch.term).add(attempt.epoch.number);
  all.add(static_cast<std::uint64_t>(attempt.step));
  for (const auto& [replica, part] : contributions) {
    all.add(replica).add(part);
  }
  return all.value();
}

}  // namespace

// ---- messages ----

void SimulatedWorld::send(
    const Envelope& envelope, const EventQueue::Action& arrive) {
  const auto copies =
      delivery_ ? delivery_(envelope) : std::vector<Duration>{Duration(0)};
  for (const auto delay : copies) {
    events_.add(now() + options_.times.message + delay, arrive);
  }
}

void SimulatedWorld::send_report(Process& from, ft::Report report) {
  report.serial = ++from.reports;
  report.progress = progress_of(from);
  traffic_.report(report, weight_);
  send(
      {.to_coordinator = true, .replica = from.id},
      [this, life = coordinator_life_, connection = from.connection,
       sent = std::make_shared<ft::Report>(std::move(report))] {
        const auto& one = process(sent->replica);
        // The message was sent over a connection, and is lost with it.
        if (life != coordinator_life_ || connection != one.connection ||
            sent->incarnation <= one.closed) {
          return;
        }
        to_coordinator([this, sent] {
          return is_superseded(*sent) ? ft::CoordinatorDecisions()
                                      : coordinator_->received(*sent, now());
        });
      });
}

// ---- tasks ----

void SimulatedWorld::carry_out(Process& by, const ft::Tasks& tasks) {
  for (const auto& task : tasks) {
    std::visit([&](const auto& one) { on(by, one); }, task);
  }
}

void SimulatedWorld::on(Process& by, const ft::StopReduceTask& /*task*/) {
  stop_reducing(by);
}

// The replica applies the sum that it has, whatever the commit says.
void SimulatedWorld::on(Process& by, const ft::ApplyTask& task) {
  by.begin(ft::Activity::kApplying);
  after(
      by, 2 * options_.times.leader_fan_out,
      [this, state = task.commit.result](Process& one) {
        one.parameters = one.with_sum;
        carry_out(one, one.machine->applied(state));
      });
}

void SimulatedWorld::on(Process& by, const ft::StopCatchUpTask& /*task*/) {
  ++by.fetches;
}

void SimulatedWorld::on(Process& by, const ft::InstallTask& task) {
  SHERD_ASSERT(by.fetched.has_value(), "nothing was fetched");
  after(
      by, 2 * options_.times.leader_fan_out,
      [this, serial = task.serial, copy = *by.fetched](Process& one) {
        one.parameters = copy.parameters;
        carry_out(one, one.machine->installed(serial, copy.state));
      });
}

void SimulatedWorld::on(Process& by, const ft::StopTask& /*task*/) {
  after(by, Duration(0), [this](Process& one) {
    lose(one.id, FailureKind::kProcess);
  });
}

void SimulatedWorld::on(Process& by, const ft::ReportTask& task) {
  send_report(by, task.report);
}

// ---- connections ----

void SimulatedWorld::on(Process& one, const ft::EpochMembers& task) {
  auto& connecting = connecting_[task.epoch];
  connecting.insert(one.id);
  if (connecting.size() < task.members.size()) {
    return;
  }
  for (std::size_t i = 0; i < task.members.size(); ++i) {
    if (!peers_are_linked(task.members, i)) {
      continue;  // The coordinator notices it.
    }
    after(
        process(task.members[i].replica), options_.times.connect,
        [this, epoch = task.epoch](Process& member) {
          carry_out(member, member.machine->joined(epoch));
        });
  }
}

bool SimulatedWorld::peers_are_linked(
    const std::vector<ft::Member>& members, std::size_t at) const {
  if (cut_links_.empty()) {
    return true;
  }
  const auto peers =
      ft::peers_of(static_cast<int>(members.size()), static_cast<int>(at));
  return std::none_of(peers.begin(), peers.end(), [&](int peer) {
    return cut_links_.contains(std::minmax(
        members[at].replica, members[static_cast<std::size_t>(peer)].replica));
  });
}

void SimulatedWorld::blame(
    ft::ReplicaId by, ft::ReplicaId accused, const std::string& why) {
  auto& one = process(by);
  if (one.machine && !one.hangs) {
    const auto epoch = one.machine->view().epoch;
    carry_out(one, one.machine->peer_lost({epoch, accused, why, by}));
  }
}

void SimulatedWorld::blame_by_peers(
    ft::ReplicaId accused, const std::string& why) {
  const auto members = log_.members;
  const auto count = static_cast<int>(members.size());
  for (int i = 0; i < count; ++i) {
    if (members[static_cast<std::size_t>(i)].replica == accused) {
      for (const int peer : ft::peers_of(count, i)) {
        blame(members[static_cast<std::size_t>(peer)].replica, accused, why);
      }
    }
  }
}

// ---- computing and reducing ----

void SimulatedWorld::on(Process& one, const ft::ComputeTask& task) {
  one.task = task;
  one.computed = false;
  one.begin(ft::Activity::kComputing);
  // A step that stands for several ends when the last of them would.
  const auto time = task.samples.empty()
      ? Duration(0)
      : (weight_ - 1) * step_time() + computing_time(one);
  after_training(
      one, options_.times.leader_fan_out + time,
      [this, serial = task.serial](Process& by) {
        if (by.task && by.task->serial == serial) {
          by.computed = true;
          by.begin(ft::Activity::kReducing);
          if (by.reducing) {
            enter_reduction(by, *by.reducing);
          }
        }
      });
}

void SimulatedWorld::on(Process& one, const ft::ReduceTask& task) {
  one.reducing = task.attempt;
  one.ring = one.machine->view().members;
  reductions_[task.attempt].members = task.weights.size();
  after_training(
      one, options_.times.leader_fan_out,
      [this, attempt = task.attempt](Process& by) {
        if (by.reducing == attempt) {
          enter_reduction(by, attempt);
        }
      });
}

// Sums are made while gradients are computed: they are complete when all have begun and all have
// computed.
void SimulatedWorld::enter_reduction(Process& one, const ft::Attempt& attempt) {
  const auto found = reductions_.find(attempt);
  if (found == reductions_.end()) {
    return;  // The epoch is over, and others have left it.
  }
  auto& reduction = found->second;
  if (reduction.entered.insert(one.id).second &&
      reduction.entered.size() == reduction.members) {
    reduction.all_entered = training_now();
  }
  if (one.computed) {
    reduction.computed.emplace(
        one.id, contribution(one.parameters, one.task->samples));
  }
  if (reduction.ends || reduction.computed.size() < reduction.members) {
    return;
  }
  if (!cut_links_.empty() && a_link_is_cut()) {
    return;
  }
  reduction.ends = true;
  at_training(
      std::max(training_now(), reduction.all_entered + options_.times.reduce),
      [this, attempt] { end_reduction(attempt); });
}

// When the limit of progress has passed, the first two connected replicas between which nothing
// passes blame each other.
bool SimulatedWorld::a_link_is_cut() {
  const auto& members = log_.members;
  const auto count = static_cast<int>(members.size());
  for (int i = 0; i < count; ++i) {
    const auto one = members[static_cast<std::size_t>(i)].replica;
    for (const int to : ft::receivers_of(count, i)) {
      const auto other = members[static_cast<std::size_t>(to)].replica;
      if (cut_links_.contains(std::minmax(one, other))) {
        events_.add(now() + kRingTimeout, [this, one, other] {
          blame(other, one, "nothing has come for 5 s");
        });
        return true;
      }
    }
  }
  return false;
}

// In a ring, the previous member. In trees, the next one on the way to a member whose part is
// missing: the child above that member, or the parent.
ft::ReplicaId SimulatedWorld::waited_for_by(std::size_t at) const {
  const auto& members = log_.members;
  const auto count = static_cast<int>(members.size());
  const auto position = static_cast<int>(at);
  if (ft::reduce_shape_of(count) == ft::ReduceShape::kRing) {
    return members[(at + members.size() - 1) % members.size()].replica;
  }
  const auto missing = std::find_if(
      members.begin(), members.end(),
      [&](const ft::Member& one) { return !process(one.replica).computed; });
  auto on_the_way = static_cast<int>(missing - members.begin()) % count;
  auto up = ft::tree_node_of(count, 0, on_the_way).parent;
  while (up && *up != position) {
    on_the_way = *up;
    up = ft::tree_node_of(count, 0, on_the_way).parent;
  }
  const auto next = up
      ? on_the_way
      : ft::tree_node_of(count, 0, position).parent.value_or(on_the_way);
  return members[static_cast<std::size_t>(next)].replica;
}

void SimulatedWorld::end_reduction(const ft::Attempt& attempt) {
  const auto found = reductions_.find(attempt);
  if (found == reductions_.end() ||
      found->second.computed.size() < found->second.members) {
    return;  // Somebody has left the epoch.
  }
  const auto sum = sum_of(attempt, found->second.computed);
  for (const auto& [replica, part] : found->second.computed) {
    after(
        process(replica), options_.times.leader_fan_out,
        [this, attempt, sum](Process& one) {
          if (one.reducing == attempt) {
            one.reducing.reset();
            one.begin(ft::Activity::kWaiting);
            one.with_sum =
                ft::next_lineage(one.parameters, attempt, one.ring, sum);
            carry_out(one, one.machine->reduced(attempt, sum));
          }
        });
  }
}

void SimulatedWorld::stop_reducing(Process& one) {
  if (!one.reducing) {
    return;
  }
  if (const auto found = reductions_.find(*one.reducing);
      found != reductions_.end()) {
    found->second.entered.erase(one.id);
    found->second.computed.erase(one.id);
  }
  one.reducing.reset();
}

std::uint64_t SimulatedWorld::digest_of_sum(
    const ft::Attempt& attempt,
    const std::vector<ft::Member>& members,
    const ft::Lineage& parameters) {
  std::map<ft::ReplicaId, std::uint64_t> parts;
  for (const auto& member : members) {
    parts.emplace(member.replica, contribution(parameters, member.samples));
  }
  return sum_of(attempt, parts);
}

// ---- catching up ----

void SimulatedWorld::on(Process& one, const ft::CatchUpTask& task) {
  const auto serial = ++one.fetches;
  if (!newest_copy_for(one)) {
    one.begin(ft::Activity::kIdle);
    after(one, kRetryFetch, [this, serial](Process& by) {
      if (by.fetches == serial) {
        carry_out(by, by.machine->fetch_failed());
      }
    });
    return;
  }
  const bool sum = task.held && task.held->step + 1 == task.target.step;
  one.begin(ft::Activity::kFetching);
  after(
      one, sum ? kFetchSum : options_.times.fetch, [this, serial](Process& by) {
        if (by.fetches == serial) {
          // The sums of a donor follow its state.
          by.fetched = newest_copy_for(by);
          carry_out(
              by,
              by.fetched ? by.machine->fetched(by.fetched->state)
                         : by.machine->fetch_failed());
        }
      });
}

// The last state on the way to the canonical one that another replica has, if it is later than that
// of this replica.
std::optional<SimulatedWorld::Copy> SimulatedWorld::newest_copy_for(
    const Process& one) const {
  const auto& held = one.machine->held();
  auto last = held && log_.on_chain(*held) ? *held : ft::StateId{-1, {}};
  std::optional<Copy> newest;
  for (const auto& other : processes_) {
    if (!other->machine || !other->machine->held() || other->id == one.id) {
      continue;
    }
    const auto copy = newest_copy_of(*other);
    if (last < copy.state && log_.on_chain(copy.state)) {
      last = copy.state;
      newest = copy;
    }
  }
  return newest;
}

// A replica that has the sum of the last commit also has the state, even before it has applied the
// sum.
SimulatedWorld::Copy SimulatedWorld::newest_copy_of(
    const Process& donor) const {
  const auto held = *donor.machine->held();
  const auto& commit = log_.commit();
  if (commit && commit->base == held) {
    const auto vote = donor.machine->report().vote;
    if (vote && vote->attempt == commit->attempt) {
      return {commit->result, donor.with_sum};
    }
  }
  return {held, donor.parameters};
}

}  // namespace sherd::sim
