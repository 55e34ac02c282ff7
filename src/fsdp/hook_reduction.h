// SPDX-License-Identifier: Apache-2.0
//
// HookReduction gives the gradients of sharded units to a communication hook as buckets: one for
// each trainable flat, from the last unit to the first. Thread rule: reduce() is called by one
// thread; bytes() by any; the rest between backwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>
#include <sherd/ddp/comm_hook.h>
#include "exchange/make_exchange.h"
#include "fsdp/model_units.h"

namespace sherd::fsdp {

class HookReduction {
 public:
  // Elements of a parameter that lie in a range of its flat. Whole rows keep the parameter's shape;
  // the elements of a row that is cut are separate from them. There are at most three pieces, none
  // of them empty.
  struct Piece {
    std::string name;        // As in BucketParameter.
    std::int64_t begin = 0;  // From the beginning of the range.
    std::vector<std::int64_t> shape;
  };
  // `offset` is that of the parameter in its flat. A pure function.
  static std::vector<Piece> pieces_in(
      const plan::ElementRange& range,
      const std::string& name,
      at::IntArrayRef shape,
      std::int64_t offset);

  // The shards of the model's layout over which a hook reduces, and which ranks keep the result.
  struct Shards {
    int first = 0;
    int count = 1;
    // True: each rank keeps one of the shards, so as many ranks reduce. False: every rank keeps all
    // of them.
    bool scattered = false;
  };

  HookReduction(
      const ModelUnits& model, const Shards& shards, CommHookPtr hook);

  // As in exchange::ReduceHook.
  std::string name() const;
  void reduce(
      plan::UnitId unit,
      const std::vector<at::Tensor>& flats,
      const exchange::HookTransport& transport);

  // The order in which every rank reduces units, whatever it visits.
  const std::vector<plan::UnitId>& order() const { return order_; }
  void synchronised_backward_ended() { ++step_; }

  const CommHook& hook() const { return *hook_; }
  // The bytes of all tensors that the hook has passed to its group.
  std::int64_t bytes() const { return bytes_; }

 private:
  struct Flat {
    // In its bucket; -1: it is frozen, or nothing of it is reduced here.
    int index = -1;
    std::vector<std::int64_t> cuts;
    std::vector<Piece> pieces;
  };

  const CommHookPtr hook_;
  const bool compares_calls_;
  std::vector<std::string> names_;        // By unit.
  std::vector<std::vector<Flat>> flats_;  // By unit.
  std::vector<plan::UnitId> order_;
  int buckets_ = 0;
  std::int64_t step_ = 0;
  std::atomic<std::int64_t> bytes_ = 0;
};

}  // namespace sherd::fsdp
