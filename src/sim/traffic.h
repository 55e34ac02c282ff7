// SPDX-License-Identifier: Apache-2.0
//
// What the messages and records of a simulated run weigh, by the encodings that the running system
// uses. In a world, messages have no addresses and no progress of ranks; what these weigh is added.
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include "ft/protocol/messages.h"

namespace sherd::sim {

struct Flow {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;

  void add(std::uint64_t size, std::uint64_t times) {
    messages += times;
    bytes += size * times;
  }
};

class Traffic {
 public:
  explicit Traffic(int ranks_per_replica);

  // Counts what is sent `times` times. `peers`: the replicas that the view has addresses of.
  void report(const ft::Report& report, std::int64_t times);
  void view(const ft::RunView& view, int peers, std::int64_t times);
  void record(const ft::Record& record, std::int64_t times);

  // Reports apart from heartbeats that repeat them.
  const Flow& reports() const { return reports_; }
  const Flow& views() const { return views_; }
  const Flow& records() const { return records_; }
  // The last ones, with their frames.
  std::uint64_t report_bytes() const { return report_bytes_; }
  std::uint64_t view_bytes() const { return view_bytes_; }

 private:
  std::uint64_t ranks_bytes_ =
      0;  // In a report: the addresses and progress of all ranks.
  std::uint64_t peer_bytes_ =
      0;  // In a view: a replica with the addresses of all ranks.
  // Sizes by all that a size depends on: encoding is most of a simulation's time otherwise.
  std::unordered_map<std::uint64_t, std::uint64_t> view_sizes_;
  std::unordered_map<std::uint64_t, std::uint64_t> report_sizes_;
  Flow reports_;
  Flow views_;
  Flow records_;
  std::uint64_t report_bytes_ = 0;
  std::uint64_t view_bytes_ = 0;
};

// What one leader and one of its ranks send each other.
struct RankTraffic {
  double messages_per_step = 0;
  double bytes_per_step = 0;
  double heartbeats_per_s = 0;
  double bytes_per_heartbeat = 0;
};
RankTraffic rank_traffic(int replicas);

}  // namespace sherd::sim
