// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/commands.h"

#include <utility>

#include "ft/wire/fields.h"

namespace sherd::ft {
namespace wire {

// ---- commands ----

template <typename Io>
void fields(Io& io, Field<Io, double>& c) {
  io.real("a number", c);
}
template <typename Io>
void fields(Io& io, Field<Io, RingMember>& c) {
  io.number("a replica", c.replica);
  io.number("an incarnation", c.incarnation);
  io.name("a host", c.host);
  io.number("a port", c.port);
}
template <typename Io>
void fields(Io& io, Field<Io, RunCommand>& c) {
  io.number("a run", c.run);
}
inline constexpr ListLimits kRingList{CodecLimits::kMembers, 18};
template <typename Io>
void fields(Io& io, Field<Io, JoinCommand>& c) {
  fields(io, c.epoch.epoch);
  io.list("members", kRingList, c.epoch.members);
}
template <typename Io>
void fields(Io& io, Field<Io, ComputeCommand>& c) {
  io.number("a serial", c.serial);
  fields(io, c.base);
  io.list("ranges of samples", kRangeList, c.samples);
  io.number("replicas", c.replicas);
  io.number("a place", c.place);
}
inline constexpr ListLimits kWeightList{CodecLimits::kMembers, 8};
template <typename Io>
void fields(Io& io, Field<Io, ReduceCommand>& c) {
  fields(io, c.attempt);
  io.list("weights", kWeightList, c.weights);
}
template <typename Io>
void fields(Io& io, Field<Io, StopReduceCommand>& c) {
  fields(io, c.epoch);
}
template <typename Io>
void fields(Io& io, Field<Io, ApplyCommand>& c) {
  fields(io, c.commit);
}
template <typename Io>
void fields(Io& io, Field<Io, SnapshotCommand>& c) {
  fields(io, c.state);
}
template <typename Io>
void fields(Io& io, Field<Io, FetchStateCommand>& c) {
  io.number("a serial", c.serial);
  io.list("donors", kAddressList, c.donors);
  fields(io, c.state);
}
template <typename Io>
void fields(Io& io, Field<Io, FetchSumCommand>& c) {
  io.number("a serial", c.serial);
  fields(io, c.donor);
  fields(io, c.base);
}
template <typename Io>
void fields(Io&, Field<Io, DropFetchCommand>&) {}
template <typename Io>
void fields(Io& io, Field<Io, InstallCommand>& c) {
  io.number("a serial", c.serial);
}
template <typename Io>
void fields(Io& io, Field<Io, StopCommand>& c) {
  io.reason("a reason", c.reason);
}

// ---- events ----

template <typename Io>
void fields(Io& io, Field<Io, JoinedEvent>& c) {
  fields(io, c.epoch);
}
template <typename Io>
void fields(Io& io, Field<Io, ReducedEvent>& c) {
  fields(io, c.attempt);
  io.number("a digest", c.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, PeerLostEvent>& c) {
  fields(io, c.suspicion);
}
template <typename Io>
void fields(Io& io, Field<Io, AppliedEvent>& c) {
  fields(io, c.state);
  io.maybe("a digest", c.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, BadGradientsEvent>& c) {
  io.number("a serial", c.serial);
  fields(io, c.fault);
}
template <typename Io>
void fields(Io& io, Field<Io, FetchedEvent>& c) {
  io.number("a serial", c.serial);
  io.reason("a reason", c.failure);
  fields(io, c.commit);
  io.number("a digest", c.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, InstalledEvent>& c) {
  io.number("a serial", c.serial);
  fields(io, c.state);
  io.maybe("a digest", c.digest);
}
template <typename Io>
void fields(Io& io, Field<Io, ProgressEvent>& c) {
  fields(io, c.progress);
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
  if (auto status = reader.in.finish(what); !status.ok()) {
    return status;
  }
  return value;
}

}  // namespace

std::string bytes_of(const Command& command) { return written(command); }
std::string bytes_of(const RankEvent& event) { return written(event); }
Result<Command> command_of(std::string_view bytes) {
  return read<Command>(bytes, "a command");
}
Result<RankEvent> event_of(std::string_view bytes) {
  return read<RankEvent>(bytes, "an event");
}

}  // namespace sherd::ft
