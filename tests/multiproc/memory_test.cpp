// SPDX-License-Identifier: Apache-2.0
//
// What the process really uses: the budget holds for its pages, not only for
// the counters, and everything goes with the model and its handle. What may be
// used is the formula of docs/guide/cache.md.
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <malloc.h>
#include <fstream>
#include <string>

namespace sherd::test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kLayers = 8;
// For what a leak of one layer shows as well.
constexpr std::int64_t kFewLayers = 3;
constexpr std::int64_t kWidth = 1024;  // A layer is 4 MiB and a little.
constexpr std::int64_t kLayerBytes = kWidth * (kWidth + 1) * 4;
// Activations, messages under way, libraries' own heaps.
constexpr std::int64_t kSlack = 3 * kMiB;

std::int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return -1;
}

// From the program's start: a large block that was freed into the heap leaves a
// hole there, and later ones that take turns in such holes leave their pages.
[[maybe_unused]] const int kLargeBlocksOutsideTheHeap =
    ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMiB / 2));

// Anonymous pages in use now. Large blocks went back to the system when they were
// freed, and so does what is left of the heap.
std::int64_t anonymous_bytes() {
  ::malloc_trim(0);
  return status_bytes("RssAnon");
}

struct Peak {
  std::int64_t bytes = 0;
  void sample() { bytes = std::max(bytes, status_bytes("RssAnon")); }
};

// Forward that looks at the process after each layer.
torch::Tensor forward(Chain& model, Peak& peak) {
  auto x = torch::ones({1, kWidth});
  for (std::size_t i = 0; i < model->layers->size(); ++i) {
    x = model->layer(i).forward(x).clamp(-2, 2);
    peak.sample();
  }
  return model->head(x).sum();
}

class Memory : public testing::TestWithParam<int> {};

TEST_P(Memory, T29PagesOfWholeUnitsNeverExceedTheBudget) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto total = (kLayers + 1) * kLayerBytes;  // The head, generously.
    for (const auto budget :
         {kLayerBytes + kMiB, 3 * kLayerBytes, 5 * kLayerBytes, total}) {
      Chain model(kLayers, kWidth);
      auto options = over_messages();
      options.budget_bytes = budget;
      auto fsdp = fully_shard(*model, world, options);
      const auto before = anonymous_bytes();
      Peak peak;
      const torch::NoGradGuard no_grad;
      for (int round = 0; round < 2; ++round) {
        forward(model, peak);
      }
      const auto used = peak.bytes - before;
      EXPECT_LE(used, budget + kSlack) << "budget " << budget;
      EXPECT_GE(used, std::min(budget, kLayers * kLayerBytes) - kLayerBytes);
      EXPECT_LE(fsdp.report().unsharded_bytes_peak, budget);
    }
  }));
}

TEST_P(Memory, T29ABackwardNeedsTheBudgetAndItsGradientSlotsAndNoMore) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto budget : {2 * kLayerBytes, 5 * kLayerBytes}) {
      const auto before = anonymous_bytes();
      Chain model(kLayers, kWidth);
      auto options = over_messages();
      options.budget_bytes = budget;
      options.reductions_under_way_max = 1;
      auto fsdp = fully_shard(*model, world, options);
      Peak peak;
      for (int step = 0; step < 3; ++step) {
        auto x = forward(model, peak);
        const auto look = [&](const torch::Tensor& gradient) {
          peak.sample();
          return gradient;
        };
        x.register_hook(look);
        for (auto& parameter : model->parameters()) {
          // Fires before the gradient is taken away.
          if (step == 0 && parameter.dim() == 2) {
            parameter.register_hook([&peak](const torch::Tensor& gradient) {
              peak.sample();
              return gradient;
            });
          }
        }
        x.backward();
        peak.sample();
      }
      const auto report = fsdp.report();
      const auto shards = 2 * kLayers * kLayerBytes / world.size();
      // The gradients of one layer are being made while those of another are on
      // their way, and the other ranks' parts of both may have arrived. A rank
      // that has waited in vain for a second has more of them on their way.
      const auto units =
          1 +
          std::max<std::int64_t>(
              options.reductions_under_way_max, report.reduces_under_way_peak);
      const auto on_their_way =
          units * kLayerBytes * (2 * world.size() - 1) / world.size();
      EXPECT_LE(peak.bytes - before, budget + shards + on_their_way + kSlack)
          << "budget " << budget << ", " << units << " units";
      EXPECT_GE(peak.bytes - before, budget + shards);
    }
  }));
}

TEST_P(Memory, T29ShardingFreesTheOriginals) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto before = anonymous_bytes();
    Chain model(kLayers, kWidth);
    auto fsdp = fully_shard(*model, world);
    // Shards and their gradients, as equal as cuts on 128 bytes let them be.
    const auto shards = 2 * kLayers * kLayerBytes / world.size();
    EXPECT_LE(anonymous_bytes() - before, shards + kSlack);
    EXPECT_NEAR(
        static_cast<double>(fsdp.report().shard_bytes),
        static_cast<double>(shards), kMiB / 16.0);
  }));
}

TEST_P(Memory, T29ModelAndHandleTakeTheirMemoryWithThem) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto train = [&](bool handle_first) {
      auto model = std::make_unique<Chain>(kFewLayers, kWidth);
      auto fsdp = std::make_unique<FullyShardedDataParallel>(
          fully_shard(**model, world));
      Peak peak;
      forward(*model, peak).backward();
      fsdp->clip_grad_norm(1.0);
      {
        auto scope = fsdp->summon_full_parameters();
      }
      forward(*model, peak).backward();
      if (handle_first) {
        fsdp.reset();
        model.reset();
      } else {
        model.reset();
        fsdp.reset();
      }
    };
    train(true);  // Libraries allocate what they keep.
    const auto before = anonymous_bytes();
    for (int i = 0; i < 3; ++i) {
      train(true);
      train(false);
    }
    EXPECT_LE(anonymous_bytes() - before, kSlack);
  }));
}

TEST_P(Memory, T29AnUnfinishedBackwardLeavesNothingBehind) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto abandon = [&] {
      Chain model(kFewLayers, kWidth);
      auto fsdp = fully_shard(*model, world);
      Peak peak;
      auto loss = forward(model, peak);
      auto gone = std::make_unique<FullyShardedDataParallel>(std::move(fsdp));
      gone.reset();  // With the graph still alive.
    };
    abandon();
    const auto before = anonymous_bytes();
    abandon();
    abandon();
    EXPECT_LE(anonymous_bytes() - before, kSlack);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, Memory, testing::Values(2, 3), testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
