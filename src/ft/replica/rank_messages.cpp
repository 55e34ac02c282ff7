// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/rank_messages.h"

#include "ft/wire/fields.h"

namespace sherd::ft {
namespace wire {

// ---- tasks ----

void fields(auto& io, Of<double> auto& number) { io.real("a number", number); }
void fields(auto& io, Of<RingMember> auto& member) {
  io.number("a replica", member.replica);
  io.number("an incarnation", member.incarnation);
  io.name("a host", member.host);
  io.number("a port", member.port);
  fields(io, member.key);
}
void fields(auto& io, Of<StartRunTask> auto& task) {
  io.number("a run", task.run);
  fields(io, task.key);
}
inline constexpr ListLimits kRingList{CodecLimits::kMembers, 34};
void fields(auto& io, Of<RingMembership> auto& ring) {
  fields(io, ring.epoch);
  io.list("members", kRingList, ring.members);
}
void fields(auto& io, Of<ComputeTask> auto& task) {
  io.number("a serial", task.serial);
  fields(io, task.base);
  io.list("ranges of samples", kRangeList, task.samples);
  io.number("replicas", task.replicas);
  io.number("a place", task.place);
}
inline constexpr ListLimits kWeightList{CodecLimits::kMembers, 8};
void fields(auto& io, Of<ReduceTask> auto& task) {
  fields(io, task.attempt);
  io.list("weights", kWeightList, task.weights);
}
void fields(auto& io, Of<StopReduceTask> auto& task) { fields(io, task.epoch); }
void fields(auto& io, Of<ApplyTask> auto& task) { fields(io, task.commit); }
void fields(auto& io, Of<SnapshotTask> auto& task) { fields(io, task.state); }
void fields(auto& io, Of<FetchTask> auto& task) {
  io.number("a serial", task.serial);
  io.list("donors", kAddressList, task.donors);
  fields(io, task.state);
  io.flag("whether it is a sum", task.is_sum);
}
void fields(auto&, Of<StopCatchUpTask> auto&) {}
void fields(auto& io, Of<InstallTask> auto& task) {
  io.number("a serial", task.serial);
}
void fields(auto& io, Of<StopTask> auto& task) {
  io.reason("a reason", task.reason);
}

// ---- events ----

void fields(auto& io, Of<JoinedEvent> auto& event) { fields(io, event.epoch); }
void fields(auto& io, Of<ReducedEvent> auto& event) {
  fields(io, event.attempt);
  io.number("a digest", event.digest);
}
void fields(auto& io, Of<WrittenEvent> auto& event) {
  io.number("a serial", event.serial);
  fields(io, event.state);
  io.maybe("a digest", event.digest);
}
void fields(auto& io, Of<BadGradientsEvent> auto& event) {
  io.number("a serial", event.serial);
  fields(io, event.fault);
}
void fields(auto& io, Of<FetchedEvent> auto& event) {
  io.number("a serial", event.serial);
  io.reason("a reason", event.failure);
  fields(io, event.commit);
  io.number("a digest", event.digest);
}
void fields(auto& io, Of<LinkSpeeds> auto& links) {
  io.list("speeds of links", kLinkList, links);
}
void fields(auto&, Of<LeaveEvent> auto&) {}
void fields(auto&, Of<FinishedEvent> auto&) {}

}  // namespace wire

std::string bytes_of(const RankTask& task) { return wire::encoded(task); }
std::string bytes_of(const RankEvent& event) { return wire::encoded(event); }
Result<RankTask> rank_task_of(std::string_view bytes) {
  return wire::decoded<RankTask>(bytes, "a command");
}
Result<RankEvent> event_of(std::string_view bytes) {
  return wire::decoded<RankEvent>(bytes, "an event");
}

}  // namespace sherd::ft
