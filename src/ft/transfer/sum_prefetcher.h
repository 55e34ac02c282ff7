// SPDX-License-Identifier: Apache-2.0
//
// SumPrefetcher fetches gradient sums ahead of their use, as they are made, while the state is
// still being fetched or older sums are applied. Without it, a replica that fetches a state more
// slowly than the others make steps would never catch up. Thread rule: its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>
#include "ft/transfer/fetch.h"

namespace sherd::ft {

class SumPrefetcher {
 public:
  using Done = std::function<void(Result<CommittedSum>)>;

  // Begins with the sum after `state`. The donors are interchangeable: if one fails, the next is
  // asked. `bytes_max` limits the sums that are not taken yet; it may be exceeded by one sum. The
  // loop must outlive it.
  SumPrefetcher(
      net::Loop& loop,
      std::vector<net::HostAddress> donors,
      const FetchOptions& options,
      std::uint64_t bytes_max,
      const StateId& state);
  SumPrefetcher(const SumPrefetcher&) = delete;
  SumPrefetcher& operator=(const SumPrefetcher&) = delete;

  // Takes the sum after `base`, which is here or the next to arrive, and drops earlier ones. `done`
  // is called once, later, unless another take() comes first. `donor` is known to have the sum, and
  // is asked unless the sum is already on its way. Returns false, and does nothing, for any other
  // `base`.
  bool take(const StateId& base, const net::HostAddress& donor, Done done);

  std::uint64_t bytes() const { return bytes_; }

 private:
  void collect();
  void fetch_from(const net::HostAddress& donor, Duration sum_timeout);
  void came(Result<CommittedSum> result);
  void hand_over(Result<CommittedSum> result);
  CommittedSum pop();

  net::Loop& loop_;
  const std::vector<net::HostAddress> donors_;
  const FetchOptions options_;
  const std::uint64_t bytes_max_;
  StateId next_;  // The sum after it is fetched next.
  std::deque<CommittedSum> sums_;
  std::uint64_t bytes_ = 0;
  std::size_t donor_ = 0;
  std::size_t failures_ = 0;  // Failures in a row.
  Done taker_;                // Waits for the sum after next_.
  net::Timer handing_over_;   // Passes on a sum that was already here.
  std::unique_ptr<Fetch> fetch_;
};

}  // namespace sherd::ft
