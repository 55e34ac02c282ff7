// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/codec.h"

#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "net/bytes.h"

namespace sherd::ft {
namespace {

// What is written of a value is listed once, in the functions fields(), for both
// ways: `io` is a Writer and the value const, or a Reader and it is filled.
struct Writer;
struct Reader;
template <typename Io, typename T>
using Of = std::conditional_t<std::is_same_v<Io, Writer>, const T, T>;

struct ListLimits {
  std::size_t elements_max;
  std::size_t element_bytes;  // At least.
};
constexpr ListLimits kRangeList{CodecLimits::kRanges, 16};
constexpr ListLimits kMemberList{CodecLimits::kMembers, 16};
constexpr ListLimits kPeerList{CodecLimits::kMembers, 17};
constexpr ListLimits kAddressList{CodecLimits::kAddresses, 8};
constexpr ListLimits kCommitList{CodecLimits::kCommits, 80};

struct Writer {
  net::ByteWriter out;

  void number(const char*, std::uint64_t value) { out.u64(value); }
  void number(const char*, std::int64_t value) { out.i64(value); }
  void number(const char*, std::uint32_t value) { out.u32(value); }
  void number(const char*, std::uint16_t value) { out.u16(value); }
  void flag(const char*, bool value) { out.boolean(value); }
  template <typename Enum>
  void choice(const char*, Enum value, Enum) {
    out.u8(static_cast<std::uint8_t>(value));
  }
  void reason(const char*, const std::string& value) {
    out.text(std::string_view(value).substr(0, CodecLimits::kTextBytes));
  }
  void name(const char* what, const std::string& value) {
    SHERD_CHECK(
        value.size() <= CodecLimits::kTextBytes, "[ft] expected at most ",
        CodecLimits::kTextBytes, " bytes of ", what, ", found ", value.size());
    out.text(value);
  }
  template <typename T>
  void maybe(const char* what, const std::optional<T>& value);
  template <typename T>
  void list(
      const char* what, const ListLimits& limits, const std::vector<T>& value);
};

struct Reader {
  net::ByteReader in;

  void number(const char* what, std::uint64_t& value) { value = in.u64(what); }
  void number(const char* what, std::int64_t& value) {
    value = in.i64(what);
    if (value < 0) {
      in.fail(str("expected 0 or more as ", what, ", found ", value));
    }
  }
  void number(const char* what, std::uint32_t& value) { value = in.u32(what); }
  void number(const char* what, std::uint16_t& value) { value = in.u16(what); }
  void flag(const char* what, bool& value) { value = in.boolean(what); }
  template <typename Enum>
  void choice(const char* what, Enum& value, Enum last) {
    value = static_cast<Enum>(in.choice(what, static_cast<std::uint8_t>(last)));
  }
  void reason(const char* what, std::string& value) { name(what, value); }
  void name(const char* what, std::string& value) {
    value = in.text(what, CodecLimits::kTextBytes);
  }
  template <typename T>
  void maybe(const char* what, std::optional<T>& value);
  template <typename T>
  void list(const char* what, const ListLimits& limits, std::vector<T>& value);
};

// ---- the values of messages.h, field by field ----

template <typename Io>
void fields(Io& io, Of<Io, std::uint32_t>& value) {
  io.number("a replica", value);
}

template <typename Io>
void fields(Io& io, Of<Io, Epoch>& epoch) {
  io.number("a term", epoch.term);
  io.number("an epoch", epoch.number);
}

template <typename Io>
void fields(Io& io, Of<Io, Attempt>& attempt) {
  fields(io, attempt.epoch);
  io.number("a step", attempt.step);
}

template <typename Io>
void fields(Io& io, Of<Io, StateId>& state) {
  io.number("a step", state.step);
  io.number("a lineage", state.lineage.high);
  io.number("a lineage", state.lineage.low);
}

template <typename Io>
void fields(Io& io, Of<Io, SampleRange>& range) {
  io.number("the first sample", range.begin);
  io.number("the end of samples", range.end);
  if constexpr (std::is_same_v<Io, Reader>) {
    if (range.begin > range.end) {
      io.in.fail(
          str("expected samples in order, found [", range.begin, ", ",
              range.end, ")"));
    }
  }
}

// Participant and Member have the same.
template <typename Io, typename T>
void fields_of_member(Io& io, T& member) {
  io.number("a replica", member.replica);
  io.number("an incarnation", member.incarnation);
  io.list("ranges of samples", kRangeList, member.samples);
}
template <typename Io>
void fields(Io& io, Of<Io, Member>& member) {
  fields_of_member(io, member);
}
template <typename Io>
void fields(Io& io, Of<Io, Participant>& participant) {
  fields_of_member(io, participant);
}

template <typename Io>
void fields(Io& io, Of<Io, Vote>& vote) {
  fields(io, vote.attempt);
  fields(io, vote.base);
  io.number("a digest", vote.gradients);
}

template <typename Io>
void fields(Io& io, Of<Io, Suspicion>& suspicion) {
  fields(io, suspicion.epoch);
  io.number("a replica", suspicion.accused);
  io.reason("a reason", suspicion.reason);
}

template <typename Io>
void fields(Io& io, Of<Io, RankAddress>& address) {
  io.name("a host", address.host);
  io.number("a port", address.reduce_port);
  io.number("a port", address.fetch_port);
}

template <typename Io>
void fields(Io& io, Of<Io, Progress>& progress) {
  io.choice("an activity", progress.activity, Activity::kFetching);
  io.number("a serial", progress.serial);
  io.maybe("who is waited for", progress.waits_for);
}

template <typename Io>
void fields(Io& io, Of<Io, Commit>& commit) {
  fields(io, commit.attempt);
  fields(io, commit.base);
  fields(io, commit.result);
  io.number("a digest", commit.gradients);
  io.number("samples", commit.samples);
}

template <typename Io>
void fields(Io& io, Of<Io, PlannedEpoch>& planned) {
  fields(io, planned.epoch);
  io.list("members", kMemberList, planned.members);
}

template <typename Io>
void fields(Io& io, Of<Io, Peer>& peer) {
  io.number("a replica", peer.replica);
  io.number("an incarnation", peer.incarnation);
  io.maybe("a state", peer.held);
  io.list("addresses", kAddressList, peer.addresses);
}

template <typename Io>
void fields(Io& io, Of<Io, Report>& report) {
  io.number("a run", report.run);
  io.number("a replica", report.replica);
  io.number("an incarnation", report.incarnation);
  io.number("a configuration", report.config);
  io.maybe("a state", report.held);
  fields(io, report.joined);
  io.maybe("a vote", report.vote);
  io.maybe("a suspicion", report.suspicion);
  io.flag("whether it leaves", report.leaving);
  io.flag("whether it has finished", report.finished);
  io.list("addresses", kAddressList, report.addresses);
  fields(io, report.progress);
}

template <typename Io>
void fields(Io& io, Of<Io, Order>& order) {
  io.number("a run", order.run);
  io.number("a term", order.term);
  fields(io, order.canonical);
  io.list("commits", kCommitList, order.recent);
  fields(io, order.epoch);
  io.choice("a stage", order.stage, Stage::kClosed);
  io.list("members", kMemberList, order.members);
  io.maybe("a planned epoch", order.planned);
  io.list("peers", kPeerList, order.peers);
  io.reason("a reason", order.fenced);
}

template <typename Io>
void fields(Io& io, Of<Io, TermRecord>& record) {
  io.number("a term", record.term);
  io.number("a run", record.run);
}

template <typename Io>
void fields(Io& io, Of<Io, LifeRecord>& record) {
  io.number("a replica", record.replica);
  io.number("an incarnation", record.incarnation);
}

template <typename Io>
void fields(Io& io, Of<Io, EpochRecord>& record) {
  fields(io, record.epoch);
  fields(io, record.base);
  io.number("a configuration", record.config);
  io.list("members", kMemberList, record.members);
}

template <typename Io>
void fields(Io& io, Of<Io, CommitRecord>& record) {
  fields(io, record.commit);
  io.list("participants", kMemberList, record.participants);
  io.list("members", kMemberList, record.next);
}

template <typename Io>
void fields(Io& io, Of<Io, RollbackRecord>& record) {
  fields(io, record.epoch);
  fields(io, record.lost);
  fields(io, record.canonical);
}

// ---- lists and what may be missing ----

template <typename T>
void Writer::maybe(const char*, const std::optional<T>& value) {
  out.boolean(value.has_value());
  if (value) {
    fields<Writer>(*this, *value);
  }
}

template <typename T>
void Reader::maybe(const char* what, std::optional<T>& value) {
  if (in.boolean(what)) {
    fields<Reader>(*this, value.emplace());
  }
}

template <typename T>
void Writer::list(
    const char* what, const ListLimits& limits, const std::vector<T>& value) {
  SHERD_CHECK(
      value.size() <= limits.elements_max, "[ft] expected at most ",
      limits.elements_max, " ", what, ", found ", value.size());
  out.count(value.size());
  for (const T& one : value) {
    fields<Writer>(*this, one);
  }
}

template <typename T>
void Reader::list(
    const char* what, const ListLimits& limits, std::vector<T>& value) {
  value.resize(in.count(
      what,
      {.elements_max = limits.elements_max,
       .element_bytes = limits.element_bytes}));
  for (T& one : value) {
    if (!in.ok()) {
      return;
    }
    fields<Reader>(*this, one);
  }
}

void read_version(Reader& reader) {
  const std::uint16_t version = reader.in.u16("the version");
  if (version != kCodecVersion) {
    reader.in.fail(
        str("expected version ", kCodecVersion, ", found ", version));
  }
}

template <typename T>
std::string written(const T& value) {
  Writer writer;
  writer.out.u16(kCodecVersion);
  fields<Writer>(writer, value);
  return writer.out.take();
}

template <typename T>
Result<T> read(const char* what, std::string_view bytes) {
  Reader reader{net::ByteReader(bytes)};
  read_version(reader);
  T value;
  fields<Reader>(reader, value);
  if (auto status = reader.in.finish(what); !status.ok()) {
    return status;
  }
  return value;
}

// The I-th kind of record, if it is the one that is meant.
template <std::size_t I = 0>
void read_record(Reader& reader, std::size_t kind, Record& record) {
  if constexpr (I < std::variant_size_v<Record>) {
    if (I == kind) {
      fields<Reader>(reader, record.emplace<I>());
    } else {
      read_record<I + 1>(reader, kind, record);
    }
  }
}

}  // namespace

std::string bytes_of(const Report& report) { return written(report); }
std::string bytes_of(const Order& order) { return written(order); }

std::string bytes_of(const Record& record) {
  Writer writer;
  writer.out.u16(kCodecVersion);
  writer.out.u8(static_cast<std::uint8_t>(record.index()));
  std::visit([&](const auto& one) { fields<Writer>(writer, one); }, record);
  return writer.out.take();
}

Result<Report> report_of(std::string_view bytes) {
  return read<Report>("a report", bytes);
}

Result<Order> order_of(std::string_view bytes) {
  return read<Order>("an order", bytes);
}

Result<Record> record_of(std::string_view bytes) {
  Reader reader{net::ByteReader(bytes)};
  read_version(reader);
  Record record;
  const std::size_t kind =
      reader.in.choice("the kind of a record", std::variant_size_v<Record> - 1);
  read_record(reader, kind, record);
  if (auto status = reader.in.finish("a record"); !status.ok()) {
    return status;
  }
  return record;
}

}  // namespace sherd::ft
