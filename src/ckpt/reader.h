// SPDX-License-Identifier: Apache-2.0
//
// CheckpointReader opens a complete checkpoint and reads ranges of its tensors, comparing every
// byte with its checksum. It owns the files that it has opened, and opens some of them again where
// a checkpoint has more than the process may have open. Thread rule: one thread, but any number of
// threads may call read() at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "ckpt/manifest.h"
#include "ckpt/progress.h"
#include "plan/checkpoint_reads.h"

namespace sherd::ckpt {

class CheckpointReader {
 public:
  // A tensor of the checkpoint, assembled from all parts.
  struct StoredTensor {
    struct Piece {
      std::size_t part = 0;
      const SavedTensor* saved = nullptr;  // In that part.
    };
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<Piece> pieces;
  };

  // Throws Error, naming the file, for a folder that holds no checkpoint, an incomplete one, one
  // whose JSON is damaged, and parts that contradict each other. Tensors are not read.
  // kFailedPrecondition says nothing about the checkpoint: the process has too many files open.
  explicit CheckpointReader(const std::string& folder);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<PartManifest>& parts() const { return parts_; }
  const std::map<TensorKey, StoredTensor>& tensors() const { return tensors_; }

  // Writes the elements of the range, in the tensor's dtype, to `to`. The rank `reader` decides
  // which of several copies is read. Returns the number of bytes read: those wanted, rounded up to
  // whole chunks. Throws Error, naming file and byte, if a file is missing, shorter than it was, or
  // damaged, and if elements are in no part.
  std::int64_t read(
      const TensorKey& key,
      plan::ElementRange range,
      int reader,
      void* to) const;

  // Reads a whole tensor. Throws Error as read() does, and for a dtype that LibTorch lacks.
  // REQUIRES: it is in tensors().
  at::Tensor read_whole(const TensorKey& key) const;

  // Reads and verifies everything, including file headers. Returns the number of bytes of tensors.
  // Throws Error as read() does.
  std::int64_t verify(const CheckpointProgress& progress = nullptr) const;

  // The number of bytes of tensors in all parts.
  std::int64_t tensor_bytes() const;

 private:
  class OpenFiles;
  struct ReadRequest;
  std::vector<plan::SavedPiece> pieces_of(const StoredTensor& tensor) const;
  ReadRequest all_of(const StoredTensor::Piece& piece) const;
  void collect();

  const std::string folder_;
  Manifest manifest_;
  std::vector<PartManifest> parts_;
  std::map<TensorKey, StoredTensor> tensors_;
  const std::unique_ptr<OpenFiles> files_;
};

}  // namespace sherd::ckpt
