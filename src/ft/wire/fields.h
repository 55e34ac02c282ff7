// SPDX-License-Identifier: Apache-2.0
//
// Lists the fields of each value in the messages between replicas, ranks and the coordinator: once
// for writing and reading, and once for all messages that contain the value. Thread rule: pure
// functions on values.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>
#include "base/check.h"
#include "base/printable.h"
#include "ft/protocol/messages.h"
#include "ft/wire/codec.h"
#include "net/bytes.h"

namespace sherd::ft::wire {

// fields(io, value) writes the value if `io` is a FieldWriter (then the value may be const), or fills
// it if `io` is a FieldReader.
template <typename Value, typename T>
concept Of = std::same_as<std::remove_const_t<Value>, T>;

using ListLimits = net::ByteReader::Limits;
inline constexpr ListLimits kRangeList{CodecLimits::kRanges, 16};
inline constexpr ListLimits kMemberList{CodecLimits::kMembers, 16};
inline constexpr ListLimits kLifeList{CodecLimits::kMembers, 12};
inline constexpr ListLimits kStateList{CodecLimits::kMembers, 24};
inline constexpr ListLimits kTakenList{std::size_t{1} << 24U, 16};
inline constexpr ListLimits kPeerList{CodecLimits::kMembers, 16};
inline constexpr ListLimits kAddressList{CodecLimits::kAddresses, 24};
inline constexpr ListLimits kLinkList{64, 12};
inline constexpr ListLimits kCommitList{CodecLimits::kCommits, 80};

struct FieldWriter {
  net::ByteWriter out;

  void number(const char*, std::uint64_t value) { out.u64(value); }
  void number(const char*, std::int64_t value) { out.i64(value); }
  void number(const char*, std::uint32_t value) { out.u32(value); }
  void number(const char*, std::uint16_t value) { out.u16(value); }
  void number(const char*, std::int32_t value) {
    number({}, std::int64_t{value});
  }
  void real(const char*, double value) { out.f64(value); }
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
  void maybe(const char*, const std::optional<T>& value) {
    out.boolean(value.has_value());
    if (value) {
      fields(*this, *value);
    }
  }
  template <typename T>
  void list(
      const char* what, const ListLimits& limits, const std::vector<T>& value) {
    SHERD_CHECK(
        value.size() <= limits.elements_max, "[ft] expected at most ",
        limits.elements_max, " ", what, ", found ", value.size());
    out.count(value.size());
    for (const T& one : value) {
      fields(*this, one);
    }
  }
};

struct FieldReader {
  net::ByteReader in;
  // Texts from others reach logs, pages and terminals in many ways.
  bool makes_printable = false;

  void number(const char* what, std::uint64_t& value) { value = in.u64(what); }
  void number(const char* what, std::int64_t& value) {
    value = in.i64(what);
    if (value < 0) {
      in.fail(str("expected 0 or more as ", what, ", found ", value));
    }
  }
  void number(const char* what, std::uint32_t& value) { value = in.u32(what); }
  void number(const char* what, std::uint16_t& value) { value = in.u16(what); }
  void number(const char* what, std::int32_t& value) {
    std::int64_t wide = 0;
    number(what, wide);
    if (wide > INT32_MAX) {
      in.fail(
          str("expected at most ", INT32_MAX, " as ", what, ", found ", wide));
    }
    value = static_cast<std::int32_t>(wide);
  }
  void real(const char* what, double& value) { value = in.f64(what); }
  void flag(const char* what, bool& value) { value = in.boolean(what); }
  template <typename Enum>
  void choice(const char* what, Enum& value, Enum last) {
    value = static_cast<Enum>(in.choice(what, static_cast<std::uint8_t>(last)));
  }
  void reason(const char* what, std::string& value) { name(what, value); }
  void name(const char* what, std::string& value) {
    value = in.text(what, CodecLimits::kTextBytes);
    if (makes_printable) {
      value = printable(value, kShownBytesMax);
    }
  }
  template <typename T>
  void maybe(const char* what, std::optional<T>& value) {
    value.reset();
    if (in.boolean(what)) {
      fields(*this, value.emplace());
    }
  }
  template <typename T>
  void list(const char* what, const ListLimits& limits, std::vector<T>& value) {
    value.resize(in.count(what, limits));
    for (T& one : value) {
      if (!in.ok()) {
        return;
      }
      fields(*this, one);
    }
  }
};

// ---- the values of identity.h and messages.h ----

void fields(auto& io, Of<std::uint32_t> auto& value) {
  io.number("a replica", value);
}

void fields(auto& io, Of<Epoch> auto& epoch) {
  io.number("a term", epoch.term);
  io.number("an epoch", epoch.number);
}

void fields(auto& io, Of<Attempt> auto& attempt) {
  fields(io, attempt.epoch);
  io.number("a step", attempt.step);
}

void fields(auto& io, Of<StateId> auto& state) {
  io.number("a step", state.step);
  io.number("a lineage", state.lineage.high);
  io.number("a lineage", state.lineage.low);
}

template <typename Io>
void fields(Io& io, Of<SampleRange> auto& range) {
  io.number("the first sample", range.begin);
  io.number("the end of samples", range.end);
  if constexpr (std::is_same_v<Io, FieldReader>) {
    if (range.begin > range.end) {
      io.in.fail(
          str("expected samples in order, found [", range.begin, ", ",
              range.end, ")"));
    }
  }
}

void fields(auto& io, Of<Member> auto& member) {
  io.number("a replica", member.replica);
  io.number("an incarnation", member.incarnation);
  io.list("ranges of samples", kRangeList, member.samples);
  io.list("ranges of samples", kRangeList, member.left_out);
}

void fields(auto& io, Of<Vote> auto& vote) {
  fields(io, vote.attempt);
  fields(io, vote.base);
  io.number("a digest", vote.gradients);
}

void fields(auto& io, Of<Suspicion> auto& suspicion) {
  fields(io, suspicion.epoch);
  io.number("a replica", suspicion.accused);
  io.reason("a reason", suspicion.reason);
  io.maybe("who noticed it", suspicion.noticed_by);
}

void fields(auto& io, Of<StateDigest> auto& digest) {
  fields(io, digest.state);
  io.number("a digest", digest.digest);
  io.flag("whether it was copied", digest.copied);
}

void fields(auto& io, Of<GradientFault> auto& fault) {
  io.reason("a reason", fault.reason);
  io.flag("whether to stop", fault.stop);
}

void fields(auto& io, Of<BadGradients> auto& bad) {
  fields(io, bad.base);
  io.list("ranges of samples", kRangeList, bad.samples);
  fields(io, bad.fault);
}

void fields(auto& io, Of<RingKey> auto& key) {
  io.number("a key", key.high);
  io.number("a key", key.low);
}

void fields(auto& io, Of<RankAddress> auto& address) {
  io.name("a host", address.host);
  io.number("a port", address.reduce_port);
  io.number("a port", address.fetch_port);
  fields(io, address.key);
}

void fields(auto& io, Of<RingLink> auto& link) {
  io.number("a replica", link.peer);
  io.number("frames that came", link.frames_in);
  io.number("frames that went", link.frames_out);
}

void fields(auto& io, Of<LinkSpeed> auto& link) {
  io.number("a replica", link.peer);
  io.number("bytes a second", link.bytes_per_s);
}

void fields(auto& io, Of<RingPosition> auto& place) {
  fields(io, place.epoch);
  io.list("links", kLinkList, place.links);
  io.number("a bucket", place.bucket);
  io.reason("a unit", place.unit);
  io.number("slices that are done", place.slices_done);
  io.number("slices", place.slices);
}

void fields(auto& io, Of<TrainingProgress> auto& progress) {
  io.choice("an activity", progress.activity, Activity::kOtherWork);
  io.number("a serial", progress.serial);
  io.maybe("who is waited for", progress.waits_for);
  io.flag("whether it is to read", progress.to_read);
  io.number("beats", progress.missed_heartbeats);
  io.maybe("a place in a ring", progress.place);
  io.number("a rank", progress.rank);
}

void fields(auto& io, Of<Commit> auto& commit) {
  fields(io, commit.attempt);
  fields(io, commit.base);
  fields(io, commit.result);
  io.number("a digest", commit.gradients);
  io.number("samples", commit.samples);
}

void fields(auto& io, Of<IncarnationRecord> auto& record) {
  io.number("a replica", record.replica);
  io.number("an incarnation", record.incarnation);
}

template <typename Io>
void fields(Io& io, Of<SampleSet> auto& set) {
  if constexpr (std::is_same_v<Io, FieldReader>) {
    std::vector<SampleRange> ranges;
    io.list("samples that are taken", kTakenList, ranges);
    set = {};
    for (std::size_t i = 0; i < ranges.size() && io.in.ok(); ++i) {
      if (ranges[i].size() == 0 ||
          (i > 0 && ranges[i].begin <= ranges[i - 1].end)) {
        io.in.fail("expected ranges that ascend, found others");
        return;
      }
      set.add(ranges[i]);
    }
  } else {
    io.list("samples that are taken", kTakenList, set.ranges());
  }
}

inline constexpr ListLimits kHostList{CodecLimits::kAddresses, 24};
inline constexpr ListLimits kPortList{CodecLimits::kAddresses, 4};

void fields(auto& io, Of<RankAddresses::Ports> auto& ports) {
  io.number("a port", ports.reduce);
  io.number("a port", ports.fetch);
}

void fields(auto& io, Of<RankAddresses::HostRanks> auto& host) {
  io.name("a host", host.host);
  fields(io, host.key);
  io.list("addresses", kPortList, host.ports);
}

inline std::string too_many_addresses(std::size_t found) {
  return str(
      "expected at most ", kPortList.elements_max, " addresses, found ", found);
}

template <typename Io>
void fields(Io& io, Of<RankAddresses> auto& addresses) {
  if constexpr (std::is_same_v<Io, FieldReader>) {
    std::vector<RankAddresses::HostRanks> hosts;
    io.list("hosts", kHostList, hosts);
    addresses = RankAddresses(std::move(hosts));
    if (addresses.size() > kPortList.elements_max) {
      io.in.fail(too_many_addresses(addresses.size()));
    }
  } else {
    SHERD_CHECK(
        addresses.size() <= kPortList.elements_max, "[ft] ",
        too_many_addresses(addresses.size()));
    io.list("hosts", kHostList, addresses.hosts());
  }
}

// Without what it holds, which changes with each step and is sent separately.
void fields(auto& io, Of<LiveReplica> auto& peer) {
  io.number("a replica", peer.replica);
  io.number("an incarnation", peer.incarnation);
  fields(io, peer.addresses);
}

// ---- one of several kinds: its index, and its fields ----

template <typename... Kinds>
void fields(FieldWriter& writer, const std::variant<Kinds...>& value) {
  writer.out.u8(static_cast<std::uint8_t>(value.index()));
  std::visit([&](const auto& one) { fields(writer, one); }, value);
}

// Makes `value` the encoded kind, and has `read` fill it.
template <typename... Kinds, typename Read>
void read_kind(
    FieldReader& reader,
    const char* what,
    std::variant<Kinds...>& value,
    const Read& read) {
  const std::size_t kind = reader.in.choice(what, sizeof...(Kinds) - 1);
  std::size_t index = 0;
  ((index++ == kind ? read(value.template emplace<Kinds>()) : void()), ...);
}

template <typename... Kinds>
void fields(FieldReader& reader, std::variant<Kinds...>& value) {
  read_kind(reader, "a kind", value, [&](auto& one) { fields(reader, one); });
}

// ---- whole messages ----

template <typename T>
std::string encoded(const T& value) {
  FieldWriter writer;
  fields(writer, value);
  return writer.out.take();
}

// A failure says what was expected and found; no byte may be left over.
template <typename T>
Result<T> decoded(std::string_view bytes, const char* message) {
  FieldReader reader{net::ByteReader(bytes)};
  T value;
  fields(reader, value);
  return reader.in.finish(message, std::move(value));
}

}  // namespace sherd::ft::wire
