// SPDX-License-Identifier: Apache-2.0
//
// What ranks that share memory keep, by kind of byte: a formula of the model, what
// the engine says of itself, and the pages that the kernel counts, each once
// however many processes map it (docs/design/shared_memory.md).
#include "support/delay.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <malloc.h>
#include <chrono>
#include <fstream>
#include <string>
#include "base/check.h"
#include "exchange/shared_layout.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kLayers = 8;
constexpr std::int64_t kWidth = 1024;  // A layer is 4 MiB and a little.
// Of a rank: activations, heaps of libraries, counters and cells.
constexpr std::int64_t kSlack = 3 * kMiB;

// ---- the formula ----

// Of all ranks together, while nothing is on its way.
struct Kinds {
  std::int64_t whole = 0;      // Of units, in the segment; once.
  std::int64_t shards = 0;     // Where they are private.
  std::int64_t casts = 0;      // Of those, where they are private, too.
  std::int64_t gradients = 0;  // Sharded or replicated.

  std::int64_t all() const { return whole + shards + casts + gradients; }
};

Kinds kinds_of(
    const std::vector<exchange::UnitSpec>& units,
    Strategy strategy,
    int ranks) {
  Kinds kinds;
  for (const auto& unit : units) {
    for (const auto& flat : unit.flats) {
      const auto bytes_as = [&](c10::ScalarType dtype) {
        return flat.layout.numel *
            static_cast<std::int64_t>(c10::elementSize(dtype));
      };
      const auto shard = bytes_as(flat.shard_dtype());
      const auto whole = bytes_as(flat.unsharded_dtype());
      const auto copies = strategy == Strategy::kNoShard ? ranks : 1;
      if (strategy == Strategy::kNoShard) {
        kinds.shards += copies * shard;
        kinds.casts += flat.is_cast() ? copies * whole : 0;
      } else {
        kinds.whole += whole;
        kinds.shards += flat.is_cast() ? shard : 0;
      }
      kinds.gradients += flat.trainable ? copies * shard : 0;
    }
  }
  return kinds;
}

// A rank has posted at most `under_way_max` units that it has not summed, and so
// have those who must have posted what it has summed; one more is being filled.
std::int64_t slots_max(int under_way_max) { return 2 * under_way_max + 1; }

// ---- the kernel's count ----

struct Pages {
  std::int64_t own = 0;     // Bytes.
  std::int64_t shared = 0;  // Each once, however many processes map it.
};

std::int64_t sum_over(const World& world, std::int64_t mine) {
  double sum = 0.0;
  for (const auto& theirs : world.all_gather({static_cast<double>(mine)})) {
    sum += theirs[0];
  }
  return static_cast<std::int64_t>(sum);
}

// Of all ranks, while none moves. Files are left out.
Pages pages_of_all(const World& world) {
  ::mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMiB / 2));
  ::malloc_trim(0);
  world.barrier();
  std::int64_t own = -1;
  std::int64_t shared = -1;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    const auto bytes = [&] {
      return std::stoll(line.substr(line.find(':') + 1)) * 1024;
    };
    if (line.starts_with("Pss_Anon:")) {
      own = bytes();
    } else if (line.starts_with("Pss_Shmem:")) {
      shared = bytes();
    }
  }
  EXPECT_GE(own, 0);
  EXPECT_GE(shared, 0);
  return {sum_over(world, own), sum_over(world, shared)};
}

void train(Chain& model, FullyShardedDataParallel& fsdp, int steps) {
  for (int step = 0; step < steps; ++step) {
    const auto x =
        torch::ones({1, kWidth}, model->layer(0).weight.scalar_type());
    model->forward(x).sum().backward();
    const torch::NoGradGuard no_grad;
    for (auto& slice : fsdp.parameters()) {
      slice.add_(1.0);
    }
    fsdp.publish();
  }
}

struct Kept {
  int ranks;
  Strategy strategy;
  bool mixed;
};

class SharedMemoryBytes : public testing::TestWithParam<Kept> {};

TEST_P(SharedMemoryBytes, AreThoseOfTheFormula) {
  const auto kept = GetParam();
  expect_all_ok(run_ranks(kept.ranks, [kept](World world) {
    FullyShardOptions options;
    options.exchange = ExchangeKind::kSharedMemory;
    options.strategy = kept.strategy;
    if (kept.mixed) {
      options.mixed_precision.param_dtype = torch::kBFloat16;
    }
    {
      Chain first(kLayers, kWidth);  // Libraries allocate what they keep.
      auto fsdp = fully_shard(*first, world, options);
      train(first, fsdp, 1);
    }
    const auto before = pages_of_all(world);
    Chain model(kLayers, kWidth);
    const auto units = fsdp::build_units(*model, world.size(), options).units;
    const auto expected = kinds_of(units, kept.strategy, world.size());
    auto fsdp = fully_shard(*model, world, options);
    train(model, fsdp, 3);

    const auto after = pages_of_all(world);

    const auto report = fsdp.report();
    EXPECT_EQ(sum_over(world, report.shard_bytes), expected.all());
    std::int64_t slot = 0;
    for (const auto& unit : units) {
      slot = std::max(slot, exchange::slot_bytes(unit));
    }
    const auto slots = report.gradient_slot_bytes_peak;
    EXPECT_GE(slots, slot);
    // One more large gradient is made before slots are taken back.
    EXPECT_LE(slots, (slots_max(options.reductions_under_way_max) + 1) * slot);
    const auto slots_touched = sum_over(world, slots);
    const bool replicated = kept.strategy == Strategy::kNoShard;
    const auto shared = replicated ? expected.gradients : expected.whole;
    EXPECT_NEAR(
        static_cast<double>(after.shared - before.shared),
        static_cast<double>(shared + slots_touched),
        static_cast<double>(world.size() * kSlack));
    EXPECT_NEAR(
        static_cast<double>(after.own - before.own),
        static_cast<double>(expected.all() - shared),
        static_cast<double>(world.size() * kSlack));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Kept,
    SharedMemoryBytes,
    testing::Values(
        Kept{2, Strategy::kFullShard, false},
        Kept{3, Strategy::kFullShard, false},
        Kept{2, Strategy::kFullShard, true},
        Kept{3, Strategy::kFullShard, true},
        Kept{2, Strategy::kNoShard, false},
        Kept{3, Strategy::kNoShard, false},
        Kept{2, Strategy::kNoShard, true},
        Kept{3, Strategy::kNoShard, true}),
    [](const testing::TestParamInfo<Kept>& kept) {
      return str(
          kept.param.strategy == Strategy::kNoShard ? "NoShard" : "FullShard",
          kept.param.mixed ? "BFloat16" : "Fp32", kept.param.ranks, "Ranks");
    });

// ---- gradient slots ----

constexpr std::size_t kSlots = 12;
constexpr std::int64_t kSlotBytes = 384;  // Of 6 x 7 elements, and two marks.

// One backward in which ranks 1, 2, ... are late before each unit or, where there
// is no limit, begin when rank 0 has posted all units but two.
ShardReport train_beside_slow_peers(const World& world, int under_way_max) {
  Chain model(kSlots, 6);
  FullyShardOptions options;
  options.exchange = ExchangeKind::kSharedMemory;
  options.reductions_under_way_max = under_way_max;
  auto fsdp = fully_shard(*model, world, options);
  const bool slow = world.rank() > 0;
  auto x = integer_rows(0, world.rank(), 6);
  for (std::size_t i = 0; i < kSlots; ++i) {
    x = model->layer(i).forward(x).clamp(-2, 2);
    x.register_hook([=](const torch::Tensor& gradient) {
      if (under_way_max == 0 && i == (slow ? kSlots - 1 : 1)) {
        world.barrier();
      } else if (slow) {
        be_late(3ms);
      }
      return gradient;
    });
  }
  x.sum().backward();
  return fsdp.report();
}

class SharedMemorySlots : public testing::TestWithParam<int> {};

TEST_P(SharedMemorySlots, AreFewHoweverSlowPeersAre) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int under_way_max : {1, 2, 4}) {
      const auto report = train_beside_slow_peers(world, under_way_max);
      EXPECT_LE(
          report.gradient_slot_bytes_peak,
          slots_max(under_way_max) * kSlotBytes);
    }
  }));
}

// What the limit is for.
TEST_P(SharedMemorySlots, AreAsManyAsUnitsWithoutALimit) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto report = train_beside_slow_peers(world, 0);
    if (world.rank() == 0) {
      EXPECT_GE(
          report.gradient_slot_bytes_peak,
          static_cast<std::int64_t>(kSlots - 2) * kSlotBytes);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SharedMemorySlots,
    testing::Values(2, 3),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
