// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_variables.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include "base/check.h"

namespace sherd::launch {
namespace {

std::string_view name_of(std::string_view entry) {
  return entry.substr(0, entry.find('='));
}

// Divides ranks in order, as evenly as possible.
int fake_host_of(const RankVariables& place, int rank) {
  return static_cast<int>(std::int64_t{rank} * place.fake_hosts / place.ranks);
}

using Variables = std::map<std::string, std::string, std::less<>>;

void add_variables_of_replica(const ReplicaVariables& place, Variables& ours) {
  ours["SHERD_COORDINATOR"] = place.coordinator;
  ours["SHERD_REPLICAS"] = str(place.replicas);
  if (place.replica) {
    ours["SHERD_REPLICA"] = str(*place.replica);
  } else {
    ours["SHERD_SPARE"] = str(place.spare_fd);
    ours["SHERD_SPARE_GROUP"] = str(place.spare);
  }
  if (place.samples > 0) {
    ours["SHERD_SAMPLES"] = str(place.samples);
  }
  if (!place.secret_file.empty()) {
    ours["SHERD_SECRET_FILE"] = place.secret_file;
  }
  if (!place.timeouts.empty()) {
    ours["SHERD_TIMEOUTS"] = place.timeouts;
  }
}

// Variables of an enclosing launcher that are wrong for these ranks.
bool is_leftover(std::string_view name, const RankVariables& place) {
  if (name == "TORCHELASTIC_USE_AGENT_STORE" || name == "SHERD_FAKE_HOST") {
    return true;
  }
  if (!place.of_replica) {
    return false;
  }
  // With a secret there are no certificates.
  const bool of_tls = name == "SHERD_TLS_CERT" || name == "SHERD_TLS_KEY" ||
      name == "SHERD_TLS_CA";
  return name == "SHERD_REPLICA" || name == "SHERD_SPARE" ||
      name == "SHERD_SPARE_GROUP" ||
      (name == "SHERD_SECRET_FILE" && !place.of_replica->keeps_secret) ||
      (of_tls && !place.of_replica->secret_file.empty());
}

}  // namespace

std::optional<std::string> find_variable(
    const std::vector<std::string>& variables, std::string_view name) {
  const auto found =
      std::ranges::find_if(variables, [&](const std::string& entry) {
        return entry.size() > name.size() && name_of(entry) == name;
      });
  if (found == variables.end()) {
    return std::nullopt;
  }
  return found->substr(name.size() + 1);
}

std::vector<std::string> variables_of_rank(
    const std::vector<std::string>& base, const RankVariables& place) {
  Variables ours = {
      {"RANK", str(place.rank)},       {"WORLD_SIZE", str(place.ranks)},
      {"LOCAL_RANK", str(place.rank)}, {"LOCAL_WORLD_SIZE", str(place.ranks)},
      {"MASTER_ADDR", "127.0.0.1"},    {"MASTER_PORT", str(place.port)}};
  if (place.fake_hosts > 0) {
    const int host = fake_host_of(place, place.rank);
    int first = 0;
    while (fake_host_of(place, first) < host) {
      ++first;
    }
    int end = first;
    while (end < place.ranks && fake_host_of(place, end) == host) {
      ++end;
    }
    ours["SHERD_FAKE_HOST"] = str(host);
    ours["LOCAL_RANK"] = str(place.rank - first);
    ours["LOCAL_WORLD_SIZE"] = str(end - first);
  }
  if (!find_variable(base, "OMP_NUM_THREADS")) {
    ours["OMP_NUM_THREADS"] = str(std::max(1, place.threads));
  }
  if (place.of_replica) {
    add_variables_of_replica(*place.of_replica, ours);
  }
  std::vector<std::string> variables;
  for (const std::string& entry : base) {
    const std::string_view name = name_of(entry);
    if (!ours.contains(name) && !is_leftover(name, place)) {
      variables.push_back(entry);
    }
  }
  for (const auto& [name, value] : ours) {
    variables.push_back(str(name, "=", value));
  }
  return variables;
}

}  // namespace sherd::launch
