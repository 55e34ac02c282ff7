// SPDX-License-Identifier: Apache-2.0
//
// How a rank catches up: it fetches its part of a state from several donors and meanwhile collects
// the sums of the steps that follow.
#include <cstring>
#include <exception>
#include <utility>

#include "base/check.h"
#include "ft/replica/rank_agent.h"
#include "ft/ring/block_digest.h"

namespace sherd::ft {

net::HostAddress fetch_address_of(const RankAddress& address) {
  return {address.host, address.fetch_port};
}

FetchOptions fetch_options(const RankAgentOptions& rank, std::uint64_t run) {
  return {
      .run = run,
      .shard_rank = rank.shard_rank,
      .security = rank.security,
      .timeout_without_progress = rank.timeouts.fetch,
      .user_timeout = rank.timeouts.link,
      .snapshot_timeout = rank.timeouts.snapshot};
}

void RankAgent::on(const FetchStateTask& task) {
  reach("fetching", task.state.step);
  fetched_.reset();
  std::vector<net::HostAddress> donors;
  for (const auto& address : task.donors) {
    donors.push_back(fetch_address_of(address));
  }
  fetch_ = fetch_snapshot(
      loop_, donors, fetch_options(options_, run_), task.state,
      [this, serial = task.serial,
       state = task.state](Result<std::string> bytes) {
        if (!bytes.ok()) {
          failed_to_fetch(serial, bytes.status());
          return;
        }
        fetched_ = InstallFetchedTask{
            .is_sum = false,
            .commit = {},
            .state = state,
            .bytes =
                std::make_shared<const std::string>(std::move(bytes).value())};
        FetchedEvent event;
        event.serial = serial;
        tell(std::move(event));
      });
  if (options_.sums_kept > 0) {
    auto options = fetch_options(options_, run_);
    options.bytes_max = sum_.size() * sizeof(float);
    collector_.emplace(
        loop_, std::move(donors), options, options_.sums_bytes_max, task.state);
  }
}

void RankAgent::on(const FetchSumTask& task) {
  fetched_.reset();
  const auto donor = fetch_address_of(task.donor);
  const auto done = [this, serial = task.serial](Result<CommittedSum> sum) {
    if (sum.ok()) {
      fetched_sum(serial, std::move(sum).value());
    } else {
      failed_to_fetch(serial, sum.status());
    }
  };
  fetch_.reset();
  if (!collector_ || !collector_->take(task.base, donor, done)) {
    fetch_ =
        fetch_sum(loop_, donor, fetch_options(options_, run_), task.base, done);
  }
}

// Sends the digest with the event, so that the leader can compare it with the commit.
void RankAgent::fetched_sum(std::uint64_t serial, CommittedSum sum) {
  if (sum.bytes->size() != sum_.size() * sizeof(float)) {
    failed_to_fetch(
        serial,
        Status(
            ErrorCode::kPeerMismatch,
            str("[ft] expected a sum of ", sum_.size() * sizeof(float),
                " bytes, found ", sum.bytes->size())));
    return;
  }
  fetched_ = InstallFetchedTask{
      .is_sum = true,
      .commit = sum.commit,
      .state = sum.commit.result,
      .bytes = std::move(sum.bytes)};
  // The digest needs as much memory again. If anything else fails here, the process ends and is
  // restarted: a worker thread runs no job after one that failed.
  digests_thread_.post(
      [this, serial, commit = sum.commit, bytes = fetched_->bytes]() noexcept {
        FetchedEvent event;
        event.serial = serial;
        try {
          event.digest = digest_of(*bytes);
          event.commit = commit;
        } catch (const std::exception& error) {
          event.failure = error.what();
        }
        tell(std::move(event));
        return Status();
      });
}

void RankAgent::failed_to_fetch(std::uint64_t serial, const Status& why) {
  FetchedEvent event;
  event.serial = serial;
  event.failure = why.message();
  tell(std::move(event));
}

void RankAgent::on(const StopCatchUpTask&) {
  fetch_.reset();
  collector_.reset();
  fetched_.reset();
}

// The digest that the ring computes of what it has reduced.
std::uint64_t RankAgent::digest_of(const std::string& sum) const {
  std::vector<float> values(sum_.size());
  std::memcpy(values.data(), sum.data(), sum.size());
  return ring::digest_of(options_.buckets, values.data());
}

}  // namespace sherd::ft
