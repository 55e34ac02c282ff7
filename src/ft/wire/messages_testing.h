// SPDX-License-Identifier: Apache-2.0
//
// Random values of the protocol's messages and their parts, and whole messages, for tests and
// fuzzers. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>
#include "base/status.h"
#include "ft/protocol/messages.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"

namespace sherd::ft {

// Whole messages, like the first ones of a connection.
inline std::string bytes_of(const Report& report) {
  return ReportWriter().bytes_of(report);
}

inline std::string bytes_of(const RunView& view) {
  ToldView told;
  return ViewWriter().bytes_for(told, std::make_shared<const RunView>(view));
}

inline Result<Report> report_of(std::string_view bytes) {
  ReportReader reader;
  if (auto status = reader.read(bytes); !status.ok()) {
    return status;
  }
  return reader.report();
}

inline Result<RunView> run_view_of(std::string_view bytes) {
  ViewReader reader;
  if (auto status = reader.read(bytes); !status.ok()) {
    return status;
  }
  return reader.view();
}

}  // namespace sherd::ft

namespace sherd::ft::test {

class RandomMessages {
 public:
  explicit RandomMessages(std::uint64_t seed) : random_(seed) {}

  Report report() {
    Report report;
    report.run = word();
    report.replica = half();
    report.incarnation = word();
    report.serial = word();
    report.config = word();
    report.held = maybe<StateId>([&] { return state(); });
    report.joined = epoch();
    report.vote = maybe<Vote>([&] { return Vote{attempt(), state(), word()}; });
    report.suspicion = maybe<Suspicion>([&] { return suspicion(); });
    report.digest = maybe<StateDigest>([&] { return digest(); });
    report.bad_gradients = maybe<BadGradients>(
        [&] { return BadGradients{state(), ranges(), fault()}; });
    report.leaving = coin();
    report.finished = coin();
    report.addresses = some<RankAddress>([&] { return address(); });
    report.progress = progress();
    report.ranks = some<TrainingProgress>([&] { return progress(); });
    report.remembers = maybe<RunView>([&] { return memory(); });
    report.link_speeds =
        some<LinkSpeed>([&] { return LinkSpeed{half(), word()}; });
    return report;
  }

  RunView view() {
    RunView view;
    view.run = word();
    view.term = word();
    view.canonical = state();
    view.recent = some<Commit>([&] { return commit(); });
    view.epoch = epoch();
    view.stage = static_cast<EpochStage>(below(3));
    view.members = members();
    view.planned =
        maybe<EpochMembers>([&] { return EpochMembers{epoch(), members()}; });
    view.peers = some<LiveReplica>([&] {
      return LiveReplica{
          half(), word(), maybe<StateId>([&] { return state(); }),
          some<RankAddress>([&] { return address(); })};
    });
    view.wrong = maybe<StateDigest>([&] { return digest(); });
    view.fenced = text();
    view.ended = coin();
    view.starts = word();
    view.lives = some<IncarnationRecord>(
        [&] { return IncarnationRecord{half(), word()}; });
    view.consumed = taken();
    view.asks = coin();
    return view;
  }
  // The remembered part of a view.
  RunView memory() {
    RunView memory = view();
    memory.planned.reset();
    memory.peers.clear();
    memory.fenced.clear();
    memory.ended = memory.asks = false;
    return memory;
  }

  Record record() {
    switch (below(6)) {
      case 0:
        return TermRecord{word(), word()};
      case 1:
        return IncarnationRecord{half(), word()};
      case 2:
        return EpochRecord{epoch(), state(), word(), members()};
      case 3:
        return CommitRecord{
            commit(), some<Member>([&] {
              return Member{half(), word(), ranges(), ranges()};
            }),
            members()};
      case 4:
        return RollbackRecord{epoch(), state(), state()};
      default:
        return RecoveryRecord{
            word(),
            epoch(),
            members(),
            some<IncarnationRecord>(
                [&] { return IncarnationRecord{half(), word()}; }),
            state(),
            some<Commit>([&] { return commit(); }),
            some<StateId>([&] { return state(); }),
            taken()};
    }
  }

  // ---- parts of messages ----

  std::uint64_t below(std::uint64_t end) {
    return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random_);
  }
  std::uint64_t word() { return random_(); }
  std::uint32_t half() { return static_cast<std::uint32_t>(random_()); }
  std::int64_t positive() { return static_cast<std::int64_t>(word() >> 2U); }
  bool coin() { return below(2) == 1; }
  std::string text() {
    const auto letter = static_cast<char>('a' + below(26));
    return std::string(below(40), letter);
  }
  Epoch epoch() { return {word(), word()}; }
  Attempt attempt() { return {epoch(), positive()}; }
  GradientFault fault() { return {text(), coin()}; }
  Suspicion suspicion() {
    return {epoch(), half(), text(), maybe<ReplicaId>([&] { return half(); })};
  }
  StateDigest digest() { return {state(), word(), coin()}; }
  StateId state() { return {positive(), {word(), word()}}; }
  RankAddress address() {
    return {
        text(), std::uint16_t(word()), std::uint16_t(word()), {word(), word()}};
  }
  TrainingProgress progress() {
    TrainingProgress progress;
    progress.activity = static_cast<Activity>(below(6));
    progress.serial = word();
    progress.waits_for = maybe<ReplicaId>([&] { return half(); });
    progress.to_read = coin();
    progress.missed_heartbeats = half();
    progress.place = maybe<RingPosition>([&] {
      return RingPosition{epoch(),
                          some<RingLink>([&] { return RingLink{half(), half(), half()}; }),
                          half(),
                          text(),
                          positive(),
                          positive()};
    });
    progress.rank = half();
    return progress;
  }
  Commit commit() { return {attempt(), state(), state(), word(), positive()}; }
  std::vector<SampleRange> ranges() {
    return some<SampleRange>([&] {
      const auto begin = positive();
      return SampleRange{begin, begin + positive() / 2};
    });
  }
  SampleSet taken() {
    SampleSet taken;
    const auto count = static_cast<std::int64_t>(below(4));
    for (std::int64_t i = 0; i < count; ++i) {
      taken.add({10 * i, 10 * i + 1 + static_cast<std::int64_t>(below(9))});
    }
    return taken;
  }
  std::vector<Member> members() {
    return some<Member>(
        [&] { return Member{half(), word(), ranges(), ranges()}; });
  }
  template <typename T>
  std::optional<T> maybe(const std::function<T()>& make) {
    return coin() ? std::optional<T>(make()) : std::nullopt;
  }
  template <typename T>
  std::vector<T> some(const std::function<T()>& make) {
    std::vector<T> all(below(4));
    for (auto& one : all) {
      one = make();
    }
    return all;
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace sherd::ft::test
