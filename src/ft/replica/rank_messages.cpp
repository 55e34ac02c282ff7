// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/rank_messages.h"

#include <utility>

#include "ft/wire/fields.h"

namespace sherd::ft {
namespace wire {

// ---- tasks ----

template <typename Io>
void fields(Io& io, Field<Io, double>& number) {
  io.real("a number", number);
}
template <typename Io>
void fields(Io& io, Field<Io, RingMember>& member) {
  io.number("a replica", member.replica);
  io.number("an incarnation", member.incarnation);
  io.name("a host", member.host);
  io.number("a port", member.port);
  fields(io, member.key);
}
template <typename Io>
void fields(Io& io, Field<Io, StartRunTask>& task) {
  io.number("a run", task.run);
  fields(io, task.key);
}
inline constexpr ListLimits kRingList{CodecLimits::kMembers, 34};
template <typename Io>
void fields(Io& io, Field<Io, RingMembership>& ring) {
  fields(io, ring.epoch);
  io.list("members", kRingList, ring.members);
}
template <typename Io>
void fields(Io& io, Field<Io, ComputeTask>& task) {
  io.number("a serial", task.serial);
  fields(io, task.base);
  io.list("ranges of samples", kRangeList, task.samples);
  io.number("replicas", task.replicas);
  io.number("a place", task.place);
}
inline constexpr ListLimits kWeightList{CodecLimits::kMembers, 8};
template <typename Io>
void fields(Io& io, Field<Io, ReduceTask>& task) {
  fields(io, task.attempt);
  io.list("weights", kWeightList, task.weights);
}
template <typename Io>
void fields(Io& io, Field<Io, StopReduceTask>& task) {
  fields(io, task.epoch);
}
template <typename Io>
void fields(Io& io, Field<Io, ApplyTask>& task) {
  fields(io, task.commit);
}
template <typename Io>
void fields(Io& io, Field<Io, SnapshotTask>& task) {
  fields(io, task.state);
}
template <typename Io>
void fields(Io& io, Field<Io, FetchStateTask>& task) {
  io.number("a serial", task.serial);
  io.list("donors", kAddressList, task.donors);
  fields(io, task.state);
}
template <typename Io>
void fields(Io& io, Field<Io, FetchSumTask>& task) {
  io.number("a serial", task.serial);
  fields(io, task.donor);
  fields(io, task.base);
}
template <typename Io>
void fields(Io&, Field<Io, StopCatchUpTask>&) {}
template <typename Io>
void fields(Io& io, Field<Io, InstallTask>& task) {
  io.number("a serial", task.serial);
}
template <typename Io>
void fields(Io& io, Field<Io, StopTask>& task) {
  io.reason("a reason", task.reason);
}

// ---- events ----

template <typename Io>
void fields(Io& io, Field<Io, JoinedEvent>& event) {
  fields(io, event.epoch);
}
template <typename Io>
void fields(Io& io, Field<Io, ReducedEvent>& event) {
  fields(io, event.attempt);
  io.number("a digest", event.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, AppliedEvent>& event) {
  fields(io, event.state);
  io.maybe("a digest", event.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, BadGradientsEvent>& event) {
  io.number("a serial", event.serial);
  fields(io, event.fault);
}
template <typename Io>
void fields(Io& io, Field<Io, FetchedEvent>& event) {
  io.number("a serial", event.serial);
  io.reason("a reason", event.failure);
  fields(io, event.commit);
  io.number("a digest", event.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, InstalledEvent>& event) {
  io.number("a serial", event.serial);
  fields(io, event.state);
  io.maybe("a digest", event.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, LinkSpeeds>& links) {
  io.list("speeds of links", kLinkList, links);
}
template <typename Io>
void fields(Io&, Field<Io, LeaveEvent>&) {}
template <typename Io>
void fields(Io&, Field<Io, FinishedEvent>&) {}

}  // namespace wire

namespace {

template <typename Variant>
std::string written(const Variant& value) {
  wire::FieldWriter writer;
  wire::write_kind(writer, value);
  return writer.out.take();
}

template <typename Variant>
Result<Variant> read(std::string_view bytes, const char* what) {
  wire::FieldReader reader{net::ByteReader(bytes)};
  Variant value;
  wire::read_kind(reader, what, value);
  return reader.in.finish(what, std::move(value));
}

}  // namespace

std::string bytes_of(const RankTask& task) { return written(task); }
std::string bytes_of(const RankEvent& event) { return written(event); }
Result<RankTask> rank_task_of(std::string_view bytes) {
  return read<RankTask>(bytes, "a command");
}
Result<RankEvent> event_of(std::string_view bytes) {
  return read<RankEvent>(bytes, "an event");
}

}  // namespace sherd::ft
