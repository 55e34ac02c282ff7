// SPDX-License-Identifier: Apache-2.0
#include "world/rendezvous.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/check.h"
#include "base/clock.h"
#include "world/store_wait.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;

constexpr const char* kDisagree = "sherd/disagree";
constexpr const char* kVerdict = "sherd/verdict";
constexpr const char* kSecond = "sherd/second";
constexpr const char* kHeard = "sherd/heard";
constexpr const char* kAllHere = "all here";
// How long rank 0, whose end may be the end of the store, lets others read its verdict, including
// ranks about to arrive: all of them come if ranks disagree, and none of the missing ones if the
// time is up. And how much longer than rank 0 they wait for a verdict.
constexpr milliseconds kLinger(1000);
constexpr milliseconds kLingerForAll(5000);
constexpr milliseconds kGrace(3000);

std::string rank_key(int rank) { return str("sherd/rank/", rank); }

class Rendezvous {
 public:
  Rendezvous(
      c10d::Store& store,
      const RankRecord& mine,
      milliseconds deadline,
      const std::function<bool()>& is_over,
      const std::string& doubt)
      : store_(store),
        mine_(mine),
        deadline_(deadline),
        doubt_(doubt),
        is_over_(is_over),
        end_(clock_.now() + deadline) {}

  std::optional<std::vector<RankRecord>> run() {
    claim_rank();
    if (mine_.rank == 0) {
      judge();
    } else {
      check_size_of_rank_0();
      hear_verdict();
    }
    if (over_) {
      return std::nullopt;
    }
    std::vector<RankRecord> records;
    for (int r = 0; r < mine_.world_size; ++r) {
      records.push_back(read_record(r));
    }
    // Rank 0 keeps the store: if it failed at its very next call, the others would blame the store
    // instead of reporting the error that is the same for all.
    if (mine_.rank == 0) {
      linger(kLinger);
    } else {
      store_.add(kHeard, 1);
    }
    return records;
  }

 private:
  milliseconds left() const {
    const auto rest =
        std::chrono::duration_cast<milliseconds>(end_ - clock_.now());
    return std::max(rest, milliseconds(0));
  }

  void claim_rank() {
    // The time distinguishes two worlds of one process.
    const std::string text = str(mine_.to_text(), clock_.now().count(), "\n");
    const std::string there = store_.compareSet(rank_key(mine_.rank), "", text);
    if (there == text) {
      return;
    }
    const auto other = RankRecord::from_text(there);
    if (!other.ok() || !same_process(other.value(), mine_)) {
      // It may be one of another job, which must not end this one. If it is a rank of this job
      // under a wrong number, another rank is missing, and this is why.
      store_.set(
          kSecond,
          str("a second rank ", mine_.rank, " from ", mine_.host.hostname,
              " did (do two hosts have the same node rank?)"));
    }
    throw second_process(
        mine_, other.ok() ? std::optional(other.value()) : std::nullopt);
  }

  bool over() {
    over_ = over_ || is_over_();
    return over_;
  }

  RankRecord read_record(int rank) {
    return RankRecord::from_text(store_.get_to_str(rank_key(rank))).value();
  }

  std::string missing_ranks() {
    std::string missing;
    int count = 0;
    for (int r = 0; r < mine_.world_size; ++r) {
      if (!store_.check({rank_key(r)})) {
        missing += str(count == 0 ? "" : ", ", r);
        ++count;
      }
    }
    return str(
        "[world] expected ", mine_.world_size, " ranks within ",
        seconds(deadline_), " s, found ", mine_.world_size - count, ": rank",
        count == 1 ? " " : "s ", missing, " did not arrive",
        store_.check({kSecond}) ? ", but " + store_.get_to_str(kSecond) : "",
        doubt_);
  }

  // Only on rank 0. Throws the verdict if it is bad.
  void judge() {
    std::optional<Status> bad;
    for (int r = 1; r < mine_.world_size && !bad; ++r) {
      bad = await_arrival(r);
    }
    if (over()) {
      return;
    }
    if (!bad && store_.check({kDisagree})) {
      bad = Status(ErrorCode::kPeerMismatch, store_.get_to_str(kDisagree));
    }
    store_.set(kVerdict, bad ? bad->message() : kAllHere);
    if (bad) {
      linger(bad->code() == ErrorCode::kPeerMismatch ? kLingerForAll : kLinger);
      bad->throw_if_failed();
    }
  }

  std::optional<Status> await_arrival(int rank) {
    for (;;) {
      const bool here = wait_for_key(store_, rank_key(rank), left());
      if (store_.check({kDisagree})) {
        return Status(ErrorCode::kPeerMismatch, store_.get_to_str(kDisagree));
      }
      if (here) {
        const RankRecord other = read_record(rank);
        return other.world_size == mine_.world_size
            ? std::nullopt
            : std::optional<Status>(disagreement(mine_, other));
      }
      if (over()) {
        return std::nullopt;
      }
      if (left() == milliseconds(0)) {
        return Status(ErrorCode::kDeadlineExceeded, missing_ranks());
      }
    }
  }

  static Status disagreement(const RankRecord& root, const RankRecord& other) {
    return {
        ErrorCode::kPeerMismatch,
        str("[world] ranks disagree on the world size: rank 0 says ",
            root.world_size, ", rank ", other.rank, " says ",
            other.world_size)};
  }

  // Ends before if all others have heard.
  void linger(milliseconds longest) {
    const Instant end = clock_.now() + longest;
    // The key changes its value, which a store cannot wait for. So poll, with short waits for a key
    // that never comes.
    while (store_.add(kHeard, 0) < mine_.world_size - 1 && clock_.now() < end) {
      wait_for_key(store_, "sherd/never", milliseconds(10));
    }
  }

  void check_size_of_rank_0() {
    while (!wait_for_key(store_, rank_key(0), left())) {
      SHERD_CHECK_AS(
          kDeadlineExceeded, left() > milliseconds(0), missing_ranks());
    }
    const RankRecord root = read_record(0);
    if (root.world_size == mine_.world_size) {
      return;
    }
    // Rank 0 would not look for a rank outside its own world.
    const Status bad = disagreement(root, mine_);
    store_.set(kDisagree, bad.message());
    store_.add(kHeard, 1);
    bad.throw_if_failed();
  }

  void hear_verdict() {
    end_ += kGrace;
    while (!wait_for_key(store_, kVerdict, left())) {
      if (over()) {
        return;
      }
      SHERD_CHECK_AS(
          kDeadlineExceeded, left() > milliseconds(0), missing_ranks());
    }
    if (over()) {
      return;
    }
    const std::string verdict = store_.get_to_str(kVerdict);
    if (verdict == kAllHere) {
      return;
    }
    store_.add(kHeard, 1);
    const bool mismatch = verdict.find("disagree") != std::string::npos;
    throw Error(
        verdict,
        mismatch ? ErrorCode::kPeerMismatch : ErrorCode::kDeadlineExceeded);
  }

  c10d::Store& store_;
  const RankRecord& mine_;
  const milliseconds deadline_;
  const std::string doubt_;
  const std::function<bool()>& is_over_;
  bool over_ = false;
  const SteadyClock clock_;
  Instant end_;
};

}  // namespace

std::vector<RankRecord> rendezvous(
    c10d::Store& store,
    const RankRecord& mine,
    milliseconds deadline,
    const std::string& doubt) {
  const auto never = [] { return false; };
  return rendezvous_unless_over(store, mine, deadline, never, doubt).value();
}

std::optional<std::vector<RankRecord>> rendezvous_unless_over(
    c10d::Store& store,
    const RankRecord& mine,
    milliseconds deadline,
    const std::function<bool()>& is_over,
    const std::string& doubt) {
  try {
    return Rendezvous(store, mine, deadline, is_over, doubt).run();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(
        str("[world] the store was lost before all ranks had met; rank 0 or "
            "the launcher's agent, which keeps it, has ended: ",
            first_line_of(error)),
        ErrorCode::kPeerLost);
  }
}

std::optional<RankRecord> record_of(c10d::Store& store, int rank) {
  if (!store.check({rank_key(rank)})) {
    return std::nullopt;
  }
  return RankRecord::from_text(store.get_to_str(rank_key(rank))).value();
}

bool has_verdict(c10d::Store& store) { return store.check({kVerdict}); }

Error second_process(
    const RankRecord& mine, const std::optional<RankRecord>& other) {
  const bool ours = other && same_process(*other, mine);
  const bool elsewhere = other && !same_host(other->host, mine.host);
  return Error(
      str("[world] expected one process per rank, found a second rank ",
          mine.rank, ": pid ", mine.pid, " on ", mine.host.hostname,
          other ? str(" beside pid ", other->pid, " on ", other->host.hostname)
                : "",
          ours ? " (this process: was its earlier World not closed?)"
              : elsewhere
              ? " (do two hosts have the same node rank, or do two jobs use "
                "the same port?)"
              : " (is another job using the same port?)"),
      ErrorCode::kPeerMismatch);
}

}  // namespace sherd::world
