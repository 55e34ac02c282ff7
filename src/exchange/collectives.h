// SPDX-License-Identifier: Apache-2.0
//
// Collectives over a transport, among some of its ranks, for whoever decides what
// gradients become on their way (hooked_carrier.h). They block; the same calls
// in the same order on every one of these ranks. A failure is the transport's, which
// is then only good for abandon(). Thread rule: one thread.
#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "exchange/transport.h"

namespace sherd::exchange {

class Collectives {
 public:
  // `members`: indices in the transport, ascending, with this rank's. `what` is for
  // messages. Messages of a pair and tag keep their order. The transport must outlive
  // it.
  Collectives(
      Transport& transport, std::vector<int> members, std::string what, int tag = 0);
  // Of all ranks.
  Collectives(Transport& transport, std::string what, int tag = 0);

  // Positions among the members.
  int index() const { return index_; }
  int world_rank(int member) const;
  int size() const { return static_cast<int>(members_.size()); }

  // In place, contiguous: the sum times `scale`, made in the order of members, of
  // half-precision numbers in fp32 and rounded once: the same bits everywhere.
  [[nodiscard]] Status all_reduce(const at::Tensor& tensor, double scale);

  // Every member's tensor, by position; they have the same size and dtype.
  [[nodiscard]] Result<std::vector<at::Tensor>> all_gather(
      const at::Tensor& mine);

 private:
  [[nodiscard]] Status all_reduce_at_once(const at::Tensor& flat, double scale);
  [[nodiscard]] Status all_reduce_in_slices(
      const at::Tensor& flat, double scale);

  Transport& transport_;
  const std::vector<int> members_;
  const std::string what_;
  const int tag_;
  int index_ = -1;
};

}  // namespace sherd::exchange
