// SPDX-License-Identifier: Apache-2.0
//
// What a save needs beside the state, as the kernel counts it: one bounded buffer
// when it is synchronous, one copy of the rank's part when it is not. And what whole
// tensors in rank 0's memory cost: themselves, there.
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <malloc.h>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/sgd.h>
#include <torch/torch.h>

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;

constexpr std::int64_t kSaveMiB = std::int64_t{1} << 20;

// Found 0.2 MiB, at the first save. Kernels may count 0.1 MiB a processor late.
const std::int64_t kSlack =
    kSaveMiB + std::thread::hardware_concurrency() * kSaveMiB / 8;

std::int64_t bytes_in_status(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return -1;
}

// Pages that were in use at once during the action, above those before it. The
// kernel keeps the peak, so that nobody has to look at the right moment. Large
// blocks go back to the kernel when they are freed: otherwise a small block, that
// another thread puts where a tensor was, makes malloc take new pages for the next
// tensor of that size.
std::int64_t growth(const std::function<void()>& action) {
  ::mallopt(M_MMAP_THRESHOLD, 64 << 10);
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  const auto before = bytes_in_status("VmRSS");
  EXPECT_LE(bytes_in_status("VmHWM") - before, kSlack) << "no new peak";
  action();
  return bytes_in_status("VmHWM") - before;
}

// The same on every rank.
torch::nn::Sequential seeded_linear(std::int64_t in, std::int64_t out) {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(in, out));
}

struct LargeState {
  explicit LargeState(const World& world)
      : model(seeded_linear(kWidth, world.size() * kRows)),
        fsdp(fully_shard(*model, world)),
        adamw(fsdp.named_parameters()) {
    model->forward(torch::ones({1, kWidth})).sum().backward();
    adamw.step();
    adamw.zero_grad();
    state.add(fsdp.named_parameters());
    state.add("adamw", adamw, fsdp.named_parameters());
  }
  static constexpr std::int64_t kWidth = 1024;
  static constexpr std::int64_t kRows = 2700;  // Of each rank.
  // Of each rank: a weight, its bias, and both of AdamW's moments of them.
  static constexpr std::int64_t kBytes = 3 * kRows * (kWidth + 1) * 4;
  torch::nn::Sequential model;
  FullyShardedDataParallel fsdp;
  AdamW adamw;
  CheckpointState state;
};

class SaveMemory : public ::testing::TestWithParam<int> {};

TEST_P(SaveMemory, ASaveNeedsABoundedBufferOnly) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const LargeState large(world);
    CheckpointSaver saver(world, scratch.path() + "/run");
    for (const int step : {1, 2, 3}) {
      EXPECT_LE(growth([&] { saver.save(step, large.state); }), kSlack)
          << "save " << step;
    }
  }));
}

TEST_P(SaveMemory, AnAsynchronousSaveNeedsOneCopyThatTheNextOneUsesAgain) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const LargeState large(world);
    CheckpointSaver saver(
        world, scratch.path() + "/run", {.asynchronous = true});
    const auto save = [&](int step) {
      return growth([&] {
        saver.save(step, large.state);
        saver.wait();
      });
    };
    const auto first = save(1);
    EXPECT_LE(first, LargeState::kBytes + kSlack);
    EXPECT_GE(first, LargeState::kBytes - kSlack) << "a copy is no copy";
    EXPECT_LE(save(2), kSlack);
    EXPECT_LE(save(3), kSlack);
  }));
}

TEST_P(SaveMemory, T45AFullStateIsInTheMemoryOfRankZeroAlone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    LargeState large(world);
    const std::int64_t zero = world.rank() == 0 ? 1 : 0;
    const auto weight =
        world.size() * LargeState::kRows * LargeState::kWidth * 4;
    const auto all = world.size() * LargeState::kBytes;
    const auto drop = [](const std::string&, const std::string&,
                         const torch::Tensor&) {};
    EXPECT_LE(
        growth([&] { gather_full_state(world, large.state, drop); }),
        zero * weight + kSlack)
        << "one tensor at a time";
    sherd::FullState full;
    const auto grown =
        growth([&] { full = gather_full_state(world, large.state); });
    EXPECT_LE(grown, zero * all + kSlack);
    EXPECT_GE(grown, zero * (all - kSlack));
    EXPECT_LE(
        growth([&] { scatter_full_state(world, full, large.state); }), kSlack)
        << "straight from there into the shards";
  }));
}

TEST_P(SaveMemory, NoStateOfFrozenParametersIsMadeToSaveOrLoad) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto rows = world.size() * LargeState::kRows;
    auto model = seeded_linear(LargeState::kWidth, rows);
    for (const auto& parameter : model->parameters()) {
      parameter.requires_grad_(false);
    }
    model->push_back(torch::nn::Linear(rows, 1));
    const auto fsdp = fully_shard(*model, world);
    const auto parameters = fsdp.named_parameters();
    std::vector<torch::Tensor> slices;
    for (const auto& item : parameters.items) {
      slices.push_back(item.slice);
    }
    AdamW adamw(parameters);
    Sgd sgd(parameters, {.momentum = 0.9});
    torch::optim::AdamW torchs(slices);
    CheckpointState state;
    state.add(parameters);
    state.add("adamw", adamw, parameters);
    state.add("sgd", sgd, parameters);
    state.add("torch", torchs, parameters);
    CheckpointSaver saver(world, scratch.path() + "/run");
    EXPECT_LE(growth([&] { saver.save(1, state); }), kSlack);
    const auto folder = scratch.path() + "/run/step-1";
    EXPECT_LE(growth([&] { load_checkpoint(world, folder, state); }), kSlack);
    sherd::FullState full;
    full["adamw"] = full["sgd"] = full["torch"] = full["model"] = {};
    EXPECT_LE(
        growth(
            [&] { scatter_full_state(world, full, state, {.strict = false}); }),
        kSlack);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SaveMemory,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
