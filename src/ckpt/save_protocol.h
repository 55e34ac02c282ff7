// SPDX-License-Identifier: Apache-2.0
//
// The commit protocol of a checkpoint: the steps by which ranks that save together make it complete
// or leave it absent. docs/design/checkpoints.md describes their order, and why a kill between any
// two of them is harmless. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include "base/status.h"
#include "ckpt/file_system.h"
#include "ckpt/part_writer.h"

namespace sherd::ckpt {

// Gathers a text from every rank, by rank. `what` is for messages.
using TextAllGather = std::function<Result<std::vector<std::string>>(
    const std::string& mine, const std::string& what)>;

// The ranks of one checkpoint, as this rank sees them.
struct CheckpointRanks {
  int rank = 0;
  int size = 1;
  // The default is for a single rank.
  TextAllGather gather = [](const std::string& mine, const std::string&) {
    return std::vector<std::string>{mine};
  };
};

// They communicate over the world's connections, so only the thread that uses the world may call
// them. The world must outlive them.
CheckpointRanks ranks_of(const World& world);
// They communicate over connections of their own, so that a thread beside training may use them.
// Throws Error.
CheckpointRanks ranks_with_own_connections(const World& world);

// Gives every rank the first failure of any rank, and names that rank.
Status agree(
    const CheckpointRanks& ranks, const Status& mine, const std::string& what);

// Collective. Throws what `action` throws on any rank.
template <typename Action>
void on_all_or_none(
    const CheckpointRanks& ranks, const std::string& what, Action&& action) {
  const auto mine = status_of(action, ErrorCode::kFailedPrecondition);
  agree(ranks, mine, what).throw_if_failed();
}

// Gives every rank what `make` returns on rank 0, which alone calls it.
Result<std::string> text_of_rank_zero(
    const CheckpointRanks& ranks,
    const std::function<Result<std::string>()>& make,
    const std::string& what);

// What a checkpoint contains besides its tensors; taken from rank 0.
struct CheckpointMetadata {
  std::map<std::string, std::string> values = {};
  PartManifest part_of_rank_zero = {};  // Without files and tensors.
};

// What a rank saves, or why it cannot.
using PiecesOrFailure = Result<std::vector<TensorPiece>>;

struct SaveContext {
  FileSystem& files;
  std::string folder;
  CheckpointRanks ranks;
  SaveOptions options;
};

// The steps of the complete checkpoints in a folder, ascending. Empty if there is no folder.
Result<std::vector<std::int64_t>> complete_steps(
    FileSystem& files, const std::string& folder);

// Collective. The same as seen by rank 0, for every rank.
Result<std::vector<std::int64_t>> complete_steps(
    const CheckpointRanks& ranks, const std::string& folder);

// Makes a folder, and those above it, so that a power loss does not undo it.
Status make_durable_folder(FileSystem& files, const std::string& path);

// Removes or completes what a killed run left in the folder. Only one rank calls it.
Status clean_up(FileSystem& files, const std::string& folder);

// Collective. The checkpoint is complete when this returns success, else absent; then an older one
// of the same step is as it was. Where a rank has a failure for its pieces, every rank gets that.
Status save_pieces(
    const SaveContext& context,
    std::int64_t step,
    const PiecesOrFailure& pieces,
    const CheckpointMetadata& metadata);

}  // namespace sherd::ckpt
