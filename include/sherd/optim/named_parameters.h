// SPDX-License-Identifier: Apache-2.0
//
// NamedParameters is what a sharding handle gives to an optimizer: this rank's
// slice of each parameter, and what to call when slices have been written. The
// one border between sharding and optimizers; neither knows the other. A value
// whose tensors share memory with the handle. Thread rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd {

struct NamedParameter {
  std::string name;  // The module's own name, e.g. "h.0.attn.c_attn.weight".
  at::Tensor slice;  // 1-D leaf of at least one element; `.grad()` is set when
                     // a synchronised backward returns. Identity is for life.
};

struct NamedParameters {
  // In module order; parameters of which this rank owns nothing are left out.
  std::vector<NamedParameter> items;
  // Called by an optimizer at the end of step(), on every rank, also one with
  // no items: makes the new values visible. May be empty (plain tensors).
  std::function<void()> publish;
  // Taken by an optimizer that calls publish in every step(); as long as it
  // holds what it gets, nobody else takes slices as written after a backward.
  // May be empty.
  std::function<std::shared_ptr<void>()> claim;
};

}  // namespace sherd
