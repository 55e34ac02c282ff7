// SPDX-License-Identifier: Apache-2.0
//
// The protocol between `sherd bench` and the programs it compares: lines on rank 0's stdin, answered
// on its stdout. Rank 0 tells the other ranks in the program's own way:
//
//   5    take 5 steps; 0 or the end of stdin: end in order
//
// Answers are "bench: " and an object of JSON: once, when every rank can run, LibTorch's version and
// each rank's process; then for each request the times of its steps on the slowest rank, the
// losses, means over the ranks, and what all ranks together have used:
//
//   bench: {"torch_version":"2.13.0","processes":[4711,4712]}
//   bench: {"step_ms":[8.25,8.5],"losses":[5.5,5.25],"faults":0,"cpu_ms":30.5}
//
// Other lines of a program are ignored. Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>

namespace sherd::bench {

struct ReadyReply {
  std::string torch_version;
  std::vector<int> processes;
};

struct StepsReply {
  std::vector<double> step_ms;
  std::vector<double> losses;
  // A minor page fault provides a page that was never touched or was returned to the kernel: a step
  // that frees and allocates large tensors may cause thousands.
  std::int64_t faults = 0;
  double cpu_ms = 0.0;  // In user mode and in the kernel.
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReadyReply, torch_version, processes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepsReply, step_ms, losses, faults, cpu_ms)

// Whether there are processes; positive times, and as many losses.
bool is_possible(const ReadyReply& ready);
bool is_possible(const StepsReply& ran);

inline constexpr std::string_view kReplyMark = "bench: ";

// Whether a line belongs to the protocol.
inline bool is_answer(const std::string& line) {
  return line.starts_with(kReplyMark);
}

// Without the end of the line.
template <typename Reply>
std::string line_of(const Reply& reply) {
  return std::string(kReplyMark) + nlohmann::json(reply).dump();
}

// Nothing unless the line has exactly the right form, and the reply is possible.
template <typename Reply>
std::optional<Reply> parse_reply(const std::string& line) {
  try {
    if (is_answer(line)) {
      auto reply =
          nlohmann::json::parse(line.substr(kReplyMark.size())).get<Reply>();
      return is_possible(reply) ? std::optional(std::move(reply))
                                : std::nullopt;
    }
  } catch (const nlohmann::json::exception&) {  // Also for NaN and infinity.
  }
  return std::nullopt;
}

// Nothing unless the line is a number of steps.
std::optional<int> parse_request(const std::string& line);

}  // namespace sherd::bench
