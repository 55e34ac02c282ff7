// SPDX-License-Identifier: Apache-2.0
//
// The values of a module's parameters and buffers before training: those it
// came with; of what is on the meta device, what options.initialise writes;
// rank 0's where that is asked for, else the same on every rank, which they
// compare. Given one after another, so that whoever keeps a slice of each holds
// one whole tensor at a time.
// Thread rule: one thread. Why failures wait for finish(): docs/design/runtime.md.
#pragma once

#include <cstddef>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/world/world.h>
#include <sherd/fsdp/fully_shard.h>
#include <torch/nn/module.h>
#include "world/equal_values.h"
#include "fsdp/model_units.h"

namespace sherd::fsdp {

class InitialValues {
 public:
  // Takes the parameters of `model` and the buffers of `module`, which it was
  // built from; options must outlive it. Changes nothing.
  InitialValues(
      const torch::nn::Module& module,
      const ModelUnits& model,
      const World& world,
      const FullyShardOptions& options);

  // Collective. Throws Error, on every rank, when on any rank something is on
  // the meta device and nobody says what its values are, and when ranks hold
  // different values of what has memory on all of them.
  void check();

  // The parameter, by its place in ModelUnits, is real and has its value on
  // return; the same tensor object. Where initialise threw, here or for an
  // earlier one, its value is undefined. Collective with sync_module_states:
  // every rank gives every parameter, in order.
  void initialise_parameter(int parameter);

  // Collective. The same for the buffers. Throws Error, on every rank, when
  // initialise threw on any, and when it wrote different values.
  void finish();

 private:
  struct Item {
    std::string name;
    at::Tensor tensor;
  };

  bool synchronised() const;
  bool compares() const;
  void check_buffers() const;
  void check_equal() const;
  void agree_when_to_compare();
  void add_digest(std::size_t item);
  bool lacks_a_source(const Item& item) const;
  const char* kind_of(std::size_t item) const;
  void initialise_item(std::size_t item);
  void initialise(std::size_t item, const at::Tensor& value);
  // Each rank's number of an item, or -1; throws when there is one.
  void throw_where_found(
      std::ptrdiff_t mine,
      const std::string& what,
      const std::string& reason) const;

  const World world_;
  const FullyShardOptions& options_;
  std::vector<Item> items_;  // Parameters, then buffers.
  std::size_t parameters_ = 0;
  std::vector<world::NamedDigest> digests_;  // By item, when ranks compare.
  bool compares_at_end_ = false;  // Some rank has something on the meta device.
  std::ptrdiff_t failed_ = -1;    // The first item whose initialise threw.
  std::string failure_;
};

}  // namespace sherd::fsdp
