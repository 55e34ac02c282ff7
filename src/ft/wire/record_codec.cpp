// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/record_codec.h"

#include <utility>

#include "ft/wire/fields.h"
#include "ft/wire/member_list.h"

namespace sherd::ft {
namespace wire {

void fields(auto& io, Of<TermRecord> auto& record) {
  io.number("a term", record.term);
  io.number("a run", record.run);
}

void fields(auto& io, Of<EpochRecord> auto& record) {
  fields(io, record.epoch);
  fields(io, record.base);
  io.number("a configuration", record.config);
  io.list("members", kMemberList, record.members);
}

// As versions before 4 wrote it.
void fields(auto& io, Of<CommitRecord> auto& record) {
  fields(io, record.commit);
  io.list("participants", kMemberList, record.participants);
  io.list("members", kMemberList, record.next);
}

void fields(auto& io, Of<RollbackRecord> auto& record) {
  fields(io, record.epoch);
  fields(io, record.lost);
  fields(io, record.canonical);
}

void fields(auto& io, Of<RecoveryRecord> auto& record) {
  io.number("a configuration", record.config);
  fields(io, record.epoch);
  member_fields(io, record.members);
  io.list("lives", kLifeList, record.lives);
  fields(io, record.first);
  io.list("commits", kCommitList, record.commits);
  io.list("states that were given up", kStateList, record.given_up);
  fields(io, record.consumed);
}

// A committed state without its number of samples, which follows from its ranges.
void fields(auto& io, Of<History::CommittedState> auto& past) {
  fields(io, past.state);
  io.maybe("a commit", past.commit);
  io.list("ranges of samples", kRangeList, past.samples);
}
inline constexpr ListLimits kPastList{std::size_t{1} << 24U, 24 + 1 + 4};

// ---- as versions from 4 on write it ----

void new_fields(auto& io, auto& record, const std::vector<Member>&) {
  fields(io, record);
}

// Only what the commit changes.
template <typename Io>
void new_fields(
    Io& io, Of<CommitRecord> auto& record, const std::vector<Member>& before) {
  constexpr bool kReads = std::is_same_v<Io, FieldReader>;
  fields(io, record.commit);
  bool all = record.participants == before;
  io.flag("whether all members took part", all);
  if (!all) {
    member_fields(io, record.participants);
  } else if constexpr (kReads) {
    record.participants = before;
  }
  bool stay = are_same_replicas(record.next, record.participants);
  io.flag("whether they stay", stay);
  if (!stay) {
    member_fields(io, record.next);
    return;
  }
  if constexpr (kReads) {
    record.next = record.participants;
  }
  sample_fields(io, record.next);
}

void new_fields(
    auto& io, Of<EpochRecord> auto& record, const std::vector<Member>&) {
  fields(io, record.epoch);
  fields(io, record.base);
  io.number("a configuration", record.config);
  member_fields(io, record.members);
}

// ---- the summary of a history ----

void write_lives(
    FieldWriter& writer,
    const std::map<ReplicaId, History::Incarnations>& all) {
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

void read_lives(
    FieldReader& reader, std::map<ReplicaId, History::Incarnations>& all) {
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

// Everything but the past and those of its states that were rolled back.
void summary_fields(auto& io, Of<History> auto& history) {
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

}  // namespace

std::string bytes_of(const Record& record, const std::vector<Member>& before) {
  FieldWriter writer = begun();
  writer.out.u8(static_cast<std::uint8_t>(record.index()));
  std::visit(
      [&](const auto& one) { wire::new_fields(writer, one, before); }, record);
  return writer.out.take();
}

Result<Record> record_of(
    std::string_view bytes, const std::vector<Member>& before) {
  FieldReader reader{net::ByteReader(bytes)};
  Record record;
  constexpr std::uint16_t kCommitsSayWhatChanges = 4;
  if (read_version(reader) >= kCommitsSayWhatChanges) {
    wire::read_kind(reader, "the kind of a record", record, [&](auto& one) {
      wire::new_fields(reader, one, before);
    });
  } else if (reader.in.ok()) {
    wire::fields(reader, record);
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
  wire::member_fields(writer, history.members);
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
  wire::member_fields(reader, history.members);
  std::vector<History::CommittedState> lost;
  reader.list("states that were rolled back", wire::kPastList, lost);
  for (auto& one : lost) {
    history.lost.emplace(one.state, std::move(one));
  }
  return reader.in.finish("a summary", std::move(history));
}

std::string bytes_of(const PastPiece& piece) {
  FieldWriter writer = begun();
  wire::fields(writer, piece.before);
  writer.list("committed states", wire::kPastList, piece.states);
  return writer.out.take();
}

Result<PastPiece> past_piece_of(std::string_view bytes) {
  FieldReader reader{net::ByteReader(bytes)};
  (void)read_version(reader);
  PastPiece piece;
  wire::fields(reader, piece.before);
  reader.list("committed states", wire::kPastList, piece.states);
  return reader.in.finish("committed states", std::move(piece));
}

}  // namespace sherd::ft
