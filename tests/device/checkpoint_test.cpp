// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of models on devices: what they save other ranks load, on devices or on the CPU, whatever
// stream is current.
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include "device/device_parity.h"
#include "support/scratch_folder.h"

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;

// All the work of the test is in a stream other than the default one.
class SideStream {
 public:
  explicit SideStream(c10::Device device) {
    if (!device.is_cpu()) {
      guard_.emplace(
          c10::impl::VirtualGuardImpl(device.type()).getNewStream(device, 0));
    }
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

// A sharded model with an optimizer and a buffer.
class SavedJob {
 public:
  SavedJob(
      const World& world,
      c10::Device device,
      const FullyShardOptions& options = layers_by_messages())
      : world_(world),
        device_(device),
        stream_(device),
        model(mlp_on(device)),
        buffer_(model->register_buffer("steps", torch::zeros({3}, device))),
        fsdp(fully_shard(*model, world, options)),
        adamw(fsdp.named_parameters(), {.learning_rate = 0.05}) {
    state.add(fsdp.named_parameters());
    state.add_buffers(*model);
    state.add("adamw", adamw, fsdp.named_parameters());
  }

  void step(int batch) {
    loss_of(model, batch_on(device_, batch, world_.rank())).backward();
    adamw.step();
    adamw.zero_grad();
    buffer_.add_(1);
  }

  Values values() {
    auto all = whole_parameters_of(fsdp, *model);
    all.push_back(buffer_.cpu().clone());
    return all;
  }

 private:
  const World world_;
  const c10::Device device_;
  const SideStream stream_;

 public:
  DeviceMlp model;

 private:
  torch::Tensor buffer_;

 public:
  FullyShardedDataParallel fsdp;
  AdamW adamw;
  CheckpointState state;
};

// Steps 0 and 1, a save, and step 2; what ranks have then.
ParityBody saving(const std::string& folder, bool asynchronous) {
  return [=](const World& world, c10::Device device) {
    SavedJob job(world, device);
    CheckpointSaver saver(world, folder, {.asynchronous = asynchronous});
    job.step(0);
    saver.save(1, job.state);  // Later ones use the memory of its copies.
    job.step(1);
    saver.save(2, job.state);
    job.step(2);
    saver.wait();
    return job.values();
  };
}

ParityBody loading(const std::string& folder) {
  return [=](const World& world, c10::Device device) {
    SavedJob job(world, device);
    EXPECT_EQ(load_newest_checkpoint(world, folder, job.state)->step, 2);
    job.step(2);
    return job.values();
  };
}

// Neighbours in one kernel of AdamW, as slices are cut.
constexpr double kSameKernel = 0;

TEST(DeviceCheckpoints, AnotherJobOnDevicesGoesOnToTheBit) {
  for (const bool asynchronous : {false, true}) {
    SCOPED_TRACE(asynchronous);
    const ScratchFolder scratch;
    const auto folder = scratch.path() + "/run";
    const auto expected = values_by_rank(2, true, saving(folder, asynchronous));
    expect_equal_values(
        values_by_rank(2, true, loading(folder)), expected, kSameKernel);
  }
}

TEST(DeviceCheckpoints, MoveBetweenDevicesAndTheCpu) {
  for (const bool to_devices : {false, true}) {
    SCOPED_TRACE(to_devices);
    const ScratchFolder scratch;
    const auto folder = scratch.path() + "/run";
    const auto expected = values_by_rank(2, !to_devices, saving(folder, false));
    expect_equal_values(
        values_by_rank(2, to_devices, loading(folder)), expected, 1e-5);
  }
}

TEST(DeviceCheckpoints, MoveBetweenDevicesAndOffloadedShards) {
  auto offloaded = layers_by_messages();
  offloaded.cpu_offload = true;
  const auto job_with = [](const FullyShardOptions& options, bool loads,
                           const std::string& folder) -> ParityBody {
    return [=](const World& world, c10::Device device) {
      SavedJob job(world, device, options);
      if (loads) {
        (void)load_newest_checkpoint(world, folder, job.state);
      } else {
        job.step(0);
        CheckpointSaver(world, folder, {.asynchronous = false})
            .save(1, job.state);
      }
      job.step(1);
      return job.values();
    };
  };
  for (const bool to_device : {false, true}) {
    SCOPED_TRACE(to_device);
    const ScratchFolder scratch;
    const auto folder = scratch.path() + "/run";
    const auto plain = layers_by_messages();
    const auto expected = values_by_rank(
        2, true, job_with(to_device ? offloaded : plain, false, folder));
    expect_equal_values(
        values_by_rank(
            2, true, job_with(to_device ? plain : offloaded, true, folder)),
        expected, 1e-5);
  }
}

// Loads only: other ranks have other batches.
TEST(DeviceCheckpoints, AnotherNumberOfRanksLoadsThem) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  const auto load_alone = [&](int ranks) -> Values {
    return values_by_rank(ranks, true, [&](const World& world, auto device) {
      SavedJob job(world, device);
      (void)load_newest_checkpoint(world, folder, job.state);
      return job.values();
    })[0];
  };
  (void)values_by_rank(2, true, saving(folder, false));
  expect_equal_values({load_alone(4)}, {load_alone(2)});
  expect_equal_values({load_alone(1)}, {load_alone(2)});
}

TEST(DeviceCheckpoints, AFullStateIsGatheredAndScattered) {
  const auto run = [](const World& world, c10::Device device) {
    SavedJob first(world, device);
    first.step(0);
    first.step(1);
    const auto full = gather_full_state(world, first.state);
    Values values;
    for (const auto& [section, tensors] : full) {
      for (const auto& [name, tensor] : tensors) {
        EXPECT_TRUE(tensor.is_cpu()) << name;
        values.push_back(tensor);
      }
    }
    SavedJob second(world, device);
    (void)scatter_full_state(world, full, second.state);
    second.step(2);
    first.step(2);
    const auto scattered = second.values();
    expect_equal_values({scattered}, {first.values()});
    values.insert(values.end(), scattered.begin(), scattered.end());
    return values;
  };
  expect_as_on_the_cpu(2, run, 1e-5);
}

}  // namespace
}  // namespace sherd::test
