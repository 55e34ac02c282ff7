// SPDX-License-Identifier: Apache-2.0
//
// Collectives over the point-to-point messages of a Transport, among all or some of its ranks. They
// are written once, here, so that their results depend on neither the transport nor timing. They
// block; every member makes the same calls in the same order. A failure is the transport's, which
// is then only good for abandon(). Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "world/transport.h"

namespace sherd::world {

class Collectives {
 public:
  // All ranks, with the next collective tag; every rank makes them in the same order. `what` says
  // in messages what was waited for. The transport must outlive it.
  Collectives(Transport& transport, std::string what);
  // All ranks, with a tag of the caller's. Messages of a pair and tag keep their order.
  Collectives(Transport& transport, std::string what, int tag);
  // `members`: indices in the transport, ascending, with this rank's.
  Collectives(
      Transport& transport,
      std::vector<int> members,
      std::string what,
      int tag);

  // Positions among the members.
  int index() const { return index_; }
  int world_rank(int member) const;
  int size() const { return static_cast<int>(members_.size()); }

  [[nodiscard]] Status barrier();

  // In place, contiguous: the sum times `scale`, made in the order of members, of half-precision
  // numbers in fp32 and rounded once: the same bits everywhere.
  [[nodiscard]] Status all_reduce(const at::Tensor& tensor, double scale);

  // In place, contiguous and 1-D: elements [cuts[m], cuts[m + 1]) of member m's tensor become that
  // sum; its other elements stay as they are. `cuts` ascend from 0 to numel.
  [[nodiscard]] Status reduce_scatter(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& cuts,
      double scale);

  // Every member gets the tensors of member `root`, in place; they have the same sizes and dtypes.
  [[nodiscard]] Status broadcast(
      const std::vector<at::Tensor>& tensors, int root);

  // Every member's tensor, by position; they have the same size and dtype.
  [[nodiscard]] Result<std::vector<at::Tensor>> all_gather(
      const at::Tensor& mine);

  // Every member's string, by position, of any length each.
  [[nodiscard]] Result<std::vector<std::string>> all_gather_texts(
      const std::string& mine);

 private:
  using TensorOf = std::function<at::Tensor(int member)>;
  // Each member's part of a flat tensor.
  static TensorOf slices_of(
      const at::Tensor& flat, const std::vector<std::int64_t>& cuts);

  int peer(int member) const {
    return members_[static_cast<std::size_t>(member)];
  }
  // Receives from, and sends to, every other member; returns when all of that is done.
  [[nodiscard]] Status exchange(
      const TensorOf& incoming, const TensorOf& outgoing);
  // A tensor for each member, by position: `own` for this one, `other(member)` for the rest.
  std::vector<at::Tensor> beside_own(
      const at::Tensor& own, const TensorOf& other) const;
  [[nodiscard]] Status all_reduce_at_once(const at::Tensor& flat, double scale);
  [[nodiscard]] Status all_reduce_in_slices(
      const at::Tensor& flat, double scale);

  Transport& transport_;
  const std::vector<int> members_;
  const std::string what_;
  const int tag_;
  int index_ = -1;
};

}  // namespace sherd::world
