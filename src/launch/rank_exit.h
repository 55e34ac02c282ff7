// SPDX-License-Identifier: Apache-2.0
//
// RankExit says how a rank ended and what that means for the launcher's own exit
// status, by the convention of shells. Thread rule: a value.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace sherd::launch {

struct RankExit {
  int rank = 0;   // Its number within its group.
  int group = 0;  // Only fault-tolerant jobs have several.
  int exit_code = 0;
  // If not 0, the signal that killed it; exit_code is then meaningless.
  int signal = 0;
  // The last line that it wrote.
  std::string last_line = {};
  // The rank without which it could not go on, according to its output; this may be the rank
  // itself.
  std::optional<int> blames = {};
  // The coordinator has refused its replica for good, according to its output.
  bool refused = false;

  bool failed() const { return signal != 0 || exit_code != 0; }
  // 128 + signal for a rank that was killed.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// The exit code of programs that do not understand their command line, and of replicas that were
// refused for good.
inline constexpr int kWrongUsage = 2;

// The rank that these last lines of a rank name as lost or failed, in the words of sherd's errors.
// If they quote the error of the rank that was lost, the one that this error names.
std::optional<int> blamed_rank(const std::deque<std::string>& lines);

// Whether these last lines of a rank have the error of a replica that was refused for good.
bool is_refused(const std::deque<std::string>& lines);

// Takes the failed ranks in the order in which the failures were noticed. Returns the first one
// that blames no other rank, since a rank that has lost another may end before it; if each blames
// another, the first of all. REQUIRES: there is one.
const RankExit& first_to_fail(const std::vector<RankExit>& failures);

// "; the same error ended rank 1, 3": the failures with the last line of `first`; often empty.
std::string same_error_of(
    const RankExit& first, const std::vector<RankExit>& failures);

// "signal 9 (SIGKILL)".
std::string describe_signal(int signal);

// "was killed by signal 9 (SIGKILL)" or "exited with code 3".
std::string how_ended(const RankExit& end);

// "rank 2 was killed by signal 9 (SIGKILL)".
std::string describe(const RankExit& end);

// A hint that the user may not think of, to be added to the description; often empty.
std::string hint_of(const RankExit& end);

}  // namespace sherd::launch
