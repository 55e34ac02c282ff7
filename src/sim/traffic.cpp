// SPDX-License-Identifier: Apache-2.0
#include "sim/traffic.h"

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "ft/replica/rank_messages.h"
#include "ft/wire/codec.h"
#include "net/frame.h"

namespace sherd::sim {
namespace {

std::uint64_t framed(const std::string& payload) {
  return net::kFrameHeaderBytes + payload.size();
}

ft::TrainingProgress usual_progress() {
  ft::TrainingProgress progress;
  progress.activity = ft::Activity::kReducing;
  progress.waits_for = 0;
  progress.place.emplace().unit = "layers.10";
  return progress;
}

ft::RankAddress usual_address() {
  ft::RankAddress address;
  address.host = "10.100.100.100";
  return address;
}

// All fields but lists and texts have one size.
std::uint64_t shape_of(const ft::RunView& view) {
  Hash64 shape;
  const auto add = [&](std::size_t count) { shape.add(std::uint64_t{count}); };
  const auto add_members = [&](const std::vector<ft::Member>& members) {
    std::size_t ranges = 0;
    for (const auto& one : members) {
      ranges += one.samples.size() + one.left_out.size();
    }
    add(members.size());
    add(ranges);
  };
  add(view.recent.size());
  add_members(view.members);
  add(view.planned ? 1 : 0);
  if (view.planned) {
    add_members(view.planned->members);
  }
  add(view.wrong ? 1 : 0);
  add(view.fenced.size());
  return shape.value();
}

std::uint64_t shape_of(const ft::Report& report) {
  Hash64 shape;
  const auto add = [&](std::size_t count) { shape.add(std::uint64_t{count}); };
  add(report.held ? 1 : 0);
  add(report.vote ? 1 : 0);
  add(report.suspicion ? 1 + report.suspicion->reason.size() : 0);
  add(report.suspicion && report.suspicion->noticed_by ? 1 : 0);
  add(report.digest ? 1 : 0);
  add(report.progress.waits_for ? 1 : 0);
  return shape.value();
}

template <typename Message>
std::uint64_t size_of(
    std::unordered_map<std::uint64_t, std::uint64_t>& sizes,
    const Message& message) {
  const auto [found, is_new] = sizes.try_emplace(shape_of(message), 0);
  if (is_new) {
    found->second = framed(ft::bytes_of(message));
  }
  return found->second;
}

}  // namespace

Traffic::Traffic(int ranks_per_replica) {
  const auto ranks = static_cast<std::size_t>(ranks_per_replica);
  ft::Report report;
  const auto without = framed(ft::bytes_of(report));
  report.addresses.assign(ranks, usual_address());
  report.ranks.assign(ranks, usual_progress());
  ranks_bytes_ = framed(ft::bytes_of(report)) - without;
  ft::RunView view;
  const auto alone = framed(ft::bytes_of(view));
  view.peers = {{0, 1, ft::StateId(), report.addresses}};
  peer_bytes_ = framed(ft::bytes_of(view)) - alone;
}

void Traffic::report(const ft::Report& report, std::int64_t times) {
  report_bytes_ = size_of(report_sizes_, report) + ranks_bytes_;
  reports_.add(report_bytes_, static_cast<std::uint64_t>(times));
}

void Traffic::view(const ft::RunView& view, int peers, std::int64_t times) {
  view_bytes_ = size_of(view_sizes_, view) +
      static_cast<std::uint64_t>(peers) * peer_bytes_;
  views_.add(view_bytes_, static_cast<std::uint64_t>(times));
}

void Traffic::record(const ft::Record& record, std::int64_t times) {
  records_.add(ft::bytes_of(record).size(), static_cast<std::uint64_t>(times));
}

RankTraffic rank_traffic(int replicas) {
  ft::ReduceTask reduce;
  reduce.weights.assign(static_cast<std::size_t>(replicas), 1.0);
  ft::ComputeTask compute;
  compute.samples.resize(1);
  RankTraffic traffic;
  const auto add = [&](const std::string& bytes) {
    traffic.messages_per_step += 1;
    traffic.bytes_per_step += static_cast<double>(framed(bytes));
  };
  add(ft::bytes_of(ft::RankTask(compute)));
  add(ft::bytes_of(ft::RankTask(reduce)));
  add(ft::bytes_of(ft::RankTask(ft::ApplyTask())));
  add(ft::bytes_of(ft::RankEvent(ft::ReducedEvent())));
  add(ft::bytes_of(ft::RankEvent(ft::AppliedEvent())));
  traffic.heartbeats_per_s = 1 / seconds(ft::kHeartbeatInterval);
  traffic.bytes_per_heartbeat = static_cast<double>(
      framed(ft::bytes_of(ft::RankEvent(usual_progress()))));
  return traffic;
}

}  // namespace sherd::sim
