// SPDX-License-Identifier: Apache-2.0
//
// Writes one rank's part of a checkpoint: its tensors go into safetensors files of bounded size,
// straight from their memory, followed by the JSON that describes them. Everything is synced when
// it returns. Thread rule: one thread; nobody changes the tensors meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/ckpt/checkpoint.h>
#include "base/status.h"
#include "ckpt/file_system.h"
#include "ckpt/manifest.h"
#include "ckpt/safetensors.h"

namespace sherd::ckpt {

// The range of a tensor that this rank saves.
struct TensorPiece {
  std::string section;
  std::string name;
  std::vector<std::int64_t> shape;  // Of the whole tensor.
  plan::ElementRange range;
  at::Tensor elements;  // Those of the range: 1-D, contiguous, on the CPU.
};

std::int64_t bytes_of(const std::vector<TensorPiece>& pieces);

// What the header of a file says about a tensor, without its place: a part of a tensor is saved as
// 1-D numbers. And the metadata, which explain such parts.
TensorInfo info_of(const SavedTensor& tensor);
std::map<std::string, std::string> metadata_of(
    const std::vector<SavedTensor>& tensors);

// `part` has what the manifest says besides files and tensors.
Result<Manifest::Part> write_part(
    FileSystem& files,
    const std::string& folder,
    int rank,
    const std::vector<TensorPiece>& pieces,
    PartManifest part,
    const SaveOptions& options);

// Makes a file with this content and syncs it.
Status write_file(
    FileSystem& files, const std::string& path, const std::string& content);

}  // namespace sherd::ckpt
