// SPDX-License-Identifier: Apache-2.0
//
// SumPrefetcher fetches the sums that follow a state, one after another and as they
// are made, while the state itself is on its way or older sums are applied: who is
// slower than the others' steps at fetching a state still catches up. It keeps
// them until they are taken, up to a limit; from there on the donors have to. Thread
// rule: its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>
#include "ft/transfer/fetch.h"

namespace sherd::ft {

struct SumPrefetcherOptions {
  // Any of them will do: the next one, when one fails.
  std::vector<net::HostAddress> donors;
  FetchOptions fetch{};
  // Of sums that were not taken; it may be exceeded by one.
  std::uint64_t bytes_max = 0;
};

class SumPrefetcher {
 public:
  using Done = std::function<void(Result<FetchedSum>)>;

  // Begins with the sum after `state`. The loop outlives it.
  SumPrefetcher(
      net::Loop& loop, SumPrefetcherOptions options, const StateId& state);
  SumPrefetcher(const SumPrefetcher&) = delete;
  SumPrefetcher& operator=(const SumPrefetcher&) = delete;

  // The sum after `base`, which is there or the next one to come: then `done` hears
  // it later, once, unless there is another take() first, and what was before it is
  // dropped. `donor` has it for sure: it is asked unless it is coming already.
  // False: it is neither, and nothing happens.
  bool take(const StateId& base, const net::HostAddress& donor, Done done);

  std::uint64_t bytes() const { return bytes_; }

 private:
  void collect();
  void fetch_from(const net::HostAddress& donor, Duration sum_timeout);
  void came(Result<FetchedSum> result);
  void hand_over(Result<FetchedSum> result);
  FetchedSum pop();

  net::Loop& loop_;
  const SumPrefetcherOptions options_;
  StateId next_;  // What is fetched is the sum after it.
  std::deque<FetchedSum> sums_;
  std::uint64_t bytes_ = 0;
  std::size_t donor_ = 0;
  std::size_t failures_ = 0;  // In a row.
  Done taker_;                // Waits for the sum after next_.
  net::Timer handing_over_;   // One that was there.
  std::unique_ptr<Fetch> fetch_;
};

}  // namespace sherd::ft
