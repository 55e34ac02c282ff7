// SPDX-License-Identifier: Apache-2.0
//
// Writes what one rank gives to a checkpoint: its tensors into safetensors files
// of bounded size, from where they lie, and the JSON that describes them. All of
// it is synced when it returns. Thread rule: one thread, which nobody disturbs
// who writes the tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/ckpt/checkpoint.h>
#include "base/status.h"
#include "ckpt/file_system.h"
#include "ckpt/manifest.h"

namespace sherd::ckpt {

// What this rank saves of a tensor.
struct TensorPiece {
  std::string section;
  std::string name;
  std::vector<std::int64_t> shape;  // Of the whole tensor.
  plan::ElementRange range;
  at::Tensor elements;  // 1-D, contiguous, on the CPU: those of the range.
};

struct PartOptions {
  int rank = 0;
  std::int64_t file_bytes_max = 0;  // A tensor above it has a file of its own.
  CheckpointProgress progress = nullptr;
};

Result<PartEntry> write_part(
    FileSystem& files,
    const std::string& folder,
    const std::vector<TensorPiece>& pieces,
    const PartOptions& options);

// A file with this content, synced.
Status write_file(
    FileSystem& files, const std::string& path, const std::string& content);

}  // namespace sherd::ckpt
