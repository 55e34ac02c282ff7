// SPDX-License-Identifier: Apache-2.0
//
// CheckpointReader opens a complete checkpoint and reads ranges of its tensors, comparing every
// byte with its checksum. It owns the files that it has opened, and opens some of them again where
// a checkpoint has more than the process may have open. Thread rule: one thread, but any number of
// threads may call read() at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "ckpt/manifest.h"
#include "ckpt/open_files.h"
#include "ckpt/progress.h"
#include "plan/checkpoint_reads.h"

namespace sherd::ckpt {

// A tensor of the checkpoint, assembled from all parts.
struct StoredTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  struct PieceIndex {
    int part = 0;
    int tensor = 0;  // Index in the tensors of the part.
  };
  std::vector<PieceIndex> pieces;
};

class CheckpointReader {
 public:
  // Throws Error, naming the file, for a folder that holds no checkpoint, an
  // incomplete one, one whose JSON is damaged, and parts that contradict each
  // other. Tensors are not read. kFailedPrecondition says nothing about the checkpoint: the process
  // has too many files open.
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
  struct ReadRequest;
  std::vector<plan::SavedPiece> pieces_of(const StoredTensor& tensor) const;
  const SavedTensor& saved(const StoredTensor::PieceIndex& index) const;
  std::int64_t read_bytes(const ReadRequest& wanted) const;
  std::int64_t read_chunk(
      const ReadRequest& wanted, std::int64_t chunk, char* buffer) const;
  void pread_all(
      const ReadRequest& wanted,
      std::int64_t at,
      std::int64_t count,
      char* to) const;
  ReadRequest all_of(const StoredTensor::PieceIndex& index) const;
  void compare_header(std::size_t part, std::size_t file) const;
  void open_files();
  void collect();

  const std::string folder_;
  Manifest manifest_;
  std::vector<PartManifest> parts_;
  std::map<TensorKey, StoredTensor> tensors_;
  const std::unique_ptr<OpenFiles> files_;
};

}  // namespace sherd::ckpt
