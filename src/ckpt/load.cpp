// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/cores.h"
#include "base/log.h"
#include "base/status_from_exception.h"
#include "ckpt/dtypes.h"
#include "ckpt/list_of.h"
#include "ckpt/reader.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"
#include "device/stream.h"

namespace sherd {
namespace {

using LoadTarget = CheckpointAccess::LoadTarget;

// Disks are faster with several requests in flight.
constexpr std::size_t kThreadsMax = 4;

// Gives errors of reading the code kUnavailable, which distinguishes a checkpoint that cannot be
// read from one that does not fit the state.
template <typename Action>
auto unavailable_unless_read(Action&& action) {
  try {
    return action();
  } catch (const Error& error) {
    throw Error(error.what(), ErrorCode::kUnavailable);
  }
}

void warn(const World& world, const std::string& message) {
  if (world.rank() == 0) {
    log_warning(message);
  }
}

class CheckpointLoader {
 public:
  CheckpointLoader(
      const std::string& folder,
      const CheckpointState& state,
      const LoadOptions& options,
      int rank)
      : reader_(unavailable_unless_read(
            [&] { return ckpt::CheckpointReader(folder); })),
        state_(state),
        options_(options),
        rank_(rank) {}

  LoadReport run() {
    compare_names();
    auto targets = CheckpointAccess::targets(state_, rank_);
    for (const auto& target : targets) {
      streams_.push_back(
          device::Stream::current(target.shard.elements.device()));
    }
    std::atomic<std::size_t> next{0};
    std::vector<std::exception_ptr> failures(std::min(
        kThreadsMax, std::max<std::size_t>(1, allowed_cores().size())));
    {
      std::vector<std::jthread> threads;
      for (auto& failure : failures) {
        threads.emplace_back([&] {
          try {
            read_all(targets, next);
          } catch (...) {
            failure = std::current_exception();
          }
        });
      }
    }
    for (const auto& failure : failures) {
      if (failure) {
        std::rethrow_exception(failure);
      }
    }
    report_.bytes_read = bytes_;
    return report_;
  }

  const ckpt::Manifest& manifest() const { return reader_.manifest(); }

 private:
  void compare_names() {
    report_.folder = reader_.folder();
    report_.step = reader_.manifest().step;
    report_.world_size = reader_.manifest().world_size;
    for (const auto& key : CheckpointAccess::required_names(state_)) {
      if (!reader_.tensors().contains(key)) {
        report_.missing.push_back(key.text());
      }
    }
    for (const auto& [key, tensor] : reader_.tensors()) {
      if (!CheckpointAccess::may_contain(state_, key)) {
        report_.unexpected.push_back(key.text());
      }
    }
    std::sort(report_.missing.begin(), report_.missing.end());
    SHERD_CHECK(
        !options_.strict || report_.missing.empty(), "[ckpt] ",
        reader_.folder(), ": expected all that the job has, found no ",
        ckpt::list_of(report_.missing));
    SHERD_CHECK(
        !options_.strict || report_.unexpected.empty(), "[ckpt] ",
        reader_.folder(), ": expected nothing that the job lacks, found ",
        ckpt::list_of(report_.unexpected));
  }

  void read_all(
      std::vector<LoadTarget>& targets, std::atomic<std::size_t>& next) {
    const at::NoGradGuard no_grad;
    for (auto i = next.fetch_add(1); i < targets.size();
         i = next.fetch_add(1)) {
      const device::CurrentStream on(streams_[i]);
      read(targets[i]);
    }
  }

  void read(LoadTarget& target) {
    auto& shard = target.shard;
    const auto found = reader_.tensors().find({target.section, shard.name});
    if (found == reader_.tensors().end()) {
      if (target.optional && !target.loaded) {
        shard.elements.zero_();  // As before its first update.
      }
      return;
    }
    SHERD_CHECK(
        found->second.shape == shard.shape, "[ckpt] ", reader_.folder(), ": ",
        target.section, " ", shard.name, ": expected shape ",
        at::IntArrayRef(shard.shape), ", found ",
        at::IntArrayRef(found->second.shape));
    const auto dtype = ckpt::dtype_named(
        found->second.dtype,
        str(reader_.folder(), ": ", target.section, " ", shard.name));
    const bool as_stored = dtype == shard.elements.scalar_type() &&
        shard.elements.is_contiguous() && shard.elements.is_cpu();
    const auto into = as_stored
        ? shard.elements
        : at::empty(shard.elements.sizes(), at::TensorOptions().dtype(dtype));
    bytes_ += unavailable_unless_read([&] {
      return reader_.read(
          found->first, {shard.begin, shard.begin + into.numel()}, rank_,
          into.mutable_data_ptr());
    });
    if (!as_stored) {
      shard.elements.copy_(into);
    }
    if (target.loaded) {
      target.loaded(shard.elements);
    }
  }

  // By target: the caller's stream, in which what was read is copied to a device.
  std::vector<device::Stream> streams_;
  const ckpt::CheckpointReader reader_;
  const CheckpointState& state_;
  const LoadOptions options_;
  const int rank_;
  LoadReport report_;
  std::atomic<std::int64_t> bytes_{0};
};

}  // namespace

LoadReport load_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options) {
  LoadReport report;
  const auto mine = status_of(
      [&] {
        CheckpointLoader load(folder, state, options, world.rank());
        report = load.run();
        state.values = load.manifest().values;
        return Status();
      },
      ErrorCode::kFailedPrecondition);
  agree(ckpt::ranks_of(world), mine, "loading a checkpoint").throw_if_failed();
  CheckpointAccess::publish(state);
  return report;
}

std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options) {
  return load_newest_checkpoint(world, folder, [&](const std::string& path) {
    return load_checkpoint(world, path, state, options);
  });
}

std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    const std::function<LoadReport(const std::string& checkpoint)>& load) {
  const auto steps = ckpt::complete_steps(ckpt::ranks_of(world), folder);
  steps.status().throw_if_failed();
  std::vector<std::string> damage;  // Of newer ones, the newest first.
  for (auto i = steps.value().size(); i > 0; --i) {
    const auto path = folder + "/" + ckpt::folder_name(steps.value()[i - 1]);
    try {
      const auto report = load(path);
      for (const auto& what : damage) {
        warn(
            world, str("[ckpt] ", path, " is loaded, not a newer one: ", what));
      }
      return report;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) {
        throw;
      }
      damage.emplace_back(error.what());
    }
  }
  SHERD_CHECK_AS(
      kUnavailable, damage.empty(), "[ckpt] expected a checkpoint in ", folder,
      " that can be read, found none: ", damage.front());
  return std::nullopt;
}

}  // namespace sherd
