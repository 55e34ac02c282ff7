// SPDX-License-Identifier: Apache-2.0
//
// What ranks leave behind when one is killed, ends by an exception or goes another way, and what
// `sherd trace flight` makes of it.
#include "support/ranks.h"
#include "support/scratch_folder.h"
#include "support/small_models.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <gmock/gmock.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/world/flight_recorder.h>
#include "trace/chrome_trace.h"
#include "trace/compare_ranks.h"
#include "trace/flight_file.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

constexpr int kFlightRanks = 3;
constexpr std::size_t kFlightLayers = 4;

struct FlightRun {
  ExchangeKind exchange = ExchangeKind::kAuto;
  RankOptions options = {};
};

// Trains some steps; `at` is called before each layer of each step's forward, and says which layer
// is used in its place.
using AtLayer = std::function<std::size_t(
    Rank& self, const World& world, int step, std::size_t layer)>;

RankReport train_with_records(
    const std::string& folder, const FlightRun& run, const AtLayer& at) {
  return run_ranks(
      kFlightRanks,
      [&](World world, Rank& self) {
        set_flight_folder(world, folder);
        Chain model(kFlightLayers, 6);
        auto fsdp = fully_shard(
            *model, world, {.budget_bytes = 512, .exchange = run.exchange});
        for (int step = 0; step < 3; ++step) {
          auto x = integer_rows(step, world.rank(), 6);
          for (std::size_t layer = 0; layer < kFlightLayers; ++layer) {
            const auto used = at(self, world, step, layer);
            x = model->layer(used).forward(x).clamp(-2, 2);
          }
          model->head(x).sum().backward();
          fsdp.publish();
        }
      },
      run.options);
}

std::vector<tools::FlightFile> aligned_files(const std::string& folder) {
  auto files = tools::read_flight_folder(folder);
  tools::align_clocks(files);
  return files;
}

TEST(FlightRecord, NamesARankThatWasKilled) {
  const testing::ScratchFolder folder;
  FlightRun run;
  run.options.close_world = false;
  run.options.strikes = {
      {.child = 1, .point = "the third layer", .signal = SIGKILL}};
  const auto report = train_with_records(
      folder.path(), run,
      [](Rank& self, const World&, int step, std::size_t layer) {
        if (step == 1 && layer == 2) {
          self.reach("the third layer");
        }
        return layer;
      });
  EXPECT_EQ(report[1].signal, SIGKILL);
  const auto files = aligned_files(folder.path());
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_THAT(files[0].reason, HasSubstr("rank 1"));
  // A rank waits when it hears of the death, or is about to.
  EXPECT_THAT(
      tools::comparison_text(files),
      AllOf(
          HasSubstr("rank 1 has left no file"),
          ContainsRegex("rank 0: .*\n    failed: .*rank 1 .*\nrank 2: "),
          ContainsRegex("rank 2: .*\n    failed: .*rank 1 ")));
}

TEST(FlightRecord, FilesOfAnEarlierRunAreNotOfThisFailure) {
  const testing::ScratchFolder folder;
  for (const int killed : {1, 2}) {
    FlightRun run;
    run.options.close_world = false;
    run.options.strikes = {
        {.child = killed, .point = "the second step", .signal = SIGKILL}};
    train_with_records(
        folder.path(), run,
        [](Rank& self, const World&, int step, std::size_t layer) {
          if (step == 1 && layer == 0) {
            self.reach("the second step");
          }
          return layer;
        });
    const auto files = aligned_files(folder.path());
    ASSERT_THAT(files, SizeIs(2));
    EXPECT_THAT(
        tools::comparison_text(files),
        HasSubstr("rank " + std::to_string(killed) + " has left no file"));
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/rank-0.json.previous"));
}

TEST(FlightRecord, NamesARankThatAnExceptionHasEnded) {
  const testing::ScratchFolder folder;
  FlightRun run{.exchange = ExchangeKind::kCollective};
  run.options.close_world = false;
  const auto report = train_with_records(
      folder.path(), run,
      [&](Rank&, const World& world, int step, std::size_t layer) {
        const auto arrived = [&](int rank) {
          return folder.path() + "/arrived-" + std::to_string(rank);
        };
        if (world.rank() != 1 && step == 1 && layer == 3) {
          std::ofstream(arrived(world.rank())).close();
        }
        if (world.rank() == 1 && step == 1 && layer == 2) {
          // The others have requested layers.3 ahead of its use when they arrive there; earlier they
          // might notice the end of this rank before they request it.
          while (!std::filesystem::exists(arrived(0)) ||
                 !std::filesystem::exists(arrived(2))) {
            std::this_thread::yield();
          }
          throw std::runtime_error("of the program");
        }
        return layer;
      });
  EXPECT_EQ(report[1].exit_code, 3) << report[1].output;
  const auto files = aligned_files(folder.path());
  ASSERT_THAT(files, SizeIs(3));
  EXPECT_EQ(files[1].reason, "ended by an exception");
  const auto differences = tools::compare_ranks(files);
  ASSERT_FALSE(differences.empty());
  EXPECT_THAT(
      differences[0].text,
      MatchesRegex(
          "rank 1 has not come to request .*, where ranks 0 and 2 want "
          "to unshard layers.3 in forward"));
}

TEST(FlightRecord, NamesARankThatGathersAnotherUnit) {
  const testing::ScratchFolder folder;
  FlightRun run{.exchange = ExchangeKind::kCollective};
  run.options.close_world = false;
  train_with_records(
      folder.path(), run,
      [](Rank&, const World& world, int, std::size_t layer) -> std::size_t {
        return world.rank() == 2 && layer == 1 ? 3 : layer;
      });
  const auto files = aligned_files(folder.path());
  ASSERT_THAT(files, SizeIs(3));
  const auto differences = tools::compare_ranks(files);
  ASSERT_FALSE(differences.empty());
  EXPECT_THAT(
      differences[0].text,
      MatchesRegex("at request .* rank 2 wants to unshard layers.3 in forward, "
                   "ranks 0 and 1 want to unshard layers.1 in forward"));
}

// Both models' exchanges are asked by SIGUSR2.
TEST(FlightRecord, SomeRanksOfAWorldHaveAFolderOfTheirOwn) {
  const testing::ScratchFolder folder;
  const auto of_some = folder.path() + "/subset/0,2/0";
  expect_all_ok(run_ranks(kFlightRanks, [&](World world) {
    set_flight_folder(world, folder.path());
    if (world.rank() != 1) {
      const auto some = world.subset({0, 2});
      Chain model(2, 6);
      auto fsdp =
          fully_shard(*model, some, {.exchange = ExchangeKind::kCollective});
      model->forward(integer_rows(0, some.rank(), 6)).sum().backward();
      ::raise(SIGUSR2);
      const auto mine =
          of_some + "/rank-" + std::to_string(some.rank()) + ".json";
      while (!std::filesystem::exists(mine)) {
        std::this_thread::yield();
      }
      some.barrier();
    }
    world.barrier();
  }));
  const auto files = aligned_files(of_some);
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_THAT(files[1].groups, SizeIs(1));
  EXPECT_THAT(tools::compare_ranks(files), SizeIs(0));
}

TEST(FlightRecord, Sigusr2ShowsARunThatGoesOn) {
  const testing::ScratchFolder folder;
  const auto report = train_with_records(
      folder.path(), {},
      [&](Rank&, const World& world, int step, std::size_t layer) {
        const auto path =
            folder.path() + "/rank-" + std::to_string(world.rank()) + ".json";
        if (step == 2 && layer == 0) {
          world.barrier();  // No rank goes on before all have written.
          ::raise(SIGUSR2);
          while (!std::filesystem::exists(path)) {
            std::this_thread::yield();
          }
          world.barrier();
        }
        return layer;
      });
  expect_all_ok(report);
  const auto files = aligned_files(folder.path());
  ASSERT_THAT(files, SizeIs(3));
  EXPECT_EQ(files[0].reason, "");
  EXPECT_THAT(
      tools::comparison_text(files),
      HasSubstr("the ranks that have a file agree in every request"));
}

TEST(FlightRecord, AProfileShowsWhatEachUnitDoes) {
  const testing::ScratchFolder folder;
  expect_all_ok(run_ranks(2, [&](World world) {
    Chain model(kFlightLayers, 6);
    auto fsdp = fully_shard(
        *model, world,
        {.budget_bytes = 512, .exchange = ExchangeKind::kCollective});
    for (int step = 0; step < 3; ++step) {
      std::optional<Profile> profile;
      if (step == 2) {
        profile.emplace(world);
      }
      model->forward(integer_rows(step, world.rank(), 6)).sum().backward();
      fsdp.publish();
      if (profile) {
        profile->write(folder.path());
      }
    }
    const auto report = fsdp.report();
    ASSERT_EQ(report.by_unit.size(), kFlightLayers + 1);
    for (const auto& unit : report.by_unit) {
      EXPECT_GE(unit.visits, 3) << unit.name;
      EXPECT_GE(unit.gathers, 3) << unit.name;
      EXPECT_GT(unit.gather_s, 0.0) << unit.name;
      EXPECT_GT(unit.waited_s, 0.0) << unit.name;
      EXPECT_GT(unit.bytes, 0) << unit.name;
    }
  }));
  for (const auto& file : aligned_files(folder.path())) {
    std::set<std::string> seen;
    for (const auto& span : tools::trace_spans(file)) {
      EXPECT_LE(span.begin_ns, span.end_ns);
      seen.insert(
          std::to_string(static_cast<int>(span.lane)) + " " + span.name);
    }
    using Lane = tools::TraceSpan::Lane;
    const auto expect = [&](Lane lane, const std::string& name) {
      EXPECT_TRUE(
          seen.contains(std::to_string(static_cast<int>(lane)) + " " + name))
          << name;
    };
    expect(Lane::kCompute, "forward layers.1");
    expect(Lane::kCompute, "backward layers.1");
    expect(Lane::kUnshard, "layers.1");
    expect(Lane::kReduce, "layers.1");
    expect(Lane::kOptimizer, "optimizer");
    expect(Lane::kWait, "end the backward");
  }
}

}  // namespace
}  // namespace sherd::test
