// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/codec.h"

#include "ft/wire/fields.h"

namespace sherd::ft {
namespace wire {

// ---- messages and records ----

template <typename Io>
void fields(Io& io, Field<Io, Report>& report) {
  io.number("a run", report.run);
  io.number("a replica", report.replica);
  io.number("an incarnation", report.incarnation);
  io.number("a serial", report.serial);
  io.number("a configuration", report.config);
  io.maybe("a state", report.held);
  fields(io, report.joined);
  io.maybe("a vote", report.vote);
  io.maybe("a suspicion", report.suspicion);
  io.maybe("a digest", report.digest);
  io.maybe("bad gradients", report.bad_gradients);
  io.flag("whether it leaves", report.leaving);
  io.flag("whether it has finished", report.finished);
  io.list("addresses", kAddressList, report.addresses);
  fields(io, report.progress);
  io.list("progress of ranks", kProgressList, report.ranks);
}

template <typename Io>
void fields(Io& io, Field<Io, RunView>& view) {
  io.number("a run", view.run);
  io.number("a term", view.term);
  fields(io, view.canonical);
  io.list("commits", kCommitList, view.recent);
  fields(io, view.epoch);
  io.choice("a stage", view.stage, EpochStage::kClosed);
  io.list("members", kMemberList, view.members);
  io.maybe("a planned epoch", view.planned);
  io.list("peers", kPeerList, view.peers);
  io.maybe("a digest", view.wrong);
  io.reason("a reason", view.fenced);
  io.flag("whether the run has ended", view.ended);
}

template <typename Io>
void fields(Io& io, Field<Io, TermRecord>& record) {
  io.number("a term", record.term);
  io.number("a run", record.run);
}

template <typename Io>
void fields(Io& io, Field<Io, IncarnationRecord>& record) {
  io.number("a replica", record.replica);
  io.number("an incarnation", record.incarnation);
}

template <typename Io>
void fields(Io& io, Field<Io, EpochRecord>& record) {
  fields(io, record.epoch);
  fields(io, record.base);
  io.number("a configuration", record.config);
  io.list("members", kMemberList, record.members);
}

template <typename Io>
void fields(Io& io, Field<Io, CommitRecord>& record) {
  fields(io, record.commit);
  io.list("participants", kMemberList, record.participants);
  io.list("members", kMemberList, record.next);
}

template <typename Io>
void fields(Io& io, Field<Io, RollbackRecord>& record) {
  fields(io, record.epoch);
  fields(io, record.lost);
  fields(io, record.canonical);
}

}  // namespace wire

namespace {

using wire::FieldReader;
using wire::FieldWriter;

void read_version(FieldReader& reader) {
  const std::uint16_t version = reader.in.u16("the version");
  if (version != kCodecVersion) {
    reader.in.fail(
        str("expected version ", kCodecVersion, ", found ", version));
  }
}

template <typename T>
std::string written(const T& value) {
  FieldWriter writer;
  writer.out.u16(kCodecVersion);
  fields<FieldWriter>(writer, value);
  return writer.out.take();
}

template <typename T>
Result<T> read(const char* what, std::string_view bytes) {
  FieldReader reader{net::ByteReader(bytes)};
  read_version(reader);
  T value;
  fields<FieldReader>(reader, value);
  if (auto status = reader.in.finish(what); !status.ok()) {
    return status;
  }
  return value;
}

}  // namespace

std::string bytes_of(const Report& report) { return written(report); }
std::string bytes_of(const RunView& view) { return written(view); }

std::string bytes_of(const Record& record) {
  FieldWriter writer;
  writer.out.u16(kCodecVersion);
  wire::write_kind(writer, record);
  return writer.out.take();
}

Result<Report> report_of(std::string_view bytes) {
  return read<Report>("a report", bytes);
}

Result<RunView> run_view_of(std::string_view bytes) {
  return read<RunView>("an order", bytes);
}

Result<Record> record_of(std::string_view bytes) {
  FieldReader reader{net::ByteReader(bytes)};
  read_version(reader);
  Record record;
  wire::read_kind(reader, "the kind of a record", record);
  if (auto status = reader.in.finish("a record"); !status.ok()) {
    return status;
  }
  return record;
}

}  // namespace sherd::ft
