// SPDX-License-Identifier: Apache-2.0
//
// InitialValues gives a module's parameters and buffers their values before training. They are the
// values that they already have or, on the meta device, those that options.initialise writes. With
// sync_module_states all ranks get rank 0's; otherwise values must be equal on every rank, which
// ranks compare. It works tensor by tensor, so that deferred initialisation needs memory for only
// one whole parameter at a time. Thread rule: one thread. Why failures wait for finish():
// docs/design/runtime.md.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/world/world.h>
#include "fsdp/model_units.h"
#include "world/equal_values.h"

namespace sherd::fsdp {

class InitialValues {
 public:
  // For the parameters of `model` and the buffers of `module`, from which the model was built.
  // Changes nothing yet. `options` must outlive it.
  InitialValues(
      const torch::nn::Module& module,
      const ModelUnits& model,
      const World& world,
      const FullyShardOptions& options);

  // Collective. Throws Error, on every rank, if on some rank something on the meta device has no
  // source of values, or cannot take rank 0's with sync_module_states; and if ranks hold different
  // values of what has memory on all of them.
  void check();

  // When it returns, the parameter, given by its index in ModelUnits, has memory and its value; it
  // stays the same tensor object. After initialise has thrown, values are undefined. Collective
  // with sync_module_states: every rank calls this for every parameter, in order.
  void initialise_item(std::size_t item);

  // Collective. Does the same for the buffers. Throws Error, on every rank, if initialise threw on
  // some rank or wrote different values on different ranks.
  void finish();

 private:
  struct Item {
    std::string name;
    at::Tensor tensor;
  };

  void check_buffers() const;
  void check_equal() const;
  void agree_when_to_compare();
  void add_digest(std::size_t item);
  const char* kind_of(std::size_t item) const;
  void initialise(std::size_t item, const at::Tensor& value);
  // Collective. Throws, on every rank, if `is_wrong` is true for a tensor on some rank.
  void refuse_items(
      const std::function<bool(const at::Tensor&)>& is_wrong,
      const std::string& what,
      const std::string& reason) const;
  // `mine` is an item or -1. Throws, on every rank, if some rank names an item.
  void throw_where_found(
      std::ptrdiff_t mine,
      const std::string& what,
      const std::string& reason) const;

  const World world_;
  const FullyShardOptions& options_;
  const c10::Device device_;  // Where tensors on the meta device get memory.
  const bool synchronised_;   // All ranks get rank 0's values,
  const bool receives_;       // and this one is another.
  const bool compares_;       // Values must be equal on every rank.
  std::vector<Item> items_;   // Parameters, then buffers.
  std::size_t parameters_ = 0;
  std::vector<world::NamedDigest> digests_;  // By item, if ranks compare.
  bool compares_at_end_ = false;  // Some rank has something on the meta device.
  std::ptrdiff_t failed_ = -1;    // The first item whose initialise threw.
  std::string failure_;
};

}  // namespace sherd::fsdp
