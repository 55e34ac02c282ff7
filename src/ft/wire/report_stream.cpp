// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/report_stream.h"

#include <utility>

#include "ft/wire/parts.h"
#include "ft/wire/view_parts.h"

namespace sherd::ft {
namespace wire {

inline constexpr std::size_t kAddressesPart = 9;
inline constexpr std::size_t kRanksPart = 11;
inline constexpr std::size_t kRemembersPart = 12;
inline constexpr std::size_t kLinkSpeedsPart = 13;
// One entry for each rank that has something new to report, with its index in the list if not all
// ranks have.
inline constexpr ListLimits kNewsList{CodecLimits::kRanksReported, 20};

// The remembered parts of a replica's last view.
void fields(auto& io, Of<RunView> auto& view) {
  for (const auto part :
       {ViewPart::kRun, ViewPart::kCanonical, ViewPart::kEpoch,
        ViewPart::kLives, ViewPart::kConsumed}) {
    view_part(io, view, part);
  }
  io.list("commits", kCommitList, view.recent);
  member_fields(io, view.members);
  io.maybe("a digest", view.wrong);
}

void report_part(auto& io, Of<Report> auto& report, std::size_t part) {
  switch (part) {
    case 0:
      io.number("a run", report.run);
      io.number("a replica", report.replica);
      io.number("an incarnation", report.incarnation);
      io.number("a configuration", report.config);
      return;
    case 1:
      return io.number("a serial", report.serial);
    case 2:
      return io.maybe("a state", report.held);
    case 3:
      return fields(io, report.joined);
    case 4:
      return io.maybe("a vote", report.vote);
    case 5:
      return io.maybe("a suspicion", report.suspicion);
    case 6:
      return io.maybe("a digest", report.digest);
    case 7:
      return io.maybe("bad gradients", report.bad_gradients);
    case 8:
      io.flag("whether it leaves", report.leaving);
      return io.flag("whether it has finished", report.finished);
    case kAddressesPart:
      return fields(io, report.addresses);
    case kRemembersPart:
      return io.maybe("what it remembers", report.remembers);
    case kLinkSpeedsPart:
      return io.list("speeds of links", kLinkList, report.link_speeds);
    default:
      return fields(io, report.progress);
  }
}

// The number of ranks, and those that report something new.
void read_ranks(FieldReader& reader, std::vector<TrainingProgress>& ranks) {
  const auto count = reader.in.u32("ranks");
  const auto news = reader.in.count("progress of ranks", kNewsList);
  if (count > CodecLimits::kRanksReported || count > ranks.size() + news) {
    reader.in.fail(
        str("expected the progress of ", count, " ranks, found ",
            ranks.size() + news));
    return;
  }
  ranks.resize(count);
  for (std::size_t i = 0; i < news && reader.in.ok(); ++i) {
    const auto rank =
        news < count ? reader.in.u32("a rank") : static_cast<std::uint32_t>(i);
    if (rank >= count) {
      reader.in.fail(str("expected a rank below ", count, ", found ", rank));
      return;
    }
    ranks[rank] = {};
    fields(reader, ranks[rank]);
  }
}

}  // namespace wire

using wire::FieldReader;
using wire::FieldWriter;

std::string ReportWriter::ranks_bytes(
    const std::vector<TrainingProgress>& ranks) {
  SHERD_CHECK(
      ranks.size() <= CodecLimits::kRanksReported, "[ft] expected at most ",
      CodecLimits::kRanksReported, " ranks in a report, found ", ranks.size());
  std::vector<std::string> said;
  std::vector<std::size_t> news;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    said.push_back(wire::encoded(ranks[rank]));
    if (rank >= ranks_.size() || said[rank] != ranks_[rank]) {
      news.push_back(rank);
    }
  }
  const bool same = news.empty() && said.size() == ranks_.size();
  ranks_ = std::move(said);
  if (same && messages_ != 0) {
    return {};
  }
  FieldWriter all;
  all.out.count(ranks_.size());
  all.out.count(news.size());
  for (const auto rank : news) {
    // Otherwise the entries are in the order of the ranks.
    if (news.size() < ranks_.size()) {
      all.out.u32(static_cast<std::uint32_t>(rank));
    }
    all.out.raw(ranks_[rank]);
  }
  return all.out.take();
}

std::string ReportWriter::bytes_of(const Report& report) {
  wire::PartMask mask = 0;
  std::string parts;
  for (std::size_t part = 0; part < kReportParts; ++part) {
    // Later parts are left out until they say something for the first time.
    if (part >= kFirstReportParts && said_[part].empty() &&
        (part == wire::kRemembersPart ? !report.remembers
                                      : report.link_speeds.empty())) {
      continue;
    }
    std::string said;
    if (part == wire::kRanksPart) {
      said = ranks_bytes(report.ranks);
    } else if (
        part != wire::kAddressesPart || messages_ == 0 ||
        report.addresses != addresses_) {
      FieldWriter writer;
      wire::report_part(writer, report, part);
      said = writer.out.take();
    }
    const bool has_news =
        part == wire::kRanksPart || part == wire::kAddressesPart
        ? !said.empty()
        : messages_ == 0 || said != said_[part];
    if (has_news) {
      mask |= wire::bit(part);
      parts += said;
      said_[part] = std::move(said);
    }
  }
  said_[wire::kAddressesPart].clear();
  said_[wire::kRanksPart].clear();
  addresses_ = report.addresses;
  return wire::message_of(++messages_, mask, {parts});
}

Status ReportReader::read(std::string_view bytes) {
  const auto read_part = [&](FieldReader& reader, std::size_t part) {
    if (part == wire::kRanksPart) {
      wire::read_ranks(reader, report_.ranks);
    } else {
      wire::report_part(reader, report_, part);
    }
  };
  return wire::read_message(
      bytes, kFirstReportParts, kReportParts, "a report", messages_, read_part);
}

}  // namespace sherd::ft
