// SPDX-License-Identifier: Apache-2.0
//
// Memory of the host for what is copied from a device or to it: it is pinned, so that the device
// copies at its full speed, and beside the host where a copy is non-blocking. docs/design/gpu.md
// Thread rule: pure functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace sherd::device {

// Undefined content; pageable where `device` is the CPU.
at::Tensor empty_on_host(
    c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device);

// The tensor's elements, contiguous, where the host can read them: the tensor itself if they are
// that already. A copy from a device comes after what the current stream has been given, and the
// host waits for it.
at::Tensor on_host(const at::Tensor& tensor);

}  // namespace sherd::device
