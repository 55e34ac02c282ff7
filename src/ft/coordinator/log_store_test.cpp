// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/log_store.h"

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "base/check.h"
#include "ft/coordinator/failing_disk_testing.h"
#include "support/child_process.h"
#include "support/scratch_folder.h"

namespace sherd::ft {
namespace {

namespace fs = std::filesystem;
using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Store = std::unique_ptr<LogStore>;

Store opened(const std::string& path) {
  auto store = LogStore::open(path);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return std::move(store).value();
}

std::string refusal(const std::string& path) {
  const auto store = LogStore::open(path);
  return store.ok() ? "opened" : store.status().message();
}

Record term(std::uint64_t number) { return TermRecord{number, 77}; }
Record life(Incarnation incarnation) {
  return IncarnationRecord{0, incarnation};
}

// Does what another program might do to the file.
void run_sql(const std::string& path, const char* text) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(database, text, nullptr, nullptr, &error), SQLITE_OK)
      << error;
  sqlite3_close(database);
}

std::string bytes_at(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LogStore, WhatWasAppendedIsThereWhenOpenedAgain) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  {
    const auto store = opened(path);
    EXPECT_EQ(store->size(), 0);
    EXPECT_EQ(store->take_history(), History());
    EXPECT_TRUE(store->append({term(1), life(5)}).ok());
    EXPECT_TRUE(store->append({}).ok());
    EXPECT_TRUE(store->append({life(6)}).ok());
    EXPECT_EQ(store->size(), 3);
  }
  const auto store = opened(path);
  EXPECT_EQ(store->size(), 3);
  const History history = store->take_history();
  EXPECT_EQ(history.term, 1U);
  EXPECT_EQ(history.run, 77U);
  EXPECT_EQ(history.lives.at(0).current, 6U);
}

TEST(LogStore, TheNewestTermAloneMayAppend) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  const auto former = opened(path);
  ASSERT_TRUE(former->append({term(1)}).ok());
  const auto successor = opened(path);
  ASSERT_TRUE(former->append({life(5)}).ok());
  // It has read less than the log has now.
  auto status = successor->append({term(2)});
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  const auto again = opened(path);
  ASSERT_TRUE(again->append({term(2)}).ok());
  status = former->append({life(6)});
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr(path), HasSubstr("the log belongs to term 2 now")));
  EXPECT_TRUE(again->append({life(7)}).ok());
  EXPECT_EQ(opened(path)->size(), 4);
}

TEST(LogStore, OfTwoThatBeginTheSameTermOneIsRefused) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  const auto one = opened(path);
  const auto other = opened(path);
  EXPECT_TRUE(one->append({term(1)}).ok());
  EXPECT_EQ(other->append({term(1)}).code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(one->append({life(1)}).ok());
}

TEST(LogStore, ALockThatIsHeldIsAFailureThatPasses) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  const auto store = opened(path);
  ASSERT_TRUE(store->append({term(1)}).ok());
  sqlite3* holder = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &holder), SQLITE_OK);
  ASSERT_EQ(
      sqlite3_exec(holder, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr),
      SQLITE_OK);
  const auto status = store->append({life(1)});
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("cannot append: database is locked"));
  sqlite3_close(holder);
  EXPECT_TRUE(store->append({life(1)}).ok());
}

// ---- files of other programs, and damaged files ----

TEST(LogStore, AnotherProgramsDatabaseIsRefusedAndStaysAsItIs) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/photos.db";
  run_sql(path, "CREATE TABLE photos (name TEXT)");
  const std::string before = bytes_at(path);
  EXPECT_THAT(refusal(path), HasSubstr("found another program's database"));
  EXPECT_EQ(bytes_at(path), before);
  run_sql(path, "PRAGMA application_id = 1234");
  EXPECT_THAT(refusal(path), HasSubstr("(1234)"));
}

TEST(LogStore, AnotherVersionIsRefusedNamingBoth) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  opened(path).reset();
  run_sql(path, "PRAGMA user_version = 9");
  EXPECT_THAT(refusal(path), HasSubstr("expected version 2 to 5, found 9"));
}

// golden/log_v2.sql is what version 2 wrote.
TEST(LogStore, ALogOfAnOlderVersionIsReadAndGoneOnWith) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  run_sql(path, bytes_at(SHERD_TEST_DATA "/log_v2.sql").c_str());
  {
    const auto store = opened(path);
    EXPECT_EQ(store->size(), 13);
    const History history = store->take_history();
    EXPECT_EQ(history.term, 2U);
    EXPECT_EQ(history.run, 77U);
    EXPECT_EQ(history.config, 9U);
    EXPECT_EQ(history.epoch, (Epoch{2, 3}));
    EXPECT_EQ(history.canonical->step, 3);
    EXPECT_EQ(history.past.size(), 4U);
    EXPECT_EQ(history.lost.size(), 1U);
    EXPECT_EQ(history.lives.at(1).current, 201U);
    EXPECT_EQ(history.members.size(), 2U);
    EXPECT_EQ(history.consumed.ranges(), (std::vector<SampleRange>{{0, 30}}));
    EXPECT_TRUE(store->append({TermRecord{3, 77}}).ok());
  }
  EXPECT_EQ(opened(path)->take_history().term, 3U);
}

TEST(LogStore, AFileThatIsNoDatabaseIsRefused) {
  const ScratchFolder folder;
  const std::string path = folder.file("text", std::string(5000, 'x'));
  EXPECT_THAT(
      refusal(path), HasSubstr("expected an SQLite file, found something"));
}

TEST(LogStore, ADamagedRecordIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  ASSERT_TRUE(opened(path)->append({term(1), life(1), life(2)}).ok());
  run_sql(path, "UPDATE records SET bytes = zeroblob(9) WHERE sequence = 2");
  EXPECT_THAT(refusal(path), HasSubstr("the checksum of record 2 is wrong"));
  run_sql(path, "DELETE FROM records WHERE sequence = 2");
  EXPECT_THAT(refusal(path), HasSubstr("expected record 2, found 3"));
}

TEST(LogStore, ARecordThatCannotFollowIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  ASSERT_TRUE(opened(path)->append({term(2), term(1)}).ok());
  EXPECT_THAT(
      refusal(path),
      AllOf(
          HasSubstr("record 2 cannot follow"),
          HasSubstr("expected a term above 2, found 1")));
}

TEST(LogStore, AFolderThatIsMissingIsNamed) {
  EXPECT_THAT(
      refusal("/nowhere/at/all/log.db"),
      AllOf(
          HasSubstr("/nowhere/at/all/log.db"), HasSubstr("cannot open"),
          HasSubstr("No such file")));
}

// ---- the summary ----

// Three members train four samples each in every step.
class LongLog {
 public:
  explicit LongLog(const std::string& path, const LogStoreOptions& options)
      : path_(path), options_(options) {
    reopen();
    append(TermRecord{1, 77});
    append(EpochRecord{{1, 1}, {0, first_lineage(1, 2)}, 9, members()});
  }
  void reopen() {
    store_.reset();
    auto store = LogStore::open(path_, options_);
    ASSERT_TRUE(store.ok()) << store.status().message();
    store_ = std::move(store).value();
    const History read = store_->take_history();
    if (known_.term > 0) {
      check(read);
    }
    known_ = read;
  }
  void append(const Record& record) {
    ft::append(known_, record);
    EXPECT_TRUE(store_->append({record}).ok());
    EXPECT_TRUE(store_->summarise(known_).ok());
  }
  void commit() {
    CommitRecord record;
    record.participants = known_.members;
    record.commit = {
        {known_.epoch, known_.canonical->step + 1},
        *known_.canonical,
        {},
        5,
        12};
    record.commit.result = result_of(record);
    auto taken = known_.consumed;
    for (const auto& one : record.participants) {
      taken.add(one.samples);
    }
    record.next = members(taken);
    append(record);
  }
  void roll_back(std::int64_t steps) {
    const auto to =
        known_.past[known_.past.size() - 1 - static_cast<std::size_t>(steps)];
    const Epoch epoch{1, known_.epoch.number + 1};
    append(RollbackRecord{epoch, *known_.canonical, to.state});
    append(EpochRecord{
        {1, epoch.number + 1}, to.state, 9, members(known_.consumed)});
  }
  const History& known() const { return known_; }

 private:
  static std::vector<Member> members(SampleSet taken = {}) {
    std::vector<Member> all;
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      all.push_back({replica, 100, taken.lowest_free(4)});
      taken.add(all.back().samples);
    }
    return all;
  }
  // It may know less of the past.
  void check(const History& read) const {
    History expected = known_;
    History found = read;
    for (auto* one : {&expected, &found}) {
      one->past.clear();
      one->before_past = {};
      one->lost.clear();
    }
    EXPECT_EQ(found, expected);
    ASSERT_LE(read.past.size(), known_.past.size());
    EXPECT_TRUE(
        std::equal(read.past.rbegin(), read.past.rend(), known_.past.rbegin()));
    // Rollbacks since the last summary have made it shorter.
    EXPECT_GE(
        read.past.size(), std::min(known_.past.size(), options_.past_min / 4));
    auto taken = read.before_past;
    for (const auto& one : read.past) {
      taken.add(one.samples);
    }
    EXPECT_EQ(taken, read.consumed);
  }

  const std::string path_;
  const LogStoreOptions options_;
  std::unique_ptr<LogStore> store_;
  History known_;
};

std::int64_t count_in(const std::string& path, const char* what) {
  sqlite3* database = nullptr;
  sqlite3_open(path.c_str(), &database);
  sqlite3_stmt* query = nullptr;
  sqlite3_prepare_v2(database, what, -1, &query, nullptr);
  EXPECT_EQ(sqlite3_step(query), SQLITE_ROW);
  const auto found = sqlite3_column_int64(query, 0);
  sqlite3_finalize(query);
  sqlite3_close(database);
  return found;
}

TEST(LogStoreSummary, WithWhatFollowsItIsWhatAllRecordsAre) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const ScratchFolder folder;
  LongLog log(
      folder.path() + "/log.db",
      {.past_min = 40, .records_kept = 10, .summary_every = 7});
  for (int i = 0; i < 300; ++i) {
    const auto what = random() % 20;
    if (what == 0) {
      log.reopen();
    } else if (what == 1 && log.known().past.size() > 10) {
      log.roll_back(1 + static_cast<std::int64_t>(random() % 9));
    } else {
      log.commit();
    }
  }
  log.reopen();
}

TEST(LogStoreSummary, WhatDescendsFromADeletedStateIsForgotten) {
  const ScratchFolder folder;
  LongLog log(folder.path() + "/log.db", {.past_min = 40, .summary_every = 7});
  for (int i = 0; i < 5; ++i) {
    log.commit();
  }
  log.roll_back(3);
  EXPECT_EQ(log.known().lost.size(), 3U);
  log.commit();
  log.reopen();
  EXPECT_EQ(log.known().lost.size(), 3U);  // What led there is still known.
  for (int i = 0; i < 300; ++i) {
    log.commit();
  }
  log.reopen();
  EXPECT_THAT(log.known().lost, ::testing::IsEmpty());
}

TEST(LogStoreSummary, OldRecordsAndOldStatesAreDeleted) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  LongLog log(path, {.past_min = 50, .records_kept = 20, .summary_every = 10});
  for (int i = 0; i < 500; ++i) {
    log.commit();
  }
  log.reopen();
  EXPECT_LE(count_in(path, "SELECT count(*) FROM records"), 30);
  EXPECT_LE(log.known().past.size(), 70U);
  EXPECT_EQ(log.known().canonical->step, 500);
}

TEST(LogStoreSummary, OneThatCannotBeWrittenIsTriedAgainSomeRecordsLater) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  const auto store = LogStore::open(path, {.summary_every = 32}).value();
  History history;
  int failures = 0;
  const auto append_some = [&](std::uint64_t from, std::uint64_t to) {
    for (auto number = from; number <= to; ++number) {
      append(history, term(number));
      ASSERT_TRUE(store->append({term(number)}).ok());
      failures += store->summarise(history).ok() ? 0 : 1;
    }
  };
  run_sql(path, "ALTER TABLE summary RENAME TO moved");
  append_some(1, 50);
  EXPECT_GE(failures, 2);
  EXPECT_LE(failures, 10);
  run_sql(path, "ALTER TABLE moved RENAME TO summary");
  failures = 0;
  append_some(51, 60);
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(count_in(path, "SELECT count(*) FROM summary"), 1);
  EXPECT_EQ(opened(path)->take_history().term, 60U);
}

TEST(LogStoreSummary, OneThatIsDamagedIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  {
    LongLog log(
        path, {.past_min = 50, .records_kept = 20, .summary_every = 10});
    for (int i = 0; i < 30; ++i) {
      log.commit();
    }
  }
  run_sql(path, "UPDATE summary SET bytes = zeroblob(9) WHERE part = 0");
  EXPECT_THAT(refusal(path), HasSubstr("the checksum of its summary is wrong"));
  run_sql(path, "DELETE FROM summary WHERE part = 0");
  EXPECT_THAT(refusal(path), HasSubstr("summary"));
}

// ---- files that disappear, disks that fail ----

// SQLite reports another mode and goes on.
TEST(LogStore, ASettingThatSQLiteRefusesIsAnError) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  sqlite3_vfs* const usual = sqlite3_vfs_find(nullptr);
  // This VFS has no shared memory, which a write-ahead log needs.
  ASSERT_EQ(sqlite3_vfs_register(sqlite3_vfs_find("unix-none"), 1), SQLITE_OK);
  const auto said = refusal(path);
  ASSERT_EQ(sqlite3_vfs_register(usual, 1), SQLITE_OK);
  EXPECT_THAT(said, HasSubstr("expected journal_mode wal, found delete"));
}

TEST(LogStore, OneThatWasReplacedTakesNothingMore) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  const auto store = opened(path);
  ASSERT_TRUE(store->append({term(1), life(5)}).ok());
  fs::rename(path, path + ".moved");
  opened(folder.path() + "/other.db").reset();
  fs::rename(folder.path() + "/other.db", path);
  const auto status = store->append({life(6)});
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("it was replaced"));
  EXPECT_EQ(opened(path + ".rescued")->take_history().lives.at(0).current, 5U);
}

TEST(LogStore, WhatWasRescuedBeforeStaysAndTheNewestIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  // Returns what the store says when its file is deleted after this record.
  const auto lose_after = [&](const std::vector<Record>& records) {
    const auto store = opened(path);
    EXPECT_TRUE(store->append(records).ok());
    for (const char* end : {"", "-wal", "-shm"}) {
      fs::remove(path + end);
    }
    return store->append({life(9)}).message();
  };
  EXPECT_THAT(
      lose_after({term(1), life(5)}), HasSubstr("'" + path + ".rescued'"));
  EXPECT_THAT(refusal(path), HasSubstr("is in '" + path + ".rescued':"));
  // Somebody goes on with a copy.
  fs::copy(path + ".rescued", path);
  EXPECT_THAT(lose_after({life(6)}), HasSubstr("'" + path + ".rescued.2'"));
  EXPECT_THAT(refusal(path), HasSubstr("is in '" + path + ".rescued.2':"));
  EXPECT_EQ(opened(path + ".rescued")->take_history().lives.at(0).current, 5U);
  EXPECT_EQ(
      opened(path + ".rescued.2")->take_history().lives.at(0).current, 6U);
  // Nobody replaces the newest by what comes later.
  fs::remove(path + ".rescued");
  fs::copy(path + ".rescued.2", path);
  EXPECT_THAT(lose_after({life(7)}), HasSubstr("'" + path + ".rescued.3'"));
}

TEST(LogStore, IsNotReadBeforeTheDiskCanBeWritten) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  ASSERT_TRUE(opened(path)->append({term(1), life(1)}).ok());
  run_sql(path, "UPDATE records SET bytes = zeroblob(9) WHERE sequence = 2");
  test::fail_syncs(EIO);
  const auto said = refusal(path);
  test::fail_syncs(0);
  EXPECT_THAT(said, HasSubstr("cannot write: disk I/O error"));
  EXPECT_THAT(refusal(path), HasSubstr("the checksum of record 2 is wrong"));
}

TEST(LogStore, WithoutASyncNothingIsAppended) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  auto store = opened(path);
  ASSERT_TRUE(store->append({term(1)}).ok());
  test::fail_syncs(EIO);
  const auto status = store->append({life(1)});
  test::fail_syncs(0);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      status.message(), AllOf(HasSubstr(path), HasSubstr("disk I/O error")));
  EXPECT_EQ(opened(path)->size(), 1);
  EXPECT_TRUE(store->append({life(2)}).ok());
  store.reset();
  EXPECT_EQ(opened(path)->take_history().lives.at(0).current, 2U);
}

// Runs `body` in a child process that mounts a small disk for itself.
std::string in_small_disk(const std::function<std::string(std::string)>& body) {
  const ScratchFolder folder;
  const auto report = sherd::test::run_children(
      {.count = 1}, [&](int, sherd::test::ChildLink& link) {
        const std::string at = folder.path();
        if (::unshare(CLONE_NEWNS) != 0 ||
            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("tmpfs", at.c_str(), "tmpfs", 0, "size=512k") != 0) {
          link.report("cannot mount");
          return 0;
        }
        link.report(body(at));
        return 0;
      });
  return report.children[0].result + report.children[0].output;
}

TEST(LogStoreOnSmallDisks, AppendsAgainWhenThereIsSpaceAgain) {
  const std::string result = in_small_disk([](const std::string& folder) {
    const std::string path = folder + "/log.db";
    const std::string filler = folder + "/filler";
    std::ofstream(filler) << std::string(300000, 'x');
    auto store = LogStore::open(path).value();
    Status status = store->append({term(1)});
    std::int64_t appended = 1;
    while (status.ok() && appended < 10000) {
      status = store->append({life(static_cast<Incarnation>(appended))});
      appended += status.ok() ? 1 : 0;
    }
    std::string text = status.message();
    fs::remove(filler);
    if (store->append({life(20000)}).ok() && appended > 1) {
      text += "; again";
    }
    store.reset();
    const auto again = LogStore::open(path).value();
    return text + (again->size() == appended + 1 ? "; all there" : "; lost");
  });
  if (result == "cannot mount") {
    GTEST_SKIP() << "expected to mount a tmpfs, which only root may";
  }
  EXPECT_THAT(
      result,
      AllOf(
          HasSubstr("cannot append: database or disk is full"),
          HasSubstr("; again"), HasSubstr("; all there")));
}

TEST(LogStoreOnSmallDisks, ReadOnlyOnesAreRefused) {
  const std::string result = in_small_disk([](const std::string& folder) {
    const std::string path = folder + "/log.db";
    (void)LogStore::open(path).value()->append({term(1)});
    if (::mount(
            nullptr, folder.c_str(), nullptr, MS_REMOUNT | MS_RDONLY,
            nullptr) != 0) {
      return std::string("cannot remount: ") + std::strerror(errno);
    }
    return refusal(path) + "\n" + refusal(folder + "/other.db");
  });
  if (result == "cannot mount") {
    GTEST_SKIP() << "expected to mount a tmpfs, which only root may";
  }
  EXPECT_THAT(
      result,
      AllOf(
          HasSubstr("/log.db': cannot"), HasSubstr("/other.db': cannot open"),
          HasSubstr("Read-only file system")));
}

// ---- crashes in the middle ----

TEST(LogStoreKilled, WhatWasAcknowledgedIsThere) {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 5; ++round) {
    const ScratchFolder folder;
    const std::string path = folder.path() + "/log.db";
    sherd::test::Strike strike{
        .child = 0, .point = "goes on", .signal = SIGKILL};
    strike.later = std::chrono::microseconds(random() % 30000);
    const auto report = sherd::test::run_children(
        {.count = 1, .strikes = {strike}},
        [&](int, sherd::test::ChildLink& link) {
          const auto store = LogStore::open(path).value();
          (void)store->append({term(1)});
          link.reach("goes on");
          for (Incarnation i = 1; i < 100000; ++i) {
            if (!store->append({life(2 * i), life(2 * i + 1)}).ok()) {
              return 1;
            }
            link.report(".");
          }
          return 0;
        });
    EXPECT_EQ(report.children[0].signal, SIGKILL);
    const auto acknowledged = std::ssize(report.children[0].result);
    const auto store = opened(path);
    EXPECT_GE(store->size(), 1 + 2 * acknowledged);
    // One append may have reached the disk when the process was killed, but never half of one.
    EXPECT_LE(store->size(), 1 + 2 * (acknowledged + 1));
    EXPECT_EQ(store->size() % 2, 1);
    EXPECT_TRUE(store->append({term(2)}).ok());
  }
}

TEST(LogStoreKilled, ATornTailIsDroppedAndNothingElse) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/log.db";
  const auto store = opened(path);
  ASSERT_TRUE(store->append({term(1)}).ok());
  ASSERT_TRUE(store->append({life(1), life(2)}).ok());
  const auto size_before = bytes_at(path + "-wal").size();
  ASSERT_TRUE(store->append({life(3), life(4)}).ok());
  const std::string database = bytes_at(path);
  const std::string wal = bytes_at(path + "-wal");
  ASSERT_GT(wal.size(), size_before);

  // Syncs to a disk would take minutes here, and cannot fail. The folder has no name of sherd's,
  // since other tests count what is left under those.
  const fs::path memory("/dev/shm");
  const fs::path parent =
      fs::is_directory(memory) ? memory : fs::path(folder.path());
  const fs::path torn = parent / str("torn_log_", ::getpid());
  fs::create_directories(torn);
  const std::string copy = (torn / "log.db").string();
  for (auto cut = size_before; cut <= wal.size(); ++cut) {
    fs::remove(copy + "-shm");
    std::ofstream(copy, std::ios::binary) << database;
    std::ofstream(copy + "-wal", std::ios::binary) << wal.substr(0, cut);
    const auto found = LogStore::open(copy);
    ASSERT_TRUE(found.ok()) << cut << ": " << found.status().message();
    const bool whole = cut == wal.size();
    ASSERT_EQ(found.value()->size(), whole ? 5 : 3) << cut;
    ASSERT_EQ(
        found.value()->take_history().lives.at(0).current, whole ? 4U : 2U);
    if (cut % 97 == 0) {
      ASSERT_TRUE(found.value()->append({term(2)}).ok()) << cut;
    }
  }
  fs::remove_all(torn);
}

}  // namespace
}  // namespace sherd::ft
