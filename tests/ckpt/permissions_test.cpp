// SPDX-License-Identifier: Apache-2.0
//
// Folders that a rank may not write: every rank is told which and why, and the
// checkpoint before is as it was. Root may write all of them, so that ranks
// become another user first.
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <grp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <functional>
#include <set>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <torch/torch.h>
#include "base/check.h"

namespace sherd::test {
namespace {

namespace fs = std::filesystem;
using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr unsigned kNobody = 65534;
constexpr fs::perms kAllMayRead{0555};
constexpr fs::perms kOwnerOnly{0700};
constexpr fs::perms kOwnerMayWrite{0755};
constexpr std::int64_t kNumbers = 100'000;  // Of each rank.

void become_nobody() {
  SHERD_CHECK(
      ::setgroups(0, nullptr) == 0 && ::setgid(kNobody) == 0 &&
          ::setuid(kNobody) == 0,
      "[test] expected root, who can become another user");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Another user loses it.
}

struct OwnNumbers {
  explicit OwnNumbers(const World& world) {
    state.add(
        "model",
        {.name = "numbers",
         .shape = {world.size(), kNumbers},
         .begin = world.rank() * kNumbers,
         .elements = elements,
         .ranks = world.size()});
  }
  void expect_all(double number) const {
    EXPECT_TRUE((elements == number).all().item<bool>());
  }
  torch::Tensor elements = torch::full({kNumbers}, 1.0);
  CheckpointState state;
};

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class Permissions : public ::testing::TestWithParam<int> {
 protected:
  // Nobody passes through scratch folders, whatever the umask was.
  static void SetUpTestSuite() { ::umask(0022); }
  void SetUp() override {
    if (::geteuid() != 0) {
      GTEST_SKIP() << "needs root";
    }
  }

  // Of root, who made it.
  std::string folder(const std::string& name, fs::perms permissions) const {
    const auto path = scratch_.path() + "/" + name;
    fs::create_directories(path);
    fs::permissions(path, permissions);
    return path;
  }

  // Of the ranks that are nobody.
  std::string folder_of_nobody() const {
    auto path = folder("run", kOwnerMayWrite);
    EXPECT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
    return path;
  }

  // Every byte of the first one, as root, and nothing else but the lock.
  void expect_only_the_first_in(const std::string& path) const {
    EXPECT_THAT(names_in(path), ElementsAre(".lock", "step-1"));
    expect_all_ok(run_processes(1, [&](int, Rank&) {
      EXPECT_EQ(verify_checkpoint(path + "/step-1"), GetParam() * kNumbers * 4);
    }));
  }

  ScratchFolder scratch_;
};

TEST_P(Permissions, AFolderThatMayNotBeWrittenIsNamedWithTheReason) {
  const auto readable = folder("readable", kAllMayRead);
  const auto closed = folder("closed", kOwnerOnly);
  const auto file = scratch_.file("file", "text");
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    become_nobody();
    const auto expect_refused = [&](const std::string& path,
                                    const std::string& why) {
      const auto error = error_of([&] { CheckpointSaver(world, path); });
      EXPECT_THAT(error, AllOf(HasSubstr(path + why), HasSubstr("[ckpt]")));
      if (world.size() > 1) {
        EXPECT_THAT(error, HasSubstr("rank 0 failed"));
      }
    };
    expect_refused(readable, "/.lock: Permission denied");
    expect_refused(readable + "/run", ": Permission denied");
    expect_refused(readable + "/run/a/b", ": Permission denied");
    expect_refused(closed, "/.lock: Permission denied");
    expect_refused(closed + "/run", ": Permission denied");
    expect_refused(file, ": Not a directory");
    expect_refused(file + "/run", ": Not a directory");
  }));
  EXPECT_THAT(names_in(readable), IsEmpty());
  EXPECT_THAT(names_in(closed), IsEmpty());
}

TEST_P(Permissions, AFolderThatBecameReadOnlyFailsOnEveryRankAndKeepsTheFirst) {
  const auto path = folder_of_nobody();
  for (const bool asynchronous : {false, true}) {
    fs::remove_all(path + "/step-1");
    fs::permissions(path, kOwnerMayWrite);
    expect_all_ok(run_ranks(GetParam(), [&](World world) {
      become_nobody();
      OwnNumbers numbers(world);
      CheckpointSaver saver(world, path, {.asynchronous = asynchronous});
      saver.save(1, numbers.state);
      saver.wait();
      world.barrier();
      if (world.rank() == 0) {
        fs::permissions(path, kAllMayRead);
      }
      world.barrier();
      numbers.elements.fill_(2.0);
      const auto error = error_of([&] {
        saver.save(2, numbers.state);
        saver.wait();
      });
      EXPECT_THAT(
          error, HasSubstr(path + "/.saving-step-2: Permission denied"));
      if (world.size() > 1) {
        EXPECT_THAT(error, HasSubstr("saving step 2: rank 0 failed"));
      }
      ASSERT_EQ(saver.newest(), path + "/step-1");
      load_checkpoint(world, path + "/step-1", numbers.state);
      numbers.expect_all(1.0);
    }));
    expect_only_the_first_in(path);
  }
  fs::permissions(path, kOwnerMayWrite);
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    become_nobody();
    OwnNumbers numbers(world);
    CheckpointSaver saver(world, path);
    EXPECT_EQ(saver.newest(), path + "/step-1");
    saver.save(2, numbers.state);
    EXPECT_EQ(saver.newest(), path + "/step-2");
  }));
}

// Of root's ranks one is somebody else after the first save.
TEST_P(Permissions, ARankThatMayNotWriteIsNamedToTheOthers) {
  const auto path = folder("run", kOwnerMayWrite);
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    OwnNumbers numbers(world);
    CheckpointSaver saver(world, path);
    saver.save(1, numbers.state);
    numbers.elements.fill_(2.0);
    if (world.rank() == world.size() - 1) {
      become_nobody();
    }
    const auto error = error_of([&] { saver.save(2, numbers.state); });
    const auto denied = path + "/.saving-step-2";
    if (world.size() == 1) {
      EXPECT_THAT(error, HasSubstr(denied + ": Permission denied"));
    } else {
      const auto last = std::to_string(world.size() - 1);
      EXPECT_THAT(
          error,
          AllOf(
              HasSubstr("saving step 2: rank " + last + " failed"),
              HasSubstr(
                  denied + "/model-0000" + last +
                  "-000.safetensors: Permission denied")));
    }
    ASSERT_EQ(saver.newest(), path + "/step-1");
    load_checkpoint(world, path + "/step-1", numbers.state);
    numbers.expect_all(1.0);
  }));
  expect_only_the_first_in(path);
}

// Else training would go on from an older one, or anew, without a word.
TEST_P(Permissions, WhatCannotBeLookedAtIsNotTakenForAbsent) {
  const auto path = folder_of_nobody();
  const auto step = path + "/step-2";
  const auto refused = [](const std::string& what) {
    return AllOf(HasSubstr(what), HasSubstr("Permission denied"));
  };
  const auto with_nobody = [&](const std::function<void(World)>& body) {
    expect_all_ok(run_ranks(GetParam(), [&](World world) {
      become_nobody();
      body(std::move(world));
    }));
  };
  with_nobody([&](World world) {
    OwnNumbers numbers(world);
    CheckpointSaver saver(world, path);
    saver.save(1, numbers.state);
    saver.save(2, numbers.state);
  });
  ASSERT_EQ(::chown(step.c_str(), 0, 0), 0);
  fs::permissions(step, kOwnerOnly);
  with_nobody([&](World world) {
    OwnNumbers numbers(world);
    CheckpointSaver saver(world, path);
    EXPECT_THAT(error_of([&] { (void)saver.newest(); }), refused(step));
    EXPECT_THAT(error_of([&] { newest_checkpoint(path); }), refused(step));
    EXPECT_THAT(
        error_of([&] { load_checkpoint(world, step, numbers.state); }),
        refused(step));
  });
  constexpr fs::perms kNotListed{0300};
  fs::permissions(path, kNotListed);
  with_nobody([&](World) {
    EXPECT_THAT(error_of([&] { newest_checkpoint(path); }), refused(path));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Permissions,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
