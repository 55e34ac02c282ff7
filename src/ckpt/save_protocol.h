// SPDX-License-Identifier: Apache-2.0
//
// Ranks that save one checkpoint together, and the protocol by which it becomes
// complete or stays absent; docs/design/checkpoints.md has the order of steps and
// why each kill between two of them is harmless. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include "base/status.h"
#include "ckpt/file_system.h"
#include "ckpt/part_writer.h"

namespace sherd::ckpt {

// Every rank's text, by rank. `what` is for messages.
using TextAllGather = std::function<Result<std::vector<std::string>>(
    const std::string& mine, const std::string& what)>;

// Over connections of its own, so that a thread beside training may use it; of
// one rank, none. Throws Error.
TextAllGather make_private_all_gather(const World& world);
// Over the world's, which must outlive it: of the thread that uses the world.
TextAllGather all_gather_over(const World& world);

struct SaveContext {
  FileSystem& files;
  std::string folder;
  int rank = 0;
  int size = 1;
  TextAllGather gather;
  SaveOptions options;
};

// The first failure of any rank, naming it, on every rank.
Status agree(
    const SaveContext& session, const Status& mine, const std::string& what);

// The steps of the complete checkpoints in a folder, ascending. Empty where there
// is no folder.
Result<std::vector<std::int64_t>> complete_steps(
    FileSystem& files, const std::string& folder);

// With those above it; power loss does not undo it.
Status make_durable_folder(FileSystem& files, const std::string& path);

// Puts in order what a run left that was killed. Only one rank calls it.
Status clean_up(FileSystem& files, const std::string& folder);

// Collective. Complete when it returns success, else absent; one of the same step
// that was there is then as it was.
Status save_pieces(
    const SaveContext& session,
    std::int64_t step,
    const std::vector<TensorPiece>& pieces,
    const std::map<std::string, std::string>& values);

}  // namespace sherd::ckpt
