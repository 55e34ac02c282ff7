// SPDX-License-Identifier: Apache-2.0
//
// For tests of checkpoints: ranks that are threads, meet at a barrier and save tensors together;
// and a comparison of the saved checkpoint with the tensors. Thread rule: pure functions and
// values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "ckpt/reader.h"
#include "ckpt/save_protocol.h"

namespace sherd::ckpt {

using SaveTensors = std::map<TensorKey, at::Tensor>;
using SavePieces = std::vector<std::vector<TensorPiece>>;  // By rank.

// A power loss may also remove the folder above it.
inline constexpr const char* kSaveFolder = "run/checkpoints";
inline constexpr std::int64_t kSaveMiB = std::int64_t{1} << 20;

TensorPiece save_piece(
    const TensorKey& key, const at::Tensor& tensor, plan::ElementRange range);

// Gives each rank its share.
SavePieces save_shares(const SaveTensors& tensors, int ranks);

struct SaveJob {
  std::string folder = kSaveFolder;
  std::int64_t step = 1;
  std::map<std::string, std::string> values = {};
  SaveOptions options = {.file_bytes_max = kSaveMiB};
};

// Returns the result of each rank.
std::vector<Status> save_all(
    FileSystem& files, const SavePieces& pieces, const SaveJob& job);

// Expects the same result on every rank.
Status save_one(
    FileSystem& files, const SavePieces& pieces, const SaveJob& job);

at::Tensor save_read(
    const CheckpointReader& reader,
    const TensorKey& key,
    plan::ElementRange range,
    int rank = 0);

// Says how the checkpoint in the folder differs from these tensors.
std::string save_difference(
    const std::string& folder, const SaveTensors& tensors);
// The result of save_difference() if they are equal.
inline constexpr const char* kSaveSame = "no error";

}  // namespace sherd::ckpt
