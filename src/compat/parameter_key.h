// SPDX-License-Identifier: Apache-2.0
//
// The dispatch key by which parameters of fully_shard() and replicate() announce their own use
// (autograd/param_key.h), for code that reaches their memory without an operator of LibTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>

namespace sherd::compat {

// LibTorch itself uses it only in its own tests.
inline constexpr auto kParameterKey =
    c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// To be called before bytes are written to the memory of `tensor`: throws the Error that an
// operator which writes it would, for example for a parameter that is sharded.
inline void check_writable(const at::Tensor& tensor) {
  if (tensor.key_set().has(kParameterKey)) {
    const at::NoGradGuard no_grad;
    tensor.as_strided({0}, {1}).zero_();
  }
}

}  // namespace sherd::compat
