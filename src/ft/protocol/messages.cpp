// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/messages.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sherd::ft {

RankAddresses::RankAddresses(const std::vector<RankAddress>& all) {
  std::vector<HostRanks> hosts;
  for (const auto& one : all) {
    if (hosts.empty() || hosts.back().host != one.host ||
        hosts.back().key != one.key) {
      hosts.push_back({one.host, one.key, {}});
    }
    hosts.back().ports.push_back({one.reduce_port, one.fetch_port});
  }
  *this = RankAddresses(std::move(hosts));
}

RankAddresses::RankAddresses(std::vector<HostRanks> hosts) {
  std::erase_if(hosts, [](const HostRanks& one) { return one.ports.empty(); });
  if (!hosts.empty()) {
    hosts_ = std::make_shared<const std::vector<HostRanks>>(std::move(hosts));
  }
}

const std::vector<RankAddresses::HostRanks>& RankAddresses::hosts() const {
  static const std::vector<HostRanks> kNone;
  return hosts_ ? *hosts_ : kNone;
}

std::size_t RankAddresses::size() const {
  std::size_t ranks = 0;
  for (const auto& one : hosts()) {
    ranks += one.ports.size();
  }
  return ranks;
}

RankAddress RankAddresses::operator[](std::size_t rank) const {
  for (const auto& one : hosts()) {
    if (rank < one.ports.size()) {
      const auto& ports = one.ports[rank];
      return {one.host, ports.reduce, ports.fetch, one.key};
    }
    rank -= one.ports.size();
  }
  SHERD_ASSERT(false, "a rank without an address");
  return {};
}

bool has_moved(const TrainingProgress& before, const TrainingProgress& after) {
  return after.serial > before.serial || after.activity != before.activity;
}

StateId result_of(const CommitRecord& record) {
  const auto& commit = record.commit;
  return {
      commit.attempt.step,
      next_lineage(
          commit.base.lineage, commit.attempt, record.participants,
          commit.gradients)};
}

bool is_final_refusal(std::string_view fenced) {
  constexpr std::array kFinal{
      kOtherConfiguration, kOtherCheckpoint, kOtherLog, kNumberTooHigh,
      kNumberOnTwoHosts};
  return fenced.find(kEndIsLost) != std::string_view::npos ||
      std::ranges::any_of(kFinal, [&](std::string_view beginning) {
           return fenced.starts_with(beginning);
         });
}

}  // namespace sherd::ft
