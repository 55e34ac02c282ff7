// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/record_codec.h"

#include <utility>

#include "ft/wire/fields.h"
#include "ft/wire/member_list.h"

namespace sherd::ft {
namespace wire {

template <typename Io>
void fields(Io& io, Field<Io, TermRecord>& record) {
  io.number("a term", record.term);
  io.number("a run", record.run);
}

template <typename Io>
void fields(Io& io, Field<Io, EpochRecord>& record) {
  fields(io, record.epoch);
  fields(io, record.base);
  io.number("a configuration", record.config);
  io.list("members", kMemberList, record.members);
}

// As versions before 4 wrote it.
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

template <typename Io>
void fields(Io& io, Field<Io, RecoveryRecord>& record) {
  io.number("a configuration", record.config);
  fields(io, record.epoch);
  if constexpr (std::is_same_v<Io, FieldReader>) {
    record.members = read_members(io);
  } else {
    write_members(io, record.members);
  }
  io.list("lives", kLifeList, record.lives);
  fields(io, record.first);
  io.list("commits", kCommitList, record.commits);
  io.list("states that were given up", kStateList, record.given_up);
  fields(io, record.consumed);
}

// A committed state without its number of samples, which its ranges have.
template <typename Io>
void fields(Io& io, Field<Io, History::CommittedState>& past) {
  fields(io, past.state);
  io.maybe("a commit", past.commit);
  io.list("ranges of samples", kRangeList, past.samples);
}
inline constexpr ListLimits kPastList{std::size_t{1} << 24U, 24 + 1 + 4};

// ---- what a commit changes ----

void write_commit(
    FieldWriter& writer,
    const CommitRecord& record,
    const std::vector<Member>& before) {
  fields<FieldWriter>(writer, record.commit);
  const bool all = record.participants == before;
  writer.flag("whether all members took part", all);
  if (!all) {
    write_members(writer, record.participants);
  }
  const bool stay = are_same_replicas(record.next, record.participants);
  writer.flag("whether they stay", stay);
  if (stay) {
    write_samples(writer, record.next);
  } else {
    write_members(writer, record.next);
  }
}

CommitRecord read_commit(
    FieldReader& reader, const std::vector<Member>& before) {
  CommitRecord record;
  fields<FieldReader>(reader, record.commit);
  bool all = false;
  reader.flag("whether all members took part", all);
  record.participants = all ? before : read_members(reader);
  bool stay = false;
  reader.flag("whether they stay", stay);
  if (stay) {
    record.next = record.participants;
    read_samples(reader, record.next);
  } else {
    record.next = read_members(reader);
  }
  return record;
}

void write_epoch(FieldWriter& writer, const EpochRecord& record) {
  fields<FieldWriter>(writer, record.epoch);
  fields<FieldWriter>(writer, record.base);
  writer.number("a configuration", record.config);
  write_members(writer, record.members);
}

EpochRecord read_epoch(FieldReader& reader) {
  EpochRecord record;
  fields<FieldReader>(reader, record.epoch);
  fields<FieldReader>(reader, record.base);
  reader.number("a configuration", record.config);
  record.members = read_members(reader);
  return record;
}

// ---- what a history has come to ----

void write_lives(
    FieldWriter& writer, const std::map<ReplicaId, Incarnations>& all) {
  writer.out.count(all.size());
  for (const auto& [replica, lives] : all) {
    writer.number("a replica", replica);
    writer.number("an incarnation", lives.current);
    writer.out.count(lives.former.size());
    for (const auto former : lives.former) {
      writer.number("an incarnation", former);
    }
  }
}

void read_lives(FieldReader& reader, std::map<ReplicaId, Incarnations>& all) {
  constexpr std::size_t kLivesMax = std::size_t{1} << 24U;
  const auto count = reader.in.count(
      "replicas", {.elements_max = kLivesMax, .element_bytes = 16});
  for (std::size_t i = 0; i < count && reader.in.ok(); ++i) {
    ReplicaId replica = 0;
    reader.number("a replica", replica);
    auto& lives = all[replica];
    reader.number("an incarnation", lives.current);
    const auto former = reader.in.count(
        "incarnations", {.elements_max = kLivesMax, .element_bytes = 8});
    for (std::size_t j = 0; j < former; ++j) {
      Incarnation one = 0;
      reader.number("an incarnation", one);
      lives.former.insert(one);
    }
  }
}

// All but the past, and what of it was rolled back.
template <typename Io>
void summary_fields(Io& io, Field<Io, History>& history) {
  io.number("a term", history.term);
  io.number("a run", history.run);
  io.number("a configuration", history.config);
  fields(io, history.epoch);
  io.maybe("a state", history.canonical);
  fields(io, history.consumed);
}

}  // namespace wire

namespace {

using wire::FieldReader;
using wire::FieldWriter;

FieldWriter begun() {
  FieldWriter writer;
  writer.out.u16(kLogVersion);
  return writer;
}

std::uint16_t read_version(FieldReader& reader) {
  const std::uint16_t version = reader.in.u16("the version");
  if (version < kLogVersionMin || version > kLogVersion) {
    reader.in.fail(
        str("expected version ", kLogVersionMin, " to ", kLogVersion,
            ", found ", version));
  }
  return version;
}

void read_new(
    FieldReader& reader, Record& record, const std::vector<Member>& before) {
  wire::read_kind(reader, "the kind of a record", record, [&](auto& one) {
    using Kind = std::remove_reference_t<decltype(one)>;
    if constexpr (std::is_same_v<Kind, CommitRecord>) {
      one = wire::read_commit(reader, before);
    } else if constexpr (std::is_same_v<Kind, EpochRecord>) {
      one = wire::read_epoch(reader);
    } else {
      wire::fields<FieldReader>(reader, one);
    }
  });
}

}  // namespace

std::string bytes_of(const Record& record, const std::vector<Member>& before) {
  FieldWriter writer = begun();
  writer.out.u8(static_cast<std::uint8_t>(record.index()));
  if (const auto* commit = std::get_if<CommitRecord>(&record)) {
    wire::write_commit(writer, *commit, before);
  } else if (const auto* epoch = std::get_if<EpochRecord>(&record)) {
    wire::write_epoch(writer, *epoch);
  } else {
    std::visit(
        [&](const auto& one) { wire::fields<FieldWriter>(writer, one); },
        record);
  }
  return writer.out.take();
}

Result<Record> record_of(
    std::string_view bytes, const std::vector<Member>& before) {
  FieldReader reader{net::ByteReader(bytes)};
  Record record;
  constexpr std::uint16_t kCommitsSayWhatChanges = 4;
  if (read_version(reader) >= kCommitsSayWhatChanges) {
    read_new(reader, record, before);
  } else if (reader.in.ok()) {
    wire::read_kind(reader, "the kind of a record", record);
  }
  return reader.in.finish("a record", std::move(record));
}

const std::vector<Member>& members_after(
    const Record& record, const std::vector<Member>& before) {
  static const std::vector<Member> kNone;
  if (const auto* commit = std::get_if<CommitRecord>(&record)) {
    return commit->next;
  }
  if (const auto* epoch = std::get_if<EpochRecord>(&record)) {
    return epoch->members;
  }
  if (const auto* recovery = std::get_if<RecoveryRecord>(&record)) {
    return recovery->members;
  }
  return std::holds_alternative<RollbackRecord>(record) ? kNone : before;
}

std::string bytes_of_summary(const History& history) {
  FieldWriter writer = begun();
  wire::summary_fields(writer, history);
  wire::write_lives(writer, history.lives);
  wire::write_members(writer, history.members);
  std::vector<History::CommittedState> lost;
  for (const auto& [state, one] : history.lost) {
    lost.push_back(one);
  }
  writer.list("states that were rolled back", wire::kPastList, lost);
  return writer.out.take();
}

Result<History> summary_of(std::string_view bytes) {
  FieldReader reader{net::ByteReader(bytes)};
  (void)read_version(reader);
  History history;
  wire::summary_fields(reader, history);
  wire::read_lives(reader, history.lives);
  history.members = wire::read_members(reader);
  std::vector<History::CommittedState> lost;
  reader.list("states that were rolled back", wire::kPastList, lost);
  for (auto& one : lost) {
    history.lost.emplace(one.state, std::move(one));
  }
  return reader.in.finish("a summary", std::move(history));
}

std::string bytes_of(const PastPiece& piece) {
  FieldWriter writer = begun();
  wire::fields<FieldWriter>(writer, piece.before);
  writer.list("committed states", wire::kPastList, piece.states);
  return writer.out.take();
}

Result<PastPiece> past_piece_of(std::string_view bytes) {
  FieldReader reader{net::ByteReader(bytes)};
  (void)read_version(reader);
  PastPiece piece;
  wire::fields<FieldReader>(reader, piece.before);
  reader.list("committed states", wire::kPastList, piece.states);
  return reader.in.finish("committed states", std::move(piece));
}

}  // namespace sherd::ft
