// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/digest.h"
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

// The reverse of CheckpointLoader::found() on all ranks: the names of optional tensors. Throws
// Error if ranks have opened different checkpoints.
std::set<ckpt::TensorKey> optional_in(
    const std::vector<std::string>& texts, const std::string& folder) {
  std::set<ckpt::TensorKey> names;
  std::vector<nlohmann::json> found;
  for (const auto& text : texts) {
    found.push_back(nlohmann::json::parse(text));
    for (const auto& name : found.back()["optional"]) {
      names.insert({name[0].get<std::string>(), name[1].get<std::string>()});
    }
  }
  for (std::size_t rank = 1; rank < found.size(); ++rank) {
    SHERD_CHECK(
        found[rank]["digest"] == found[0]["digest"], "[ckpt] ", folder,
        ": expected a folder that all ranks share, found one checkpoint on "
        "rank 0 (host ",
        found[0]["host"].get<std::string>(), ") and another on rank ", rank,
        " (host ", found[rank]["host"].get<std::string>(), ")");
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
            }})) {
    for (const auto& target : targets_) {
      streams_.push_back(
          device::Stream::current(target.shard.elements.device()));
    }
  }

  // What all ranks need to know: which checkpoint this rank has opened, and the names of the tensors
  // of optimizers, which it would load if the checkpoint has them.
  std::string found() const {
    auto optional = nlohmann::json::array();
    for (const auto& target : targets_) {
      if (target.may_be_cleared()) {
        optional.push_back({target.section, target.shard.name});
      }
    }
    const nlohmann::json json = {
        {"digest", digest_of(to_json(reader_.manifest()))},
        {"host", host_name()},
        {"optional", std::move(optional)}};
    return json.dump();
  }

  // Compares found() of all ranks, before what follows.
  void compare(const std::vector<std::string>& found) {
    compare_names(optional_in(found, reader_.folder()));
    if (options_.strict) {
      compare_tied();
    }
  }

  // Reads what run() will read, and writes nothing.
  void verify() {
    for_each_target([this](const LoadTarget& target) {
      (void)elements_of(target, /*in_place=*/false);
    });
  }

  LoadReport run() {
    for_each_target([this](LoadTarget& target) { read(target); });
    clear_rest();
    report_.bytes_read = bytes_;
    return report_;
  }

  const ckpt::Manifest& manifest() const { return reader_.manifest(); }

 private:
  // On several threads, each in the target's stream.
  void for_each_target(const std::function<void(LoadTarget&)>& action) {
    std::atomic<std::size_t> next{0};
    std::vector<std::exception_ptr> failures(std::min(
        kThreadsMax, std::max<std::size_t>(1, allowed_cores().size())));
    {
      std::vector<std::jthread> threads;
      for (auto& failure : failures) {
        threads.emplace_back([&] {
          try {
            take_targets(next, action);
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
  }

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
          !CheckpointAccess::is_generator(state_, key) &&
          !(options_.strict && CheckpointAccess::first_of_tied(state_, key))) {
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

  // An imported checkpoint may have a tied parameter under each of its names. Each rank compares the
  // elements that it loads. What is not strict takes the first name, and reports the others.
  void compare_tied() const {
    for (const auto& [key, tensor] : reader_.tensors()) {
      const auto first = CheckpointAccess::first_of_tied(state_, key);
      if (!first || !reader_.tensors().contains(*first)) {
        continue;
      }
      const auto& other = reader_.tensors().at(*first);
      for (const auto& target : targets_) {
        if (target.key() == *first && target.shard.shape == other.shape) {
          CheckpointAccess::check_tied(
              reader_.folder(), key, *first,
              tensor.dtype == other.dtype && tensor.shape == other.shape &&
                  bytes_of(key, target).equal(bytes_of(*first, target)));
        }
      }
    }
  }

  // The elements of the checkpoint's tensor that the target would get.
  at::Tensor bytes_of(
      const ckpt::TensorKey& key, const LoadTarget& target) const {
    const auto dtype =
        ckpt::dtype_named(reader_.tensors().at(key).dtype, key.text());
    auto elements = at::empty({target.shard.elements.numel()}, dtype);
    unavailable_unless_read([&] {
      return reader_.read(
          key, range_of(target.shard), rank_, elements.mutable_data_ptr());
    });
    return elements.view(at::kByte);
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

  void take_targets(
      std::atomic<std::size_t>& next,
      const std::function<void(LoadTarget&)>& action) {
    const at::NoGradGuard no_grad;
    for (auto i = next.fetch_add(1); i < targets_.size();
         i = next.fetch_add(1)) {
      const device::CurrentStream on(streams_[i]);
      action(targets_[i]);
    }
  }

  // Reads them to their place or, if that is not possible or not wanted, to other memory. Undefined
  // if the checkpoint has none.
  at::Tensor elements_of(const LoadTarget& target, bool in_place) {
    const auto& shard = target.shard;
    const auto key = target.key();
    const auto found = reader_.tensors().find(key);
    if (found == reader_.tensors().end()) {
      return {};
    }
    SHERD_CHECK(
        found->second.shape == shard.shape, "[ckpt] ", reader_.folder(), ": ",
        key.text(), ": expected shape ", at::IntArrayRef(shard.shape),
        ", found ", at::IntArrayRef(found->second.shape));
    const auto dtype = ckpt::dtype_named(
        found->second.dtype, str(reader_.folder(), ": ", key.text()));
    SHERD_CHECK(
        !c10::isComplexType(dtype) ||
            c10::isComplexType(shard.elements.scalar_type()),
        "[ckpt] ", reader_.folder(), ": ", key.text(),
        ": expected real numbers, found ", found->second.dtype);
    const bool there = in_place && dtype == shard.elements.scalar_type() &&
        is_plain(shard.elements);
    auto into =
        there ? shard.elements : at::empty(shard.elements.sizes(), dtype);
    bytes_ += unavailable_unless_read([&] {
      return reader_.read(
          found->first, range_of(shard), rank_, into.mutable_data_ptr());
    });
    return into;
  }

  void read(LoadTarget& target) {
    auto& elements = target.shard.elements;
    const auto found = elements_of(target, /*in_place=*/true);
    if (!found.defined()) {
      return;
    }
    if (!found.is_same(elements)) {
      elements.copy_(found);
    }
    if (target.loaded) {
      target.loaded(elements);
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

// The complete checkpoints that were not tried yet, the same on every rank. Collective.
std::vector<std::int64_t> untried_steps(
    const World& world,
    const std::string& folder,
    const std::set<std::int64_t>& tried) {
  auto steps = ckpt::complete_steps(ckpt::ranks_of(world), folder).value();
  std::erase_if(steps, [&](std::int64_t step) { return tried.contains(step); });
  return steps;
}

// Loads the newest of these that can be read. Adds to `damage` what is wrong with the others.
std::optional<LoadReport> load_one_of(
    const World& world,
    const std::string& folder,
    const std::vector<std::int64_t>& steps,
    const std::function<LoadReport(const std::string& checkpoint)>& load,
    std::vector<std::string>& damage) {
  for (auto i = steps.size(); i > 0; --i) {
    const auto path = folder + "/" + ckpt::folder_name(steps[i - 1]);
    try {
      auto report = load(path);
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
  return std::nullopt;
}

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
    mine = load->found();
  });
  const auto found = ranks.gather(mine, kLoading).value();
  on_all_or_none(ranks, kLoading, [&] {
    load->compare(found);
    if (options.verify_first) {
      load->verify();
    }
  });
  CheckpointAccess::before_load(state);
  LoadReport report;
  on_all_or_none(ranks, kLoading, [&] {
    report = load->run();
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
  auto careful = options;
  careful.verify_first = options.verify_first || !options.strict;
  return load_newest_checkpoint(world, folder, [&](const std::string& path) {
    return load_checkpoint(world, path, state, careful);
  });
}

std::optional<LoadReport> load_newest_checkpoint(
    const World& world,
    const std::string& folder,
    const std::function<LoadReport(const std::string& checkpoint)>& load) {
  std::vector<std::string> damage;  // Of newer ones, the newest first.
  std::set<std::int64_t> tried;
  // A run that saves into the folder meanwhile may have removed those that were there at first.
  for (auto steps = untried_steps(world, folder, tried); !steps.empty();
       steps = untried_steps(world, folder, tried)) {
    damage.clear();
    if (auto report = load_one_of(world, folder, steps, load, damage)) {
      return report;
    }
    tried.insert(steps.begin(), steps.end());
  }
  SHERD_CHECK_AS(
      kUnavailable, damage.empty(), "[ckpt] expected a checkpoint in ", folder,
      " that can be read, found none: ", damage.front());
  return std::nullopt;
}

}  // namespace sherd
