// SPDX-License-Identifier: Apache-2.0
//
// What can go wrong with disks and folders is told to every rank, and the
// checkpoint before is as it was.
#include "base/host.h"
#include "ckpt/file_system.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <sys/resource.h>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <torch/torch.h>

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SaverOf : public ::testing::TestWithParam<int> {};

CheckpointState state_of(const World& world, const torch::Tensor& elements) {
  CheckpointState state;
  state.add(
      "model",
      {.name = "numbers",
       .shape = {world.size(), elements.numel()},
       .begin = world.rank() * elements.numel(),
       .elements = elements,
       .ranks = world.size()});
  return state;
}

TEST_P(SaverOf, AFolderBelongsToOneRunAtATime) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto folder = scratch.path() + "/run";
    {
      const CheckpointSaver first(world, folder);
      EXPECT_THAT(
          error_of([&] { CheckpointSaver(world, folder); }),
          AllOf(HasSubstr(folder), HasSubstr("another run does")));
      world.barrier();
    }
    world.barrier();
    const CheckpointSaver second(world, folder);
    EXPECT_EQ(second.newest(), std::nullopt);
  }));
}

TEST_P(SaverOf, AFolderThatCannotBeMadeIsNamed) {
  const ScratchFolder scratch;
  const auto file = scratch.file("file", "text");
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    EXPECT_THAT(
        error_of([&] { CheckpointSaver(world, file + "/run"); }),
        AllOf(HasSubstr("cannot make folder"), HasSubstr(file + "/run")));
    EXPECT_THAT(
        error_of(
            [&] { CheckpointSaver(world, scratch.path(), {.keep_last = -1}); }),
        HasSubstr("keep_last"));
  }));
}

// A relative path in a working directory of its own is to each rank what a disk of its own is to a
// host: it finds another folder, or none.
TEST(Saver, AFolderThatARankDoesNotSeeIsRefusedWithItsHost) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    const auto host = scratch.path() + "/host-" + std::to_string(world.rank());
    std::filesystem::create_directories(host + "/old");
    std::filesystem::current_path(host);
    for (const std::string folder : {"old", "new/run"}) {
      EXPECT_THAT(
          error_of([&] { CheckpointSaver(world, folder); }),
          AllOf(
              HasSubstr("rank 1 failed: [ckpt] "),
              HasSubstr("/" + folder + ": expected"),
              HasSubstr("host " + host_name() + " does not see")));
    }
    EXPECT_EQ(std::filesystem::exists("new"), world.rank() == 0);
  }));
}

TEST_P(SaverOf, AnOpenedFolderHasOnlyItsLock) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const CheckpointSaver saver(world, scratch.path());
    world.barrier();
    for (const auto& file :
         std::filesystem::directory_iterator(scratch.path())) {
      EXPECT_EQ(file.path().filename(), ".lock");
    }
  }));
}

// Files of the last rank may not grow any more: as on a full disk.
void limit_files(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_P(SaverOf, AFullDiskIsToldToAllAndTheCheckpointBeforeStays) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    torch::manual_seed(1);
    for (const bool asynchronous : {false, true}) {
      const auto folder =
          scratch.path() + (asynchronous ? "/beside" : "/at_once");
      auto numbers = torch::full({100'000}, 1.0);
      auto state = state_of(world, numbers);
      CheckpointSaver saver(world, folder, {.asynchronous = asynchronous});
      saver.save(1, state);
      saver.wait();
      numbers.fill_(2.0);
      const int last = world.size() - 1;
      if (world.rank() == last) {
        limit_files(1000);
      }
      const auto error = error_of([&] {
        saver.save(2, state);
        saver.wait();
      });
      EXPECT_THAT(
          error, AllOf(HasSubstr("cannot write"), HasSubstr("too large")));
      if (world.size() > 1) {
        EXPECT_THAT(
            error, HasSubstr("saving step 2: rank " + std::to_string(last)));
      }
      limit_files(RLIM_INFINITY);
      ASSERT_EQ(saver.newest(), folder + "/step-1");
      load_checkpoint(world, folder + "/step-1", state);
      EXPECT_TRUE((numbers == 1.0).all().item<bool>());
      saver.save(2, state);
      EXPECT_EQ(saver.newest(), folder + "/step-2");  // It waits for the save.
    }
  }));
}

// Changes the last byte of rank 0's tensors.
void damage(const std::string& checkpoint) {
  std::fstream file(
      checkpoint + "/model-00000-000.safetensors",
      std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(byte);
}

TEST_P(SaverOf, ADamagedNewestCheckpointIsPassedOverByAllRanks) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto folder = scratch.path() + "/run";
    auto numbers = torch::zeros({1000});
    auto state = state_of(world, numbers);
    EXPECT_EQ(load_newest_checkpoint(world, folder, state), std::nullopt);
    CheckpointSaver saver(world, folder);
    for (int step = 1; step <= 3; ++step) {
      numbers.fill_(step);
      saver.save(step, state);
    }
    // Only rank 0 reads what is damaged in 3; 2 lacks a whole file.
    if (world.rank() == 0) {
      damage(folder + "/step-3");
      std::filesystem::remove(folder + "/step-2/part-00000.json");
    }
    world.barrier();
    ::testing::internal::CaptureStderr();
    const auto report = load_newest_checkpoint(world, folder, state);
    const auto warned = ::testing::internal::GetCapturedStderr();
    ASSERT_TRUE(report);
    EXPECT_EQ(report->step, 1);
    EXPECT_EQ(report->folder, folder + "/step-1");
    EXPECT_TRUE((numbers == 1.0).all().item<bool>());
    EXPECT_EQ(warned.empty(), world.rank() > 0) << warned;
    if (world.rank() == 0) {
      EXPECT_THAT(
          warned,
          AllOf(
              HasSubstr("step-1 is loaded, not a newer one"),
              HasSubstr("step-3/model-00000-000.safetensors"),
              HasSubstr("step-2/part-00000.json")));
      damage(folder + "/step-1");
    }
    world.barrier();
    EXPECT_THAT(
        error_of([&] { load_newest_checkpoint(world, folder, state); }),
        AllOf(HasSubstr("found none"), HasSubstr("step-3/model-00000")));
  }));
}

TEST_P(SaverOf, ACheckpointOfAnotherModelIsNotPassedOver) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto folder = scratch.path() + "/run";
    auto numbers = torch::zeros({1000});
    auto more = torch::zeros({2000});
    auto state = state_of(world, numbers);
    auto other = state_of(world, more);
    CheckpointSaver saver(world, folder);
    saver.save(1, state);
    saver.save(2, other);
    EXPECT_THAT(
        error_of([&] { load_newest_checkpoint(world, folder, state); }),
        AllOf(HasSubstr("step-2"), HasSubstr("expected shape")));
  }));
}

TEST_P(SaverOf, TrainingMayChangeWhatIsSavedBeside) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    auto numbers = torch::zeros({1'000'000});
    auto state = state_of(world, numbers);
    CheckpointSaver saver(
        world, scratch.path() + "/run", {.asynchronous = true});
    for (int step = 1; step <= 3; ++step) {
      numbers.fill_(step);
      state.values["step"] = std::to_string(step);
      saver.save(step, state);
      numbers.fill_(-1.0);
    }
    saver.wait();
    for (int step = 1; step <= 3; ++step) {
      const auto report = load_checkpoint(
          world, scratch.path() + "/run/step-" + std::to_string(step), state);
      EXPECT_EQ(report.step, step);
      EXPECT_EQ(state.values["step"], std::to_string(step));
      EXPECT_TRUE((numbers == step).all().item<bool>()) << step;
    }
  }));
}

TEST_P(SaverOf, TheProgramMayChangeItsWorkingDirectory) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    std::filesystem::current_path(scratch.path());
    auto numbers = torch::zeros({1000});
    auto state = state_of(world, numbers);
    CheckpointSaver saver(world, "run", {.asynchronous = true});
    saver.save(1, state);
    std::filesystem::current_path("/");
    saver.save(2, state);
    saver.wait();
    EXPECT_EQ(saver.newest(), scratch.path() + "/run/step-2");
    EXPECT_TRUE(std::filesystem::exists(
        scratch.path() + "/run/step-1/checkpoint.json"));
  }));
}

TEST_P(SaverOf, ASaveThatFailsAndIsNotWaitedForIsAWarning) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    auto numbers = torch::zeros({1'000'000});
    auto state = state_of(world, numbers);
    limit_files(1 << 20);
    ::testing::internal::CaptureStderr();
    {
      CheckpointSaver saver(world, scratch.path(), {.asynchronous = true});
      saver.save(1, state);
    }
    EXPECT_THAT(
        ::testing::internal::GetCapturedStderr(),
        AllOf(HasSubstr("was not saved"), HasSubstr("cannot write")));
  }));
}

TEST(Saver, MistakesOfOneRankAreErrorsOfAll) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    const auto rank = world.rank();
    EXPECT_THAT(
        error_of([&] {
          CheckpointSaver(
              world, scratch.path(), {.keep_last = rank == 1 ? -1 : 0});
        }),
        HasSubstr("rank 1 failed: [ckpt] expected keep_last"));
    auto numbers = torch::zeros({1000});
    auto state = state_of(world, numbers);
    CheckpointSaver saver(world, scratch.path());
    EXPECT_THAT(
        error_of([&] { saver.save(3 + rank, state); }),
        HasSubstr("found step 3 on rank 0 and step 4 on rank 1"));
    saver.save(3, state);
    EXPECT_EQ(saver.newest(), scratch.path() + "/step-3");
  }));
}

// As in AFolderThatARankDoesNotSee.
TEST(Saver, RanksThatOpenDifferentCheckpointsLoadNothing) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    const auto path = [&](int host) {
      return scratch.path() + "/host-" + std::to_string(host);
    };
    auto numbers = torch::zeros({1000});
    auto state = state_of(world, numbers);
    for (const int host : {0, 1}) {
      numbers.fill_(host + 1);
      CheckpointSaver(world, path(host)).save(1, state);
    }
    numbers.fill_(-1);
    std::filesystem::current_path(path(world.rank()));
    EXPECT_THAT(
        error_of([&] { load_newest_checkpoint(world, ".", state); }),
        AllOf(
            HasSubstr("expected a folder that all ranks share"),
            HasSubstr("another on rank 1 (host " + host_name() + ")")));
    EXPECT_TRUE((numbers == -1).all().item<bool>());
  }));
}

TEST_P(SaverOf, NothingOfADamagedCheckpointStaysWhereNamesMayDiffer) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    auto numbers = torch::zeros({1000});
    auto more = torch::zeros({1000});
    auto state = state_of(world, numbers);
    CheckpointSaver saver(world, scratch.path());
    saver.save(1, state);
    state.add("more", {.name = "more", .shape = {1000}, .elements = more});
    numbers.fill_(2);
    more.fill_(2);
    saver.save(2, state);
    if (world.rank() == 0) {
      damage(scratch.path() + "/step-2");
    }
    world.barrier();
    numbers.fill_(-1);
    more.fill_(-1);
    ::testing::internal::CaptureStderr();
    const auto report =
        load_newest_checkpoint(world, scratch.path(), state, {.strict = false});
    (void)::testing::internal::GetCapturedStderr();
    EXPECT_EQ(report->step, 1);
    EXPECT_THAT(report->missing, ::testing::ElementsAre("more more"));
    EXPECT_TRUE((numbers == 0).all().item<bool>());
    EXPECT_TRUE((more == -1).all().item<bool>());
  }));
}

// Another run saves into the folder and keeps one checkpoint.
TEST_P(SaverOf, CheckpointsThatAreRemovedMeanwhileAreNoDamage) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    auto numbers = torch::zeros({1000});
    auto state = state_of(world, numbers);
    CheckpointSaver saver(world, scratch.path(), {.keep_last = 1});
    saver.save(1, state);
    std::vector<std::string> tried;
    const auto report = load_newest_checkpoint(
        world, scratch.path(), [&](const std::string& checkpoint) {
          tried.push_back(checkpoint);
          if (tried.size() == 1) {
            saver.save(2, state);
          }
          return load_checkpoint(world, checkpoint, state);
        });
    ASSERT_TRUE(report);
    EXPECT_EQ(report->step, 2);
    EXPECT_THAT(
        tried,
        ::testing::ElementsAre(
            scratch.path() + "/step-1", scratch.path() + "/step-2"));
  }));
}

// Such views say by a flag that their bytes are to be read otherwise.
TEST_P(SaverOf, ConjugatedAndNegatedTensorsAreSavedByTheirValues) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    torch::manual_seed(1);
    for (const bool asynchronous : {false, true}) {
      const auto folder =
          scratch.path() + (asynchronous ? "/asynchronous" : "/synchronous");
      const auto numbers = torch::complex(torch::rand({8}), torch::rand({8}));
      const std::vector<torch::Tensor> views = {
          numbers.conj(), torch::imag(numbers.conj())};
      const auto expected = views[0].clone().resolve_conj();
      CheckpointState state;
      CheckpointState plain;
      auto into = torch::zeros({8}, torch::kComplexFloat);
      auto into_negated = torch::zeros({8});
      state.add("model", {.name = "c", .shape = {8}, .elements = views[0]});
      state.add("model", {.name = "n", .shape = {8}, .elements = views[1]});
      plain.add("model", {.name = "c", .shape = {8}, .elements = into});
      plain.add("model", {.name = "n", .shape = {8}, .elements = into_negated});
      CheckpointSaver saver(world, folder, {.asynchronous = asynchronous});
      saver.save(1, state);
      saver.wait();
      for (auto* wanted : {&state, &plain}) {
        numbers.zero_();
        load_checkpoint(world, folder + "/step-1", *wanted);
      }
      EXPECT_TRUE(torch::equal(into, expected));
      EXPECT_TRUE(torch::equal(into_negated, torch::imag(expected)));
      load_checkpoint(world, folder + "/step-1", state);
      EXPECT_TRUE(torch::equal(views[0].resolve_conj(), expected));
    }
  }));
}

TEST_P(SaverOf, ASharedFolderIsLockedForEachSaveAlone) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto folder = scratch.path() + "/run";
    const SaveOptions shared{.asynchronous = true, .shared = true};
    auto numbers = torch::full({1000}, 1.0);
    auto state = state_of(world, numbers);
    CheckpointSaver first(world, folder, shared);
    CheckpointSaver second(world, folder, shared);
    EXPECT_FALSE(first.saving());
    first.save(1, state);
    second.save(2, state);  // When the first has let go of the folder.
    first.wait();
    second.wait();
    EXPECT_FALSE(second.saving());
    EXPECT_EQ(first.newest(), folder + "/step-2");
    EXPECT_EQ(verify_checkpoint(folder + "/step-1"), 4000 * world.size());
  }));
}

TEST_P(SaverOf, AFolderThatWasMovedIsMadeAndLockedAgain) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto numbers = torch::full({1000}, 1.0);
    const auto state = state_of(world, numbers);
    for (const bool shared : {false, true}) {
      const auto folder = scratch.path() + (shared ? "/shared" : "/own");
      std::optional<ckpt::FolderLock> other_run;
      const auto move_away = [&](const std::string& to, bool takes_its_place) {
        world.barrier();
        if (world.rank() == 0) {
          std::filesystem::rename(folder, folder + to);
          if (takes_its_place) {
            std::filesystem::create_directories(folder);
            other_run.emplace(ckpt::lock_folder(folder).value());
          }
        }
        world.barrier();
      };
      CheckpointSaver saver(world, folder, {.shared = shared});
      saver.save(1, state);
      move_away("-1", false);
      saver.save(2, state);
      EXPECT_EQ(saver.newest(), folder + "/step-2");
      if (!shared) {
        EXPECT_FALSE(ckpt::lock_folder(folder).ok());
        move_away("-2", true);
        EXPECT_THAT(
            error_of([&] { saver.save(3, state); }),
            HasSubstr("another run does"));
        EXPECT_FALSE(std::filesystem::exists(folder + "/step-3"));
      }
      world.barrier();
    }
  }));
}

// Another job may take long to write, which is no fault of the disk.
TEST(Saver, ASharedFolderThatStaysLockedIsALateOne) {
  const ScratchFolder scratch;
  RankOptions options;
  options.world.deadline = std::chrono::milliseconds(200);
  expect_all_ok(run_ranks(
      1,
      [&](World world) {
        auto numbers = torch::zeros({10});
        auto state = state_of(world, numbers);
        CheckpointSaver saver(world, scratch.path(), {.shared = true});
        const auto lock = ckpt::lock_folder(scratch.path());
        try {
          saver.save(1, state);
          ADD_FAILURE() << "expected an error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
          EXPECT_THAT(error.what(), HasSubstr("another run does"));
        }
      },
      options));
}

TEST_P(SaverOf, WhatAnotherHasSavedIsNotSavedAgain) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto folder = scratch.path() + "/run";
    const SaveOptions shared{.shared = true};
    auto numbers = torch::full({1000}, 1.0);
    auto state = state_of(world, numbers);
    state.values["state"] = "one";
    CheckpointSaver(world, folder, shared).save(1, state);
    numbers.fill_(2.0);  // As nobody does, so that it shows.
    CheckpointSaver(world, folder, shared).save(1, state);
    load_checkpoint(world, folder + "/step-1", state);
    EXPECT_TRUE((numbers == 1.0).all().item<bool>());
    numbers.fill_(3.0);
    state.values["state"] = "another";
    CheckpointSaver(world, folder, shared).save(1, state);
    load_checkpoint(world, folder + "/step-1", state);
    EXPECT_TRUE((numbers == 3.0).all().item<bool>());
  }));
}

// An optimizer whose state cannot be had while it refuses, as for lack of memory.
struct RefusingOptimizer {
  bool refuses = false;
  std::vector<OptimizerTensor> tensors(
      const std::set<std::string>& /*also*/) const {
    if (refuses) {
      throw std::runtime_error("no memory for a copy");
    }
    return {};
  }
};

// Else the other ranks wait for it, and take its next save for this one.
TEST_P(SaverOf, AStateThatOneRankCannotReadIsToldToAllAndTheNextSaveIsFine) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const auto& [name, options] : std::map<std::string, SaveOptions>{
             {"/at_once", {}},
             {"/beside", {.asynchronous = true}},
             {"/shared", {.shared = true}}}) {
      const auto folder = scratch.path() + name;
      const int last = world.size() - 1;
      RefusingOptimizer optimizer{.refuses = world.rank() == last};
      auto numbers = torch::full({1000}, 1.0);
      auto state = state_of(world, numbers);
      state.add("optimizer", optimizer, NamedParameters());
      CheckpointSaver saver(world, folder, options);
      const auto error = error_of([&] {
        saver.save(1, state);
        saver.wait();
      });
      EXPECT_THAT(error, HasSubstr("no memory for a copy"));
      if (world.size() > 1) {
        EXPECT_THAT(
            error,
            HasSubstr(
                "saving step 1: rank " + std::to_string(last) + " failed"));
      }
      EXPECT_EQ(saver.newest(), std::nullopt);
      optimizer.refuses = false;
      saver.save(2, state);
      saver.wait();
      ASSERT_EQ(saver.newest(), folder + "/step-2");
      EXPECT_EQ(verify_checkpoint(folder + "/step-2"), 4000 * world.size());
    }
  }));
}

// Of the folder and all in it.
void set_clock_of(const std::string& folder, std::chrono::hours from_now) {
  namespace fs = std::filesystem;
  const auto time = fs::file_time_type::clock::now() + from_now;
  for (const auto& file : fs::directory_iterator(folder)) {
    fs::last_write_time(file, time);
  }
  fs::last_write_time(folder, time);
}

// As if the clock had gone backwards from each save to the next.
TEST_P(SaverOf, StepsOrderCheckpointsWhateverTheClockSaid) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto folder = scratch.path() + "/run";
    auto numbers = torch::zeros({1000});
    auto state = state_of(world, numbers);
    {
      CheckpointSaver saver(world, folder);
      for (const int step : {8, 9, 10, 11}) {
        numbers.fill_(step);
        saver.save(step, state);
        if (world.rank() == 0) {
          set_clock_of(
              folder + "/step-" + std::to_string(step),
              std::chrono::hours(24 * (9 - step)));
        }
      }
    }
    CheckpointSaver saver(world, folder, {.keep_last = 2});
    ASSERT_EQ(saver.newest(), folder + "/step-11");
    EXPECT_EQ(newest_checkpoint(folder), folder + "/step-11");
    EXPECT_EQ(load_checkpoint(world, *saver.newest(), state).step, 11);
    EXPECT_TRUE((numbers == 11).all().item<bool>());
    saver.save(12, state);
    world.barrier();
    for (const int step : {8, 9, 10}) {
      EXPECT_FALSE(
          std::filesystem::exists(folder + "/step-" + std::to_string(step)))
          << step;
    }
    EXPECT_TRUE(std::filesystem::exists(folder + "/step-11"));
    EXPECT_EQ(saver.newest(), folder + "/step-12");
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SaverOf,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
