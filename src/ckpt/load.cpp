// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/host.h"
#include "base/log.h"
#include "ckpt/dtypes.h"
#include "ckpt/reader.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"
#include "device/stream.h"

namespace sherd {
namespace {

using LoadTarget = CheckpointAccess::LoadTarget;

constexpr const char* kLoading = "loading a checkpoint";

// Disks are faster when several requests are under way.
constexpr std::size_t kThreadsMax = 4;

// Makes the errors of reading kUnavailable: a checkpoint that cannot be read is told from one that
// does not fit the state by that code. Too many open files say nothing about the checkpoint.
template <typename Action>
auto unavailable_unless_read(Action&& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kFailedPrecondition) {
      throw;
    }
    throw Error(error.what(), ErrorCode::kUnavailable);
  }
}

void warn(const World& world, const std::string& message) {
  if (world.rank() == 0) {
    log_warning(message);
  }
}

// The reverse of CheckpointLoader::optional_names() on all ranks.
std::set<ckpt::TensorKey> optional_in(const std::vector<std::string>& texts) {
  std::set<ckpt::TensorKey> names;
  for (const auto& text : texts) {
    for (const auto& name : nlohmann::json::parse(text)) {
      names.insert({name[0].get<std::string>(), name[1].get<std::string>()});
    }
  }
  return names;
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
        rank_(rank),
        targets_(CheckpointAccess::targets(
            state,
            rank,
            {.updated = [there = CheckpointAccess::parameters_of(
                             reader_.tensors())](const ckpt::TensorKey& key) {
              return there.contains(key);
            }})) {}

  // The names of the tensors of optimizers, which this rank would load if the checkpoint has them,
  // for run() on all ranks.
  std::string optional_names() const {
    auto json = nlohmann::json::array();
    for (const auto& target : targets_) {
      if (target.may_be_cleared()) {
        json.push_back({target.section, target.shard.name});
      }
    }
    return json.dump();
  }

  LoadReport run(const std::vector<std::string>& optional_names) {
    compare_names(optional_in(optional_names));
    for (const auto& target : targets_) {
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
            read_all(next);
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
    clear_rest();
    report_.bytes_read = bytes_;
    return report_;
  }

  const ckpt::Manifest& manifest() const { return reader_.manifest(); }

 private:
  // `optional` has the names of all ranks, since each has a part of an optimizer's parameters.
  void compare_names(const std::set<ckpt::TensorKey>& optional) {
    report_.folder = reader_.folder();
    report_.step = reader_.manifest().step;
    report_.world_size = reader_.manifest().world_size;
    const auto required = CheckpointAccess::required_names(state_);
    for (const auto& key : required) {
      if (!reader_.tensors().contains(key)) {
        missing_.insert(key);
      }
    }
    // An optimizer has all of a parameter's state in the checkpoint or, before its first update,
    // none.
    std::set<ckpt::TensorKey> updated;
    for (const auto& [key, tensor] : reader_.tensors()) {
      if (required.contains(key)) {
        continue;
      }
      updated.insert(CheckpointAccess::parameter_of(key));
      if (!optional.contains(key) &&
          !CheckpointAccess::is_generator(state_, key)) {
        report_.unexpected.push_back(key.text());
      }
    }
    for (const auto& key : optional) {
      if (!reader_.tensors().contains(key) &&
          updated.contains(CheckpointAccess::parameter_of(key))) {
        missing_.insert(key);
      }
    }
    for (const auto& key : missing_) {
      report_.missing.push_back(key.text());
    }
    std::ranges::sort(report_.missing);
    SHERD_CHECK(
        !options_.strict || report_.missing.empty(), "[ckpt] ",
        reader_.folder(), ": expected all that the job has, found no ",
        ckpt::list_of(report_.missing));
    SHERD_CHECK(
        !options_.strict || report_.unexpected.empty(), "[ckpt] ",
        reader_.folder(), ": expected nothing that the job lacks, found ",
        ckpt::list_of(report_.unexpected));
  }

  // An optimizer's state of parameters of which the checkpoint has none. On this thread, since it may
  // change the optimizer's own lists.
  void clear_rest() const {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto& target = targets_[i];
      if (target.may_be_cleared() && !missing_.contains(target.key()) &&
          !reader_.tensors().contains(target.key())) {
        const device::CurrentStream on(streams_[i]);
        target.clear();
      }
    }
  }

  void read_all(std::atomic<std::size_t>& next) {
    const at::NoGradGuard no_grad;
    for (auto i = next.fetch_add(1); i < targets_.size();
         i = next.fetch_add(1)) {
      const device::CurrentStream on(streams_[i]);
      read(targets_[i]);
    }
  }

  void read(LoadTarget& target) {
    auto& shard = target.shard;
    const auto key = target.key();
    const auto found = reader_.tensors().find(key);
    if (found == reader_.tensors().end()) {
      return;
    }
    SHERD_CHECK(
        found->second.shape == shard.shape, "[ckpt] ", reader_.folder(), ": ",
        key.text(), ": expected shape ", at::IntArrayRef(shard.shape),
        ", found ", at::IntArrayRef(found->second.shape));
    const auto dtype = ckpt::dtype_named(
        found->second.dtype, str(reader_.folder(), ": ", key.text()));
    const bool as_stored = dtype == shard.elements.scalar_type() &&
        shard.elements.is_contiguous() && shard.elements.is_cpu();
    const auto into =
        as_stored ? shard.elements : at::empty(shard.elements.sizes(), dtype);
    bytes_ += unavailable_unless_read([&] {
      return reader_.read(
          found->first, range_of(shard), rank_, into.mutable_data_ptr());
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
  std::vector<LoadTarget> targets_;
  std::set<ckpt::TensorKey> missing_;
  LoadReport report_;
  std::atomic<std::int64_t> bytes_{0};
};

}  // namespace

LoadReport load_checkpoint(
    const World& world,
    const std::string& folder,
    CheckpointState& state,
    const LoadOptions& options) {
  const auto ranks = ckpt::ranks_of(world);
  std::optional<CheckpointLoader> load;
  std::string mine;
  on_all_or_none(ranks, kLoading, [&] {
    load.emplace(folder, state, options, world.rank());
    mine = load->optional_names();
  });
  const auto names = ranks.gather(mine, kLoading);
  CheckpointAccess::before_load(state);
  LoadReport report;
  on_all_or_none(ranks, kLoading, [&] {
    report = load->run(names.value());
    state.values = load->manifest().values;
  });
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
  const auto steps =
      ckpt::complete_steps(ckpt::ranks_of(world), folder).value();
  std::vector<std::string> damage;  // Of newer ones, the newest first.
  for (auto i = steps.size(); i > 0; --i) {
    const auto path = folder + "/" + ckpt::folder_name(steps[i - 1]);
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
