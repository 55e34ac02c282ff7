// SPDX-License-Identifier: Apache-2.0
//
// Host memory for copies from and to a device. It is pinned, so the device copies at full speed,
// and does so beside the host if a copy is non-blocking. docs/design/gpu.md. Thread rule: pure
// functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace sherd::device {

// Its content is undefined. It is pageable if `device` is the CPU.
at::Tensor empty_on_host(
    c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device);

// The tensor's elements, contiguous, where the host can read them: the tensor itself if it is that
// already. A copy from a device comes after the work of the current stream, and the host waits for
// it.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace sherd::device
