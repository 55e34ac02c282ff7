// SPDX-License-Identifier: Apache-2.0
//
// Collectives over the point-to-point messages of a Transport, among all or some of its ranks. They
// are written once, here, so that their results depend on neither the transport nor timing. They
// block; every member makes the same calls in the same order. A failure is that of the transport,
// on which only abandon() is then useful. Thread rule: one thread.
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
  // Over all ranks, with the next collective tag; every rank creates them in the same order. `what`
  // says in messages what was waited for. The transport must outlive it.
  Collectives(Transport& transport, std::string what);
  // Over all ranks, with a tag of the caller's. Messages of a pair and tag keep their order.
  Collectives(Transport& transport, std::string what, int tag);
  // `members` are indices in the transport, ascending, and include this rank's.
  Collectives(
      Transport& transport,
      std::vector<int> members,
      std::string what,
      int tag);

  // Positions among the members.
  int index() const { return index_; }
  int world_rank(int member) const;
  int size() const { return static_cast<int>(members_.size()); }

  // The tensor is reduced in place and must be contiguous: it becomes the sum times `scale`, added
  // in the order of members. Half-precision numbers are summed in fp32 and rounded once. The bits
  // are the same everywhere.
  [[nodiscard]] Status all_reduce(const at::Tensor& tensor, double scale);

  // In place, for contiguous 1-D tensors: elements [cuts[m], cuts[m + 1]) of member m's tensor
  // become that sum; its other elements stay as they are. `cuts` ascends from 0 to numel.
  [[nodiscard]] Status reduce_scatter(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& cuts,
      double scale);

  // Every member gets the tensors of member `root`, in place; they have the same sizes and dtypes.
  [[nodiscard]] Status broadcast(
      const std::vector<at::Tensor>& tensors, int root);

  // Every member's tensor, by position; all have the same size and dtype.
  [[nodiscard]] Result<std::vector<at::Tensor>> all_gather(
      const at::Tensor& mine);

  // Every member's string, by position; lengths may differ.
  [[nodiscard]] Result<std::vector<std::string>> all_gather_texts(
      const std::string& mine);
  // The same where all members know the lengths already.
  [[nodiscard]] Result<std::vector<std::string>> all_gather_texts(
      const std::string& mine, const std::vector<std::int64_t>& lengths);

 private:
  using TensorOf = std::function<at::Tensor(int member)>;
  // Each member's part of a flat tensor.
  static TensorOf slices_of(
      const at::Tensor& flat, const std::vector<std::int64_t>& cuts);

  int peer(int member) const {
    return members_[static_cast<std::size_t>(member)];
  }
  // Receives from and sends to every other member; returns when all of that is done.
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
