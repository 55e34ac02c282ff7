// SPDX-License-Identifier: Apache-2.0
//
// The text protocol between `sherd bench` and the programs it compares: lines on rank 0's stdin,
// answered on its stdout. Rank 0 tells the other ranks in the program's own way:
//
//   run 5          take 5 steps -> "bench: ran 5 MS ... LOSS ..."
//   end            end in order, as does the end of stdin
//
//   bench: ready VERSION PID ...   once, when every rank can run: LibTorch's
//                                  version and each rank's process
//
// MS is the time of a step on the slowest rank, LOSS the mean over the ranks. Other lines of a
// program are ignored. Thread rule: pure functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sherd::bench {

struct ReadyReply {
  std::string torch_version;  // Without spaces.
  std::vector<int> processes;
};

struct StepsReply {
  std::vector<double> step_ms;
  std::vector<double> losses;
};

// The request to take so many steps; 0 of them end the contender.
std::string request_line(int steps);
std::string line_of(const ReadyReply& ready);
std::string line_of(const StepsReply& ran);

// Whether a line belongs to the protocol.
bool is_answer(const std::string& line);

// Nothing unless the line has exactly the right form: numbers that are whole words, positive and
// finite times, as many losses as times.
std::optional<int> parse_request(const std::string& line);
std::optional<ReadyReply> parse_ready_reply(const std::string& line);
std::optional<StepsReply> parse_steps_reply(const std::string& line);

}  // namespace sherd::bench
