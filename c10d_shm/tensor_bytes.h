// SPDX-License-Identifier: Apache-2.0
//
// A tensor as dense bytes: its own memory, or a copy if it has gaps or if the call reads what it
// also writes. Copies are made and copied back in the same way on every thread, whatever its modes.
// Thread rule: one thread at a time.
#pragma once

#include <vector>
#include <ATen/core/Tensor.h>
#include "c10d_shm/communicator/collectives.h"

namespace sherd::c10d_shm {

// When the results of a call reach its outputs: during the call if they have no gaps, or when the
// whole call is done.
enum class WriteTiming { kDirectly, kAtTheEnd };

class TensorBytes {
 public:
  // A tensor that is read, written, or both. These throw unless it is on the CPU and dense, and
  // refuse to write a tensor of which several elements share one place, as in an expanded tensor.
  static TensorBytes input(const at::Tensor& tensor);
  static TensorBytes output(
      const at::Tensor& tensor, WriteTiming writes = WriteTiming::kDirectly);
  static TensorBytes in_place(
      const at::Tensor& tensor, WriteTiming writes = WriteTiming::kDirectly);

  Bytes bytes() const;
  // Writes the copy, if there is one, to the tensor, which must have been created for writing.
  // Works on every thread, also for inference tensors and leaves that require gradients.
  void copy_back() const;

 private:
  TensorBytes(at::Tensor tensor, at::Tensor dense);

  at::Tensor tensor_;
  at::Tensor dense_;
};

std::vector<TensorBytes> inputs_of(const std::vector<at::Tensor>& tensors);
std::vector<TensorBytes> outputs_of(
    const std::vector<at::Tensor>& tensors,
    WriteTiming writes = WriteTiming::kDirectly);
std::vector<Bytes> bytes_of(const std::vector<TensorBytes>& tensors);
// The piece of each rank: `tensors` is either one tensor that holds all, or one for each rank.
std::vector<Bytes> pieces_of(
    const std::vector<TensorBytes>& tensors, int ranks);

// The memory range of the tensor, including gaps; empty if it has no elements.
Bytes extent_of(const at::Tensor& tensor);
// The same for the piece of `rank`, of tensors as for pieces_of().
Bytes extent_of_piece(
    const std::vector<at::Tensor>& tensors, int rank, int ranks);

// Whether both are the same bytes of memory.
inline bool same_place(Bytes a, Bytes b) {
  return a.data() == b.data() && a.size() == b.size();
}

// The memory of all tensors of a call, which decides when outputs are written. A call reads its
// inputs as they were when it was made, and of outputs that share memory the last one wins, as in
// Gloo.
class CallMemory {
 public:
  // Does nothing if the tensor has gaps: then a copy is read, which was made before.
  void reads(const at::Tensor& tensor);
  // Does nothing if the tensor lies at `own`: a rank's piece for itself may lie where its result is
  // written, because no other rank reads or writes it.
  void reads_unless_at(const at::Tensor& tensor, Bytes own);
  // One tensor for each rank; that of the rank itself may lie at `own`.
  void reads_pieces(
      const std::vector<at::Tensor>& tensors, int rank, Bytes own);
  void writes(const at::Tensor& tensor);
  void writes(const std::vector<at::Tensor>& tensors);

  // kAtTheEnd if something is written that is also read, or is written twice.
  WriteTiming write_timing() const;

 private:
  struct Range {
    const std::byte* begin;
    const std::byte* end;
    bool written;
  };
  void add(Bytes bytes, bool written);

  std::vector<Range> ranges_;
};

// `whole` cut into `parts` equal pieces, in order. REQUIRES: its size is a multiple of `parts`.
std::vector<Bytes> cut(Bytes whole, int parts);

// Cut at element and, if possible, cache-line boundaries, into parts as equal as these allow; the
// last ones may be empty.
std::vector<Bytes> cut_elements(
    Bytes whole, std::size_t element_bytes, int parts);

}  // namespace sherd::c10d_shm
