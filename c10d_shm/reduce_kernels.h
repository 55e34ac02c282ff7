// SPDX-License-Identifier: Apache-2.0
//
// c10d's reduce operations on the elements of several ranks, for every dtype for which they make
// sense. bf16 and fp16 are reduced in fp32 and rounded once. Pure; runs on the calling thread only.
#pragma once

#include <string>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include "c10d_shm/communicator/collectives.h"

namespace sherd::c10d_shm {

struct TypedReduceKernel {
  ReduceKernel kernel{};
  std::size_t element_bytes = 1;
};

// Throws if `op` has no meaning for `dtype`. AVG divides the sum by `ranks`, PREMUL_SUM multiplies
// before summing; both are for floating-point numbers. Booleans: SUM and MAX are "or", PRODUCT and
// MIN "and". Integers wrap. Complex numbers: SUM, AVG and PREMUL_SUM.
TypedReduceKernel reduce_kernel_of(
    const c10d::ReduceOp& op, c10::ScalarType dtype, int ranks);

// "sum".
std::string reduce_op_name(c10d::ReduceOp::RedOpType op);

}  // namespace sherd::c10d_shm
