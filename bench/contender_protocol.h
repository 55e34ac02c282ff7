// SPDX-License-Identifier: Apache-2.0
//
// The protocol between `sherd bench` and the programs it compares: lines on rank 0's stdin, answered
// on its stdout. Rank 0 tells the other ranks in the program's own way:
//
//   5    take 5 steps; 0 or the end of stdin: end in order
//
// Answers are "bench: " and an object of JSON: once, when every rank can run, LibTorch's version and
// each rank's process; then for each request the times of its steps on the slowest rank and the
// losses, means over the ranks:
//
//   bench: {"torch_version":"2.13.0","processes":[4711,4712]}
//   bench: {"step_ms":[8.25,8.5],"losses":[5.5,5.25]}
//
// Other lines of a program are ignored. Thread rule: pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sherd::bench {

struct ReadyReply {
  std::string torch_version;
  std::vector<int> processes;
};

struct StepsReply {
  std::vector<double> step_ms;
  std::vector<double> losses;
};

std::string line_of(const ReadyReply& ready);
std::string line_of(const StepsReply& ran);

// Whether a line belongs to the protocol.
bool is_answer(const std::string& line);

// Nothing unless the line has exactly the right form: a number of steps, processes, positive and
// finite times, as many losses as times.
std::optional<int> parse_request(const std::string& line);
std::optional<ReadyReply> parse_ready_reply(const std::string& line);
std::optional<StepsReply> parse_steps_reply(const std::string& line);

}  // namespace sherd::bench
