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

void RankAgent::on(const FetchTask& task) {
  SHERD_ASSERT(!task.donors.empty(), "a leader names whom to fetch from");
  fetched_.reset();
  fetch_.reset();
  std::vector<net::HostAddress> donors;
  for (const auto& address : task.donors) {
    donors.push_back(fetch_address_of(address));
  }
  auto options = fetch_options(options_, run_);
  const auto done = [this, task](auto result) {
    if (result.ok()) {
      fetched(task, std::move(result).value());
    } else {
      failed_to_fetch(task.serial, result.status());
    }
  };
  if (task.is_sum) {
    if (!collector_ || !collector_->take(task.state, donors[0], done)) {
      fetch_ = fetch_sum(loop_, donors[0], options, task.state, done);
    }
    return;
  }
  reach("fetching", task.state.step);
  fetch_ = fetch_snapshot(loop_, donors, options, task.state, done);
  if (options_.sums_kept > 0) {
    options.bytes_max = sum_.size() * sizeof(float);
    collector_.emplace(
        loop_, std::move(donors), options, options_.sums_bytes_max, task.state);
  }
}

void RankAgent::fetched(const FetchTask& task, std::string bytes) {
  fetched_ = InstallFetchedTask{
      .commit = std::nullopt,
      .state = task.state,
      .bytes = std::make_shared<const std::string>(std::move(bytes))};
  tell(FetchedEvent{.serial = task.serial});
}

// Sends the digest with the event, so that the leader can compare it with the commit.
void RankAgent::fetched(const FetchTask& task, CommittedSum sum) {
  if (sum.bytes->size() != sum_.size() * sizeof(float)) {
    failed_to_fetch(
        task.serial,
        Status(
            ErrorCode::kPeerMismatch,
            str("[ft] expected a sum of ", sum_.size() * sizeof(float),
                " bytes, found ", sum.bytes->size())));
    return;
  }
  fetched_ = InstallFetchedTask{
      .commit = sum.commit,
      .state = sum.commit.result,
      .bytes = std::move(sum.bytes)};
  // The digest needs as much memory again. If anything else fails here, the process ends and is
  // restarted: a worker thread runs no job after one that failed.
  digests_thread_.post([this, serial = task.serial, commit = sum.commit,
                        bytes = fetched_->bytes]() noexcept {
    FetchedEvent event{.serial = serial};
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
  tell(FetchedEvent{.serial = serial, .failure = why.message()});
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
