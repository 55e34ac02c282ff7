// SPDX-License-Identifier: Apache-2.0
//
// ReplicatedModel is what a replica manages of a module, and Buckets say how its gradients are
// sent: each bucket is a unit of an exchange, with one flat. Values that keep tensors alive, the
// same on all ranks that have equal modules.
#pragma once

#include <map>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/ddp/replicate.h>
#include "exchange/exchange.h"
#include "exchange/unit_parameter.h"

namespace sherd::ddp {

struct ModuleTensor {
  std::string name;  // The first name under which it is registered.
  at::Tensor tensor;
  // Set if its module has running statistics, whose kernels take parameters in fp32; mixed
  // precision then leaves it alone.
  bool keeps_dtype = false;
};

// Tensors in module order; tied ones count once.
struct ReplicatedModel {
  std::vector<ModuleTensor> trainable;  // Those with dense gradients.
  std::vector<ModuleTensor> sparse;     // Embeddings with sparse(true).
  std::vector<ModuleTensor> frozen;
  std::vector<ModuleTensor> buffers;
  // From further names of tied parameters to those above.
  std::map<std::string, std::string> tied_names;
  c10::Device device = c10::kCPU;  // Of all of them.
};

// Throws Error for what cannot be replicated (see replicate()), and for ignored names that the
// module does not have.
ReplicatedModel collect_model(
    const torch::nn::Module& module, const std::vector<std::string>& ignored);

// Throws Error for a name that is not in model.trainable.
void check_delayed(
    const ReplicatedModel& model, const std::vector<std::string>& delayed);

// Lines that describe all tensors, for ranks to compare. They include strides, because values and
// gradients are sent in the order of memory.
std::vector<std::string> describe(const ReplicatedModel& model);

struct Buckets {
  std::vector<exchange::UnitSpec> units;
  std::vector<exchange::UnitParameter> parameters;  // By trainable parameter.
  std::vector<std::vector<int>> members;  // By bucket: trainable parameters.
};

// `order` has each trainable parameter once, in the expected order of gradients; options.delayed
// come after all others.
Buckets make_buckets(
    const std::vector<ModuleTensor>& trainable,
    const std::vector<int>& order,
    const ReplicateOptions& options,
    int ranks);

}  // namespace sherd::ddp
