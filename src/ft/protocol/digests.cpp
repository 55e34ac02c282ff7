// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/digests.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "base/check.h"

namespace sherd::ft {
namespace {

using Claims = std::vector<ReportedDigest>;

// The claims about one state, by digest.
using Groups = std::map<std::uint64_t, Claims>;

std::string names_of(const Groups& groups) {
  std::string names;
  for (const auto& [digest, claims] : groups) {
    for (const auto& one : claims) {
      names += str(names.empty() ? "replicas " : ", ", one.replica);
    }
  }
  return names;
}

std::size_t own(const Claims& claims) {
  return static_cast<std::size_t>(std::ranges::count_if(
      claims, [](const ReportedDigest& one) { return !one.digest->copied; }));
}

void judge(
    const StateId& state,
    const Groups& groups,
    std::size_t to_come,
    DigestVerdict& verdict) {
  std::size_t voters = to_come;
  auto most = groups.begin();
  for (auto one = groups.begin(); one != groups.end(); ++one) {
    voters += own(one->second);
    most = own(one->second) > own(most->second) ? one : most;
  }
  const auto agree = own(most->second);
  if (agree >= 2 && 2 * agree > voters) {
    for (const auto& [digest, claims] : groups) {
      for (const auto& one : claims) {
        if (digest != most->first) {
          verdict.wrong.push_back(
              {one.replica,
               str("its bits at ", text_of(state), " are not those of ", agree,
                   " others")});
        }
      }
    }
  } else if (to_come == 0) {
    verdict.tie =
        str(names_of(groups), " hold different bits at ", text_of(state),
            ", and no majority says whose are right: end those that you do "
            "not trust, and they come back with a copy of the others'");
    for (const auto& [digest, claims] : groups) {
      for (const auto& one : claims) {
        verdict.tied.push_back(one.replica);
      }
    }
  }
}

}  // namespace

DigestVerdict judge(const std::vector<ReportedDigest>& claims) {
  std::map<StateId, Groups> states;
  for (const auto& claim : claims) {
    if (claim.digest) {
      states[claim.digest->state][claim.digest->digest].push_back(claim);
    }
  }
  DigestVerdict verdict;
  for (const auto& [state, groups] : states) {
    if (groups.size() < 2) {
      continue;
    }
    // Replicas on their way to this state will report more.
    const auto to_come = std::ranges::count_if(
        claims, [step = state.step](const ReportedDigest& one) {
          return one.held && one.held->step < step;
        });
    judge(state, groups, static_cast<std::size_t>(to_come), verdict);
  }
  return verdict;
}

}  // namespace sherd::ft
