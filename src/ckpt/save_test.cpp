// SPDX-License-Identifier: Apache-2.0
//
// Saving over a file system that loses power at any operation.
#include "ckpt/save_protocol.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "ckpt/power_loss_testing.h"
#include "ckpt/save_testing.h"
#include "support/scratch_folder.h"

namespace sherd::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

using SaveSteps = std::vector<std::int64_t>;

// A tensor of two chunks, two sections, a single number, and an empty tensor.
SaveTensors save_tensors(int value) {
  return {
      {{"model", "weight"},
       at::arange(value, value + 300'000, at::kFloat).view({300, 1000})},
      {{"model", "bias"}, at::full({7}, value, at::kBFloat16)},
      {{"model", "nothing"}, at::empty({0, 3}, at::kFloat)},
      {{"optimizer", "exp_avg.weight"}, at::full({1000}, value, at::kDouble)},
      {{"optimizer", "step.weight"}, at::full({}, value, at::kLong)}};
}

SaveTensors save_few_tensors(int value) {
  return {
      {{"model", "weight"}, at::full({5}, value, at::kFloat)},
      {{"optimizer", "step"}, at::full({}, value, at::kLong)}};
}

// The steps that a run finds that begins after this.
SaveSteps save_steps_after_clean_up(const std::string& folder) {
  const auto files = make_posix_file_system();
  const auto status = clean_up(*files, folder);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const auto& name : files->list(folder).value()) {
    EXPECT_TRUE(!name.starts_with(".") || name == ".lock") << name;
  }
  return complete_steps(*files, folder).value();
}

std::unique_ptr<PowerLossFileSystem> save_disk() {
  auto files = std::make_unique<PowerLossFileSystem>();
  make_durable_folder(*files, kSaveFolder).throw_if_failed();
  return files;
}

// The steps that exist when power is lost during a save, and that save.
struct SaveStory {
  int ranks = 1;
  std::vector<std::pair<std::int64_t, SaveTensors>> before;
  std::int64_t step = 0;
  SaveTensors tensors;
  SaveOptions options = {.file_bytes_max = kSaveMiB};
  bool can_exchange = true;
};

std::unique_ptr<PowerLossFileSystem> save_before(const SaveStory& story) {
  auto files = save_disk();
  for (const auto& [step, tensors] : story.before) {
    EXPECT_TRUE(
        save_one(*files, save_shares(tensors, story.ranks), {.step = step})
            .ok());
  }
  return files;
}

Status save_now(FileSystem& files, const SaveStory& story) {
  return save_one(
      files, save_shares(story.tensors, story.ranks),
      {.step = story.step, .options = story.options});
}

// All operations if they are few, otherwise 20 random ones.
std::vector<std::int64_t> save_points(const SaveStory& story) {
  constexpr std::int64_t kFew = 100;
  constexpr std::uint64_t kSeed = 20;
  const auto files = save_before(story);
  files->go_on({.can_exchange = story.can_exchange});
  EXPECT_TRUE(save_now(*files, story).ok());
  std::vector<std::int64_t> points(
      static_cast<std::size_t>(files->operations() + 1));
  std::iota(points.begin(), points.end(), 0);
  if (files->operations() > kFew) {
    std::mt19937_64 random(kSeed);
    std::shuffle(points.begin(), points.end(), random);
    points.resize(20);
  }
  return points;
}

using SaveCheck =
    std::function<void(const std::string& folder, const SaveSteps&, bool ok)>;

// Checks what is left after every power loss and every kill.
void save_for_each_loss(const SaveStory& story, const SaveCheck& check) {
  const testing::ScratchFolder scratch;
  for (const auto point : save_points(story)) {
    const auto files = save_before(story);
    const auto seed = static_cast<std::uint64_t>(point);
    files->go_on(
        {.lost_at = point, .can_exchange = story.can_exchange, .seed = seed});
    const auto ok = save_now(*files, story).ok();
    for (const auto unsynced :
         {Unsynced::kNothing, Unsynced::kAll, Unsynced::kSome,
          Unsynced::kSome}) {
      SCOPED_TRACE(
          str(story.ranks, " ranks, operation and seed ", point, ", kept ",
              static_cast<int>(unsynced)));
      files->materialise(scratch.path(), unsynced);
      const auto folder = scratch.path() + "/" + kSaveFolder;
      check(folder, save_steps_after_clean_up(folder), ok);
      fs::remove_all(scratch.path());
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  }
}

TEST(Save, KillsAndPowerLossesLeaveACompleteCheckpointOrTheOneBefore) {
  for (const int ranks : {1, 2}) {
    SaveStory story{
        .ranks = ranks,
        .before = {{1, save_few_tensors(1)}},
        .step = 2,
        .tensors = save_tensors(2)};
    save_for_each_loss(
        story, [&](const std::string& folder, const SaveSteps& steps, bool ok) {
          EXPECT_THAT(steps, AnyOf(ElementsAre(1), ElementsAre(1, 2)));
          EXPECT_TRUE(!ok || steps.size() == 2);
          EXPECT_EQ(
              save_difference(folder + "/step-1", save_few_tensors(1)),
              kSaveSame);
          if (steps.size() == 2) {
            EXPECT_EQ(
                save_difference(folder + "/step-2", story.tensors), kSaveSame);
          }
        });
  }
}

TEST(Save, ReplacingTheSameStepKeepsOneOfBoth) {
  for (const bool can_exchange : {true, false}) {
    SaveStory story{
        .ranks = can_exchange ? 2 : 1,
        .before = {{1, save_few_tensors(1)}},
        .step = 1,
        .tensors = save_tensors(2),
        .can_exchange = can_exchange};
    save_for_each_loss(
        story, [&](const std::string& folder, const SaveSteps& steps, bool ok) {
          EXPECT_THAT(steps, ElementsAre(1));
          const auto path = folder + "/step-1";
          const auto now = save_difference(path, story.tensors);
          EXPECT_TRUE(
              now == kSaveSame ||
              (!ok && save_difference(path, save_few_tensors(1)) == kSaveSame))
              << now;
        });
  }
}

// Whoever loads next may not be the one that cleans up.
TEST(Save, AKillWhileAStepIsReplacedLeavesThisStep) {
  const SaveStory story{
      .before = {{1, save_few_tensors(1)}},
      .step = 1,
      .tensors = save_few_tensors(2)};
  for (const auto point : save_points(story)) {
    const testing::ScratchFolder scratch;
    const auto files = save_before(story);
    files->go_on({.lost_at = point});
    (void)save_now(*files, story);
    files->materialise(scratch.path(), Unsynced::kAll);
    const auto folder = scratch.path() + "/" + kSaveFolder;
    const auto real = make_posix_file_system();
    EXPECT_THAT(complete_steps(*real, folder).value(), ElementsAre(1))
        << "operation " << point;
  }
}

TEST(Save, APosixFileSystemExchangesFolders) {
  const testing::ScratchFolder scratch;
  const auto files = make_posix_file_system();
  const auto path = [&](const char* name) {
    return scratch.path() + "/" + name;
  };
  for (const auto* name : {"a", "b"}) {
    EXPECT_TRUE(files->make_folder(path(name)).ok());
    EXPECT_TRUE(files->create(path(name) + "/" + name).ok());
  }
  EXPECT_TRUE(files->exchange(path("a"), path("b")).value());
  EXPECT_THAT(files->list(path("a")).value(), ElementsAre("b"));
  EXPECT_THAT(files->list(path("b")).value(), ElementsAre("a"));
  EXPECT_THAT(
      files->exchange(path("a"), path("c")).status().message(),
      HasSubstr("cannot exchange"));
}

TEST(Save, ALossWhileOldOnesAreRemovedLeavesNoneInPieces) {
  SaveStory story{
      .before = {{1, save_few_tensors(1)}, {2, save_few_tensors(2)}},
      .step = 3,
      .tensors = save_few_tensors(3),
      .options = {.keep_last = 1}};
  save_for_each_loss(
      story, [&](const std::string& folder, const SaveSteps& steps, bool ok) {
        EXPECT_FALSE(steps.empty());
        EXPECT_TRUE(!ok || steps.back() == 3);
        for (const auto step : steps) {
          const auto path = folder + "/" + folder_name(step);
          const auto tensors = save_few_tensors(static_cast<int>(step));
          EXPECT_EQ(save_difference(path, tensors), kSaveSame) << step;
        }
      });
}

// Cleans up after a kill, loses power meanwhile, and looks at what is left. Returns how many
// operations the cleanup needed.
std::int64_t save_check_clean_up(
    const SaveStory& story, std::int64_t killed_at, std::int64_t lost_at) {
  SCOPED_TRACE(str("killed at ", killed_at, ", lost at ", lost_at));
  const testing::ScratchFolder scratch;
  const auto folder = scratch.path() + "/" + kSaveFolder;
  const auto files = save_before(story);
  files->go_on({.lost_at = killed_at});
  (void)save_now(*files, story);
  files->go_on({.lost_at = lost_at, .seed = 7});
  (void)clean_up(*files, kSaveFolder);
  for (int draw = 0; draw < 8; ++draw) {
    files->materialise(scratch.path(), Unsynced::kSome);
    EXPECT_THAT(save_steps_after_clean_up(folder), ElementsAre(1));
    const auto path = folder + "/step-1";
    const auto now = save_difference(path, story.tensors);
    EXPECT_TRUE(
        now == kSaveSame ||
        save_difference(path, story.before.front().second) == kSaveSame)
        << now;
    fs::remove_all(scratch.path());
  }
  return files->operations();
}

TEST(Save, CleaningUpSurvivesAnotherLoss) {
  const SaveStory story{
      .before = {{1, save_few_tensors(1)}},
      .step = 1,
      .tensors = save_few_tensors(2)};
  for (const auto killed_at : save_points(story)) {
    std::int64_t lost_at = 0;
    // Until the cleanup needs no more operations than that.
    while (save_check_clean_up(story, killed_at, lost_at) > lost_at) {
      ++lost_at;
    }
  }
}

TEST(Save, OneFailedOperationLeavesWhatWasThere) {
  const testing::ScratchFolder scratch;
  const auto folder = scratch.path() + "/" + kSaveFolder;
  for (const auto& [step, can_exchange] :
       {std::pair<std::int64_t, bool>(1, true), {1, false}, {2, true}}) {
    const SaveStory story{
        .before = {{1, save_few_tensors(1)}},
        .step = step,
        .tensors = save_few_tensors(2),
        .can_exchange = can_exchange};
    for (const auto point : save_points(story)) {
      SCOPED_TRACE(str("step ", step, ", operation ", point));
      const auto files = save_before(story);
      files->go_on({.failing_at = point, .can_exchange = can_exchange});
      const auto status = save_now(*files, story);
      const auto steps = complete_steps(*files, kSaveFolder).value();
      files->materialise(scratch.path(), Unsynced::kAll);
      if (status.ok()) {
        EXPECT_THAT(steps, Contains(step));
        EXPECT_EQ(
            save_difference(folder + "/" + folder_name(step), story.tensors),
            kSaveSame);
      } else {
        EXPECT_THAT(steps, ElementsAre(1));
        EXPECT_EQ(
            save_difference(folder + "/step-1", save_few_tensors(1)),
            kSaveSame);
      }
      fs::remove_all(scratch.path());
      // The next save succeeds.
      files->go_on({.can_exchange = can_exchange});
      EXPECT_TRUE(save_now(*files, story).ok());
      EXPECT_EQ(
          files->list(kSaveFolder).value().size(), static_cast<size_t>(step));
    }
  }
}

TEST(Save, AFailureOfOneRankIsToldToAllAndNothingIsLeft) {
  const auto files = save_disk();
  const auto pieces = save_shares(save_tensors(1), 2);
  files->go_on({.refused = "model-00001-"});
  const auto statuses = save_all(*files, pieces, {.step = 1});

  for (const auto& status : statuses) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_EQ(status.message(), statuses.front().message());
    EXPECT_THAT(
        status.message(),
        AllOf(
            HasSubstr("saving step 1: rank 1 failed: "),
            HasSubstr("cannot create"), HasSubstr("model-00001-000")));
  }
  EXPECT_THAT(files->list(kSaveFolder).value(), IsEmpty());

  files->go_on({});
  EXPECT_TRUE(save_one(*files, pieces, {.step = 1}).ok());
  EXPECT_THAT(files->list(kSaveFolder).value(), ElementsAre("step-1"));
}

TEST(Save, WhatCannotBeWrittenAtAllFailsOnEveryRank) {
  const auto files = save_disk();
  const auto good = save_shares(save_few_tensors(1), 2);
  auto name = good;
  name[1][0].name = "\xff";
  auto twice = good;
  twice[1].push_back(twice[1][0]);

  EXPECT_THAT(
      save_one(*files, name, {.step = 1}).message(),
      HasSubstr("rank 1 failed: "));
  EXPECT_THAT(
      save_one(*files, twice, {.step = 1, .options = {.file_bytes_max = 1}})
          .message(),
      AllOf(HasSubstr("rank 1 failed: "), HasSubstr("weight again")));
  EXPECT_THAT(
      save_one(*files, good, {.step = 1, .values = {{"a", "\xff"}}}).message(),
      HasSubstr("rank 0 failed: "));
  EXPECT_THAT(files->list(kSaveFolder).value(), IsEmpty());
}

TEST(Save, KeepsTheLastAndEveryNth) {
  const auto files = save_disk();
  const auto pieces = save_shares(save_few_tensors(1), 2);
  const auto steps_after = [&](std::int64_t step) {
    const SaveOptions options{.keep_last = 2, .keep_every = 3};
    const SaveJob job{.step = step, .options = options};
    EXPECT_TRUE(save_one(*files, pieces, job).ok());
    return complete_steps(*files, kSaveFolder).value();
  };
  EXPECT_THAT(steps_after(0), ElementsAre(0));
  EXPECT_THAT(steps_after(1), ElementsAre(0, 1));
  EXPECT_THAT(steps_after(2), ElementsAre(0, 1, 2));
  EXPECT_THAT(steps_after(3), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(steps_after(4), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(steps_after(5), ElementsAre(0, 3, 4, 5));
  EXPECT_THAT(steps_after(7), ElementsAre(0, 3, 5, 7));
  EXPECT_EQ(files->list(kSaveFolder).value().size(), 4U);
}

TEST(Save, NeverRemovesWhatItSavedNorWhatIsNewer) {
  const auto files = save_disk();
  const auto pieces = save_shares(save_few_tensors(1), 1);
  const auto steps_after = [&](std::int64_t step, int keep_last) {
    const SaveOptions options{.keep_last = keep_last};
    const SaveJob job{.step = step, .options = options};
    EXPECT_TRUE(save_one(*files, pieces, job).ok());
    return complete_steps(*files, kSaveFolder).value();
  };
  for (const std::int64_t step : {10, 20, 30}) {
    (void)steps_after(step, 0);
  }
  // A run that was started again from step 10.
  EXPECT_THAT(steps_after(15, 1), ElementsAre(15, 20, 30));
  EXPECT_THAT(steps_after(40, 0), ElementsAre(15, 20, 30, 40));
}

TEST(Save, NoRoomIsToldBeforeAnythingIsWritten) {
  const auto files = save_disk();
  const auto pieces = save_shares(save_tensors(1), 2);
  std::int64_t bytes = 0;
  for (const auto& [key, tensor] : save_tensors(1)) {
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  // Would refuse any file.
  files->go_on({.refused = "0", .free_bytes = bytes});
  const auto status = save_one(*files, pieces, {.step = 1});

  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      status.message(),
      AllOf(
          HasSubstr(kSaveFolder), HasSubstr("expected room for "),
          HasSubstr(str("found ", bytes))));
  EXPECT_THAT(files->list(kSaveFolder).value(), IsEmpty());
}

TEST(Save, FoldersThatLastSurviveALossOfPower) {
  const testing::ScratchFolder scratch;
  PowerLossFileSystem files;
  ASSERT_TRUE(make_durable_folder(files, "a/b/c").ok());
  ASSERT_TRUE(make_durable_folder(files, "/a/b/d/").ok());
  ASSERT_TRUE(files.make_folder("a/b/e").ok());
  files.materialise(scratch.path(), Unsynced::kNothing);
  EXPECT_TRUE(fs::is_directory(scratch.path() + "/a/b/c"));
  EXPECT_TRUE(fs::is_directory(scratch.path() + "/a/b/d"));
  EXPECT_FALSE(fs::exists(scratch.path() + "/a/b/e"));

  const auto real = make_posix_file_system();
  EXPECT_TRUE(make_durable_folder(*real, scratch.path() + "/x/y/").ok());
  EXPECT_TRUE(fs::is_directory(scratch.path() + "/x/y"));
  files.go_on({.lost_at = 0});
  EXPECT_FALSE(make_durable_folder(files, "/f/g").ok());
}

// A child that shares the descriptors of this process, as a worker of a data loader does.
class SaveForkedChild {
 public:
  explicit SaveForkedChild(const std::function<void()>& action)
      : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      action();
      ::_exit(0);
    }
  }
  SaveForkedChild(const SaveForkedChild&) = delete;
  SaveForkedChild& operator=(const SaveForkedChild&) = delete;
  ~SaveForkedChild() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  void wait() { ::waitpid(std::exchange(pid_, -1), nullptr, 0); }

 private:
  pid_t pid_;
};

TEST(Save, AFolderThatIsLetGoIsFreeThoughAForkedChildLives) {
  const testing::ScratchFolder scratch;
  auto lock = std::make_unique<FolderLock>(lock_folder(scratch.path()).value());
  const SaveForkedChild child([] { ::pause(); });
  EXPECT_THAT(
      lock_folder(scratch.path()).status().message(),
      HasSubstr("another run does"));
  lock.reset();
  const auto again = lock_folder(scratch.path());
  EXPECT_TRUE(again.ok()) << again.status().message();
}

TEST(Save, AForkedChildDoesNotLetGoOfTheFolder) {
  const testing::ScratchFolder scratch;
  auto lock = std::make_unique<FolderLock>(lock_folder(scratch.path()).value());
  SaveForkedChild child([&] { lock.reset(); });
  child.wait();
  EXPECT_THAT(
      lock_folder(scratch.path()).status().message(),
      HasSubstr("another run does"));
}

TEST(Save, AFolderIsSharedByProcessesOfOneRunAtATime) {
  const testing::ScratchFolder scratch;
  const auto shares = [&](std::uint64_t run) {
    return share_folder(scratch.path(), run, Duration(0));
  };
  {
    const auto one = shares(7);
    ASSERT_TRUE(one.ok()) << one.status().message();
    const auto other = shares(7);
    EXPECT_TRUE(other.ok()) << other.status().message();
    const auto refused = shares(8);
    EXPECT_EQ(refused.status().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.status().message(), HasSubstr("another run does"));
    EXPECT_TRUE(shares(7).ok());
  }
  const auto next = shares(8);
  EXPECT_TRUE(next.ok()) << next.status().message();
  EXPECT_FALSE(shares(7).ok());
}

}  // namespace
}  // namespace sherd::ckpt
