// SPDX-License-Identifier: Apache-2.0
#include "bench/collectives.h"

#include <algorithm>
#include <utility>

namespace sherd::bench {

namespace {

bool same_case(const CollectiveTimes& a, const CollectiveTimes& b) {
  return a.operation == b.operation && a.dtype == b.dtype && a.bytes == b.bytes;
}

// The first result of each case.
std::vector<CollectiveTimes> cases_of(const std::vector<CollectiveTimes>& all) {
  std::vector<CollectiveTimes> cases;
  for (const auto& each : all) {
    if (std::none_of(cases.begin(), cases.end(), [&](const auto& known) {
          return same_case(known, each);
        })) {
      cases.push_back(each);
    }
  }
  return cases;
}

const CollectiveTimes* find(
    const std::vector<CollectiveTimes>& all,
    const CollectiveTimes& of_case,
    const std::string& contender) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& t) {
    return same_case(t, of_case) && t.contender == contender;
  });
  return found == all.end() ? nullptr : &*found;
}

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  return bytes >= kMiB ? format("%ld MiB", static_cast<long>(bytes / kMiB))
                       : format("%ld KiB", static_cast<long>(bytes / 1024));
}

std::string cell(const CollectiveTimes* times) {
  return times == nullptr ? format("%10s", "-")
                          : format("%10.3f", median(times->round_ms));
}

}  // namespace

int checked_value(int rank) { return rank % 4 + 1; }

bool is_possible(const CollectiveTimes& times) {
  return times.bytes > 0 && !times.round_ms.empty() &&
      std::ranges::min(times.round_ms) > 0.0;
}

std::string table_of(
    int ranks,
    const std::vector<CollectiveTimes>& all,
    const BenchmarkContext& context) {
  std::string table = "sherd " + context.sherd_version + " (" + context.commit +
      "), " + context.build + ", " + context.machine + "\n" +
      std::to_string(ranks) +
      " ranks; medians in ms; how many times as fast as others shm is, with "
      "95 % intervals\n\n" +
      format("%-14s %-5s %8s %10s %10s %10s %10s  %-21s %s\n", "operation",
             "dtype", "bytes", "shm", "gloo", "deepspeed", "memcpy", "gloo/shm",
             "deepspeed/shm");
  for (const auto& each : cases_of(all)) {
    const auto* shm = find(all, each, "shm");
    const auto* gloo = find(all, each, "gloo");
    table += format(
                 "%-14s %-5s %8s ", each.operation.c_str(), each.dtype.c_str(),
                 size_text(each.bytes).c_str()) +
        cell(shm) + " " + cell(gloo) + " " +
        cell(find(all, each, "deepspeed")) + " " +
        cell(find(all, each, "memcpy"));
    for (const auto* other : {gloo, find(all, each, "deepspeed")}) {
      if (shm != nullptr && other != nullptr) {
        const auto ratio =
            estimate_median(ratios(other->round_ms, shm->round_ms));
        table += format(
            "  %-20s",
            format("%.2f (%.2f-%.2f)", ratio.median, ratio.low, ratio.high)
                .c_str());
      }
    }
    table += "\n";
  }
  return table;
}

std::string json_of(
    int ranks,
    const std::vector<CollectiveTimes>& all,
    const BenchmarkContext& context) {
  Json result;
  result["bench"] = "collectives";
  result["ranks"] = ranks;
  put(result, context);
  result["cases"] = Json::array();
  for (const auto& each : cases_of(all)) {
    Json entry;
    entry["operation"] = each.operation;
    entry["dtype"] = each.dtype;
    entry["bytes"] = each.bytes;
    const auto* shm = find(all, each, "shm");
    for (const auto& times : all) {
      if (!same_case(times, each)) {
        continue;
      }
      entry[times.contender + "_ms"] = median(times.round_ms);
      if (shm != nullptr && times.contender != "shm" &&
          times.round_ms.size() == shm->round_ms.size()) {
        // As in the bars: relative to the other's time.
        const auto part =
            estimate_median(ratios(shm->round_ms, times.round_ms));
        put(entry, "of_" + times.contender, part);
      }
    }
    result["cases"].push_back(std::move(entry));
  }
  return result.dump();
}

}  // namespace sherd::bench
