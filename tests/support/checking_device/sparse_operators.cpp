// SPDX-License-Identifier: Apache-2.0
//
// Sparse tensors of the checking device: creating them from indices and values on it, and returning
// those. Operators on their elements are those of the dense tensors of which they consist.
#include <ATen/ATen.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "support/checking_device/device_state.h"

namespace sherd::test {

void register_sparse_operators() {
  static torch::Library aten(
      torch::Library::IMPL, "aten", c10::DispatchKey::SparsePrivateUse1,
      __FILE__, __LINE__);
  aten.impl(
      "_sparse_coo_tensor_with_dims_and_tensors",
      at::native::new_with_dims_and_tensor_sparse_symint);
  aten.impl("_indices", at::native::_indices_sparse);
  aten.impl("_values", at::native::_values_sparse);
  aten.impl("indices", at::native::indices_sparse);
  aten.impl("values", at::native::values_sparse);
  aten.impl("_coalesced_", at::native::_coalesced_sparse_);
  aten.impl("is_coalesced", at::native::is_coalesced_sparse);
  aten.impl("sparse_dim", at::native::sparse_dim_sparse);
  aten.impl("dense_dim", at::native::dense_dim_sparse);
  aten.impl("_nnz", at::native::_nnz_sparse);
}

}  // namespace sherd::test
