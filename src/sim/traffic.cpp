// SPDX-License-Identifier: Apache-2.0
#include "sim/traffic.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ft/replica/rank_messages.h"
#include "ft/wire/record_codec.h"
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

// A leader reports at most this many ranks.
constexpr int kRanksToldMax = 16;

}  // namespace

Traffic::Traffic(int ranks_per_replica) {
  const std::vector<ft::RankAddress> addresses(
      static_cast<std::size_t>(ranks_per_replica), usual_address());
  ft::Report report;
  const auto without = ft::ReportWriter().bytes_of(report).size();
  report.addresses = addresses;
  addresses_bytes_ = ft::ReportWriter().bytes_of(report).size() - without;
  ft::ReportWriter writer;
  writer.bytes_of(report);
  ++report.serial;
  ++report.progress.serial;
  const auto alone = writer.bytes_of(report).size();
  auto progress = usual_progress();
  for (int i = 0; i < std::min(ranks_per_replica, kRanksToldMax); ++i) {
    progress.rank = static_cast<std::uint32_t>(i);
    report.ranks.push_back(progress);
  }
  writer.bytes_of(report);
  for (auto& rank : report.ranks) {
    ++rank.serial;
  }
  ++report.serial;
  ++report.progress.serial;
  totals_.heartbeat_bytes = framed(writer.bytes_of(report));
  ranks_bytes_ = totals_.heartbeat_bytes - net::kFrameHeaderBytes - alone;
  const auto view = std::make_shared<const ft::RunView>();
  ft::ToldView told;
  views_writer_.bytes_for(told, view);
  totals_.answer_bytes = framed(views_writer_.bytes_for(told, view));
}

Traffic::Connection& Traffic::connection(
    ft::ReplicaId replica, ft::Incarnation incarnation) {
  auto& one = connections_[replica];
  if (one.incarnation != incarnation) {
    one = {};
    one.incarnation = incarnation;
    ++starts_;
  }
  return one;
}

void Traffic::report(const ft::Report& report, std::int64_t times) {
  const auto starts = starts_;
  auto& one = connection(report.replica, report.incarnation);
  const bool first = starts_ != starts;
  const auto bytes = framed(one.reports.bytes_of(report)) +
      (first ? ranks_bytes_ + addresses_bytes_ : 0);
  totals_.report_bytes_max = std::max(totals_.report_bytes_max, bytes);
  totals_.reports.add(bytes, static_cast<std::uint64_t>(times));
}

// All replicas are sent the addresses of each replica that has started since.
void Traffic::view(const ft::SendView& sent, std::int64_t times) {
  auto& one = connection(sent.replica, sent.incarnation);
  const auto all = std::uint64_t{connections_.size()};
  const auto news = std::min(starts_ - one.starts, all) * addresses_bytes_;
  one.starts = starts_;
  totals_.views.add(
      framed(views_writer_.bytes_for(one.told, sent.view)),
      static_cast<std::uint64_t>(times));
  totals_.views.bytes += news;
}

void Traffic::record(const ft::Record& record, std::int64_t times) {
  totals_.records.add(
      ft::bytes_of(record, members_).size(), static_cast<std::uint64_t>(times));
  members_ = ft::members_after(record, members_);
}

Flow rank_flow_of_step(int replicas) {
  ft::ReduceTask reduce;
  reduce.weights.assign(static_cast<std::size_t>(replicas), 1.0);
  ft::ComputeTask compute;
  compute.samples.resize(1);
  Flow flow;
  for (const auto& bytes :
       {ft::bytes_of(ft::RankTask(compute)), ft::bytes_of(ft::RankTask(reduce)),
        ft::bytes_of(ft::RankTask(ft::ApplyTask())),
        ft::bytes_of(ft::RankEvent(ft::ReducedEvent())),
        ft::bytes_of(ft::RankEvent(ft::WrittenEvent()))}) {
    flow.add(framed(bytes), 1);
  }
  return flow;
}

std::uint64_t rank_heartbeat_bytes() {
  return framed(ft::bytes_of(ft::RankEvent(usual_progress())));
}

}  // namespace sherd::sim
