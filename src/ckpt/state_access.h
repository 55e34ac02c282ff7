// SPDX-License-Identifier: Apache-2.0
//
// What saving and loading ask of a CheckpointState. Thread rule: as the state.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include "ckpt/part_writer.h"
#include "ckpt/reader.h"

namespace sherd {

class CheckpointAccess {
 public:
  // What `rank` of `size` saves: of what several ranks hold alike each a share.
  static std::vector<ckpt::TensorPiece> pieces(
      const CheckpointState& state, int rank, int size);

  // What a rank wants to have; `optional` may be missing in a checkpoint.
  struct LoadTarget {
    std::string section;
    NamedShard shard;  // Its elements are 1-D where they lie in order.
    bool optional = false;
    // Takes what was read; unset: it lies where it belongs. Any thread.
    std::function<void(const at::Tensor&)> loaded = nullptr;
  };
  static std::vector<LoadTarget> targets(const CheckpointState& state, int rank);

  // What a strict checkpoint has: the same on every rank.
  static const std::set<ckpt::TensorKey>& required_names(const CheckpointState& state);
  // Whether some rank may want it.
  static bool may_contain(const CheckpointState& state, const ckpt::TensorKey& key);

  static void publish(const CheckpointState& state);

 private:
  static std::vector<std::pair<std::string, NamedShard>> all_shards(
      const CheckpointState& state, bool all);
};

}  // namespace sherd
