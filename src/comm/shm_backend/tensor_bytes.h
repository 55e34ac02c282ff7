// SPDX-License-Identifier: Apache-2.0
//
// A tensor as bytes without gaps: its own, or those of a copy where it has
// gaps. Thread rule: one thread at a time.
#pragma once

#include <vector>
#include <ATen/core/Tensor.h>
#include "comm/shm/collectives.h"

namespace sherd::comm::shm {

class TensorBytes {
 public:
  // What is read; what is written; both. Throw unless on the CPU and dense.
  static TensorBytes input(const at::Tensor& tensor);
  static TensorBytes output(const at::Tensor& tensor);
  static TensorBytes in_place(const at::Tensor& tensor);

  Bytes bytes() const;
  // Writes what lies in the copy to the tensor. Of what is written.
  void give_back() const;

 private:
  TensorBytes(at::Tensor tensor, at::Tensor dense);

  at::Tensor tensor_;
  at::Tensor dense_;
};

std::vector<TensorBytes> inputs_of(const std::vector<at::Tensor>& tensors);
std::vector<TensorBytes> outputs_of(const std::vector<at::Tensor>& tensors);
std::vector<Bytes> bytes_of(const std::vector<TensorBytes>& tensors);

// `whole` cut into `parts` equal ones, in order.
// REQUIRES: its size is a multiple.
std::vector<Bytes> cut(Bytes whole, int parts);

// Cut at element and, where it can be, cache-line borders, as equal as they
// allow; the last ones may be empty.
std::vector<Bytes> cut_elements(
    Bytes whole, std::size_t element_bytes, int parts);

}  // namespace sherd::comm::shm
