// SPDX-License-Identifier: Apache-2.0
#include "ft/outcome.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "base/check.h"
#include "ft/toy_model.h"
#include "ft/wire/record_codec.h"

namespace sherd::ft::test {
namespace {

using ::testing::HasSubstr;

// Descriptors that come and go with members: connections of two epochs, a fetch.
constexpr int kDescriptorsMore = 12;
// Resident size may grow by a twentieth. A toy process is small, so the first allocations of
// threads and a snapshot or two are more than that.
constexpr double kResidentGrowth = 1.05;
constexpr std::int64_t kResidentMore = std::int64_t{8} << 20;
constexpr const char* kKinds[] = {"listens", "holds", "computes",
                                  "reaches", "fails", "is done"};

std::string name_of(const Life& life) {
  return str(
      "replica ", life.replica, " rank ", life.rank, " life ", life.life);
}

// All states that were ever committed, computed by one process from the log alone.
class Replay {
 public:
  Replay(const Outcome& outcome, int shard)
      : outcome_(outcome), shard_(shard), elements_(0) {
    for (const auto count : outcome.buckets) {
      elements_ += count;
    }
    keep(first_state(), ToyModel(elements_, shard));
    for (const auto& record : outcome.log) {
      if (const auto* commit = std::get_if<CommitRecord>(&record)) {
        make(*commit);
      }
    }
  }
  std::optional<std::uint64_t> hash_of(const StateId& state) const {
    const auto found = hashes_.find(state);
    return found == hashes_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void make(const CommitRecord& record) {
    const auto base = states_.find(record.commit.base);
    ASSERT_NE(base, states_.end()) << text_of(record.commit.base);
    std::vector<Floats> gradients;
    std::vector<double> weights;
    for (const auto& member : record.participants) {
      double samples = 0;
      for (const auto& range : member.samples) {
        samples += static_cast<double>(range.size());
      }
      weights.push_back(samples);
      gradients.emplace_back(static_cast<std::size_t>(elements_));
      base->second.gradients_of(member.samples, gradients.back().data());
    }
    ToyModel next = base->second;
    next.update(weighted_mean(gradients, weights, outcome_.buckets).data());
    keep(record.commit.result, std::move(next));
  }
  // Keeps states from which others may still be made; for older ones the hash suffices.
  void keep(const StateId& state, ToyModel model) {
    constexpr std::size_t kKept = 1000;
    hashes_.emplace(state, model.hash());
    order_.push_back(state);
    states_.emplace(state, std::move(model));
    if (order_.size() > kKept) {
      states_.erase(order_.front());
      order_.pop_front();
    }
  }

  const Outcome& outcome_;
  int shard_;
  std::int64_t elements_;
  std::map<StateId, ToyModel> states_;
  std::deque<StateId> order_;
  std::map<StateId, std::uint64_t> hashes_;
};

}  // namespace

std::set<std::string> segments() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with("sherd")) {
      names.insert(entry.path().string());
    }
  }
  return names;
}

std::vector<Record> records_of(const std::string& path) {
  sqlite3* database = nullptr;
  sqlite3_stmt* query = nullptr;
  std::vector<Record> records;
  std::vector<Member> members;
  const int code =
      sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr);
  if (code == SQLITE_OK) {
    sqlite3_prepare_v2(
        database, "SELECT bytes FROM records ORDER BY sequence", -1, &query,
        nullptr);
    while (query != nullptr && sqlite3_step(query) == SQLITE_ROW) {
      const auto* bytes =
          static_cast<const char*>(sqlite3_column_blob(query, 0));
      const auto size =
          static_cast<std::size_t>(sqlite3_column_bytes(query, 0));
      records.push_back(
          record_of(std::string_view(bytes, size), members).value());
      members = std::vector(members_after(records.back(), members));
    }
  }
  sqlite3_finalize(query);
  sqlite3_close(database);
  SHERD_CHECK(!records.empty(), "[ft] expected a log at '", path, "'");
  return records;
}

// ---- questions ----

History Outcome::history() const {
  History history;
  for (const auto& record : log) {
    append(history, record);
  }
  return history;
}

std::int64_t Outcome::epochs() const {
  std::int64_t begun = 0;
  std::int64_t used = 0;
  for (const auto& record : log) {
    begun += std::holds_alternative<EpochRecord>(record) ? 1 : 0;
    used = std::holds_alternative<CommitRecord>(record) ? begun : used;
  }
  return used;
}

std::int64_t Outcome::rollbacks() const {
  return std::count_if(log.begin(), log.end(), [](const Record& record) {
    return std::holds_alternative<RollbackRecord>(record);
  });
}

std::vector<const CommitRecord*> Outcome::chain() const {
  std::map<StateId, const CommitRecord*> all;
  for (const auto& record : log) {
    if (const auto* commit = std::get_if<CommitRecord>(&record)) {
      all[commit->commit.result] = commit;
    }
  }
  std::vector<const CommitRecord*> chain;
  const auto last = history().canonical;
  for (auto at = all.find(last.value_or(StateId())); at != all.end();
       at = all.find(at->second->commit.base)) {
    chain.push_back(at->second);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

int Outcome::members_at(std::int64_t step) const {
  for (const auto* commit : chain()) {
    if (commit->commit.result.step == step) {
      return static_cast<int>(commit->participants.size());
    }
  }
  return 0;
}

bool Outcome::committed_with(ReplicaId replica, Incarnation incarnation) const {
  const auto commits = chain();
  return std::any_of(commits.begin(), commits.end(), [&](const auto* commit) {
    return std::any_of(
        commit->participants.begin(), commit->participants.end(),
        [&](const Member& one) {
          return one.replica == replica && one.incarnation == incarnation &&
              !one.samples.empty();
        });
  });
}

std::map<std::int64_t, Instant> Outcome::first_held(
    const std::vector<ReplicaId>& replicas) const {
  std::map<std::int64_t, Instant> held;
  for (const auto& life : lives) {
    if (std::find(replicas.begin(), replicas.end(), life.replica) ==
        replicas.end()) {
      continue;
    }
    for (const auto& event : life.trace) {
      if (event.kind == TraceEvent::Kind::kHolds && event.state.step > 0) {
        const auto known = held.emplace(event.state.step, event.at).first;
        known->second = std::min(known->second, event.at);
      }
    }
  }
  return held;
}

Duration Outcome::longest_gap(const std::vector<ReplicaId>& survivors) const {
  const auto held = first_held(survivors);
  Duration longest{0};
  for (auto at = held.begin(); at != held.end(); ++at) {
    if (at != held.begin()) {
      longest = std::max(longest, at->second - std::prev(at)->second);
    }
  }
  return longest;
}

Duration Outcome::recovery() const {
  std::int64_t before = 0;
  for (const auto& life : lives) {
    for (const auto& event : life.trace) {
      if (event.kind == TraceEvent::Kind::kHolds && event.at < struck_at) {
        before = std::max(before, event.state.step);
      }
    }
  }
  Duration least = Duration::max();
  for (const auto& life : lives) {
    for (const auto& event : life.trace) {
      if (event.kind == TraceEvent::Kind::kHolds && event.state.step > before) {
        least = std::min(least, event.at - struck_at);
      }
    }
  }
  return least;
}

std::optional<std::uint64_t> Outcome::replayed(
    const StateId& state, int rank) const {
  return Replay(*this, rank).hash_of(state);
}

std::vector<ReplicaId> Outcome::all_replicas() const {
  std::set<ReplicaId> all;
  for (const auto& life : lives) {
    all.insert(life.replica);
  }
  return {all.begin(), all.end()};
}

std::vector<const Life*> Outcome::lives_of(ReplicaId replica) const {
  std::vector<const Life*> found;
  for (const auto& life : lives) {
    if (life.replica == replica) {
      found.push_back(&life);
    }
  }
  return found;
}

// ---- oracles ----

void Outcome::check(const Expectation& expected) const {
  check_log(expected);
  const int divergences = check_bits(expected.wrong_bits);
  const auto known = history();
  for (const auto& life : lives) {
    check_leaks(life);
  }
  int unused = 0;
  for (const auto replica : expected.survivors) {
    for (const auto* life : lives_of(replica)) {
      unused += check_survivor(*life);
    }
  }
  EXPECT_LE(unused, expected.unused_max);            // O5
  EXPECT_THAT(segments_left, ::testing::IsEmpty());  // O6
  if (expected.ends) {
    EXPECT_TRUE(in_time);
    EXPECT_GE(known.canonical.value_or(StateId()).step, steps);  // O4
  }
  const auto gap = longest_gap(
      expected.survivors.empty() ? all_replicas() : expected.survivors);
  if (expected.gap_max > Duration(0)) {
    EXPECT_LE(seconds(gap), seconds(expected.gap_max + stall));  // O8
  }
  for (const auto& part : expected.says) {
    EXPECT_THAT(coordinator, HasSubstr(part));  // O9
  }
  std::printf(
      "  %lld steps, %lld epochs, %zu processes, longest gap %.0f ms, "
      "longest stall %.0f ms, %d divergences\n",
      static_cast<long long>(known.canonical.value_or(StateId()).step),
      static_cast<long long>(epochs()), lives.size(), 1e3 * seconds(gap),
      1e3 * seconds(stall), divergences);
  if (::testing::Test::HasFailure()) {
    tell_all();
  }
}

void Outcome::tell_all() const {
  Instant from = Instant::max();
  for (const auto& life : lives) {
    from = life.trace.empty() ? from : std::min(from, life.trace.front().at);
  }
  for (const auto& life : lives) {
    for (const auto& event : life.trace) {
      std::printf(
          "%.1f ms: %s %s step %lld %s\n", 1e3 * seconds(event.at - from),
          name_of(life).c_str(), kKinds[static_cast<int>(event.kind)],
          static_cast<long long>(event.state.step), event.text.c_str());
    }
  }
  std::printf("the coordinator said:\n%s\n", coordinator.c_str());
  for (const auto& life : lives) {
    std::printf(
        "%s (incarnation %llu): exit %d, signal %d, %s%s\n",
        name_of(life).c_str(),
        static_cast<unsigned long long>(life.incarnation), life.exit_code,
        life.signal, life.done ? "done" : "not done",
        life.failure.empty() ? "" : (": " + life.failure).c_str());
  }
}

// O2 and O3: append() refuses records that cannot follow, including samples that were already
// trained.
void Outcome::check_log(const Expectation& expected) const {
  std::set<Attempt> attempts;
  Epoch epoch;
  std::uint64_t term = 0;
  for (const auto& record : log) {
    if (const auto* commit = std::get_if<CommitRecord>(&record)) {
      EXPECT_TRUE(attempts.insert(commit->commit.attempt).second);
      EXPECT_EQ(commit->commit.attempt.epoch, epoch);
      EXPECT_GE(
          static_cast<int>(commit->participants.size()), expected.replicas_min)
          << text_of(commit->commit.attempt);
    } else if (const auto* begins = std::get_if<EpochRecord>(&record)) {
      EXPECT_GT(begins->epoch, epoch);
      epoch = begins->epoch;
    } else if (const auto* starts = std::get_if<TermRecord>(&record)) {
      EXPECT_GT(starts->term, term);
      term = starts->term;
    }
  }
  EXPECT_NO_THROW((void)history());
}

// O1, for living and dead processes; the bits also show that gradients were of the samples that the
// log says.
int Outcome::check_bits(const std::vector<ReplicaId>& wrong) const {
  int divergences = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Replay replay(*this, rank);
    for (const auto& life : lives) {
      if (life.rank != rank ||
          std::find(wrong.begin(), wrong.end(), life.replica) != wrong.end()) {
        continue;
      }
      for (const auto& event : life.trace) {
        if (event.kind != TraceEvent::Kind::kHolds) {
          continue;
        }
        const auto expected = replay.hash_of(event.state);
        EXPECT_TRUE(expected.has_value())
            << name_of(life) << " held " << text_of(event.state)
            << ", which was never committed";
        EXPECT_EQ(expected.value_or(event.hash), event.hash)
            << name_of(life) << " at " << text_of(event.state);
        divergences += expected == event.hash ? 0 : 1;
      }
    }
  }
  return divergences;
}

// O6: compares what it has at its end with what it had after some steps.
void Outcome::check_leaks(const Life& life) const {
  constexpr int kSettled = 6;
  int held = 0;
  const TraceEvent* first = nullptr;
  const TraceEvent* last = nullptr;
  for (const auto& event : life.trace) {
    if (event.kind == TraceEvent::Kind::kHolds) {
      last = &event;
      first = ++held <= kSettled ? last : first;
    }
  }
  if (held <= kSettled) {
    return;
  }
  EXPECT_LE(last->descriptors, first->descriptors + kDescriptorsMore)
      << name_of(life);
  EXPECT_LE(last->threads, first->threads) << name_of(life);
  // AddressSanitizer keeps what has been freed, ThreadSanitizer what it knows of it.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(
      static_cast<double>(last->resident_bytes),
      static_cast<double>(first->resident_bytes) * kResidentGrowth +
          static_cast<double>(kResidentMore))
      << name_of(life);
#endif
}

// O5.
int Outcome::check_survivor(const Life& life) const {
  EXPECT_EQ(life.life, 1) << name_of(life);
  EXPECT_EQ(life.exit_code, 0) << name_of(life) << ": " << life.failure;
  std::map<StateId, int> computed;
  for (const auto& event : life.trace) {
    if (event.kind == TraceEvent::Kind::kComputes) {
      EXPECT_EQ(++computed[event.state], 1)
          << name_of(life) << " at " << text_of(event.state);
    }
  }
  // Each step that it computed was committed with it.
  int participated = 0;
  for (const auto* commit : chain()) {
    for (const auto& one : commit->participants) {
      participated +=
          one.incarnation == life.incarnation && !one.samples.empty() ? 1 : 0;
    }
  }
  return static_cast<int>(computed.size()) - participated;
}

bool are_neighbours(
    const std::vector<Member>& ring, ReplicaId one, ReplicaId other) {
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto next = ring[(i + 1) % ring.size()].replica;
    if (std::minmax(ring[i].replica, next) == std::minmax(one, other)) {
      return true;
    }
  }
  return false;
}

}  // namespace sherd::ft::test
