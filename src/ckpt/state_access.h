// SPDX-License-Identifier: Apache-2.0
//
// Gives saving and loading access to the private fields of a CheckpointState. Thread rule: as for
// the state.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include "ckpt/part_writer.h"
#include "ckpt/reader.h"
#include "ckpt/save_protocol.h"

namespace sherd {

inline plan::ElementRange range_of(const NamedShard& shard) {
  return {shard.begin, shard.begin + shard.elements.numel()};
}

// Whether its elements are its bytes in this process's memory, one after another.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.is_cpu() && !tensor.is_conj() &&
      !tensor.is_neg();
}

class CheckpointAccess {
 public:
  // Throws Error for a name that no section may have: files are named after sections.
  static void check_section(const std::string& section);

  // What `rank` of `size` saves; ranks that hold the same save a share each.
  static std::vector<ckpt::TensorPiece> pieces(
      const CheckpointState& state, int rank, int size);

  static ckpt::CheckpointMetadata metadata(const CheckpointState& state);

  // What a rank loads; if `optional`, a checkpoint need not have it.
  struct LoadTarget {
    std::string section;
    NamedShard shard;  // Its elements are 1-D if they are in order.
    bool optional = false;
    // Takes what was read, on any thread. Unset: it was read to its final place.
    std::function<void(const at::Tensor&)> loaded = nullptr;
    std::function<void()> reset = nullptr;  // As in OptimizerTensor.

    ckpt::TensorKey key() const { return {section, shard.name}; }
    // Whether it is state of an optimizer, which is cleared if there is none to load.
    bool may_be_cleared() const { return optional && !loaded; }
    // Makes it what it is before the first update.
    void clear() const;
  };
  struct TargetOptions {
    // Only targets of this section; an optimizer of another one makes no state then. Unset: of all.
    std::optional<std::string> section = std::nullopt;
    // Whether there may be state of an optimizer to load of a parameter, as parameter_of() names it.
    // Optimizers make no state of others. Unset: of all.
    std::function<bool(const ckpt::TensorKey&)> updated = nullptr;
  };
  static std::vector<LoadTarget> targets(
      const CheckpointState& state, int rank, const TargetOptions& options);

  // All sections, including those without tensors yet; the same on every rank.
  static std::set<std::string> sections(const CheckpointState& state);
  // The names that a checkpoint must have; the same on every rank.
  static std::set<ckpt::TensorKey> required_names(const CheckpointState& state);
  // Whether it is a generator of the state, of a rank that exists now or of another.
  static bool is_generator(
      const CheckpointState& state, const ckpt::TensorKey& key);
  // The first name of a tied parameter, if it is a further one.
  static std::optional<ckpt::TensorKey> first_of_tied(
      const CheckpointState& state, const ckpt::TensorKey& key);
  // Throws Error unless `same`, whether the values under both names of a tied parameter are equal.
  static void check_tied(
      const std::string& where,
      const ckpt::TensorKey& key,
      const ckpt::TensorKey& first,
      bool same);
  // Section and NAME of an optimizer's tensor "exp_avg.NAME".
  static ckpt::TensorKey parameter_of(const ckpt::TensorKey& key);
  // The parameters of which a map by key has state of an optimizer, and other keys.
  static std::set<ckpt::TensorKey> parameters_of(const auto& by_key) {
    std::set<ckpt::TensorKey> parameters;
    for (const auto& [key, value] : by_key) {
      parameters.insert(parameter_of(key));
    }
    return parameters;
  }
  // Whether some rank may load it. Of an optimizer, whatever belongs to one of its parameters may
  // be loaded: which tensors ranks really have, targets() says on each.
  static bool may_contain(
      const CheckpointState& state, const ckpt::TensorKey& key);

  // Collective, before the first tensor is written: as in NamedParameters. publish() follows the
  // last one.
  static void before_load(const CheckpointState& state);
  static void publish(const CheckpointState& state);

 private:
  // `made`: parameters whose state is made if there is none, for loading. Null: for saving.
  static std::vector<LoadTarget> optimizer_shards(
      const CheckpointState::OptimizerState& optimizer,
      const std::set<std::string>* made);
};

}  // namespace sherd
