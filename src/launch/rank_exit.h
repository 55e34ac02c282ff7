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
  int rank = 0;
  int exit_code = 0;
  int signal = 0;  // Not 0: killed by it, and exit_code means nothing.
  std::string last_line = {};  // Of what it wrote.
  // The rank without which it could not go on, as it wrote; perhaps itself.
  std::optional<int> blames = {};

  bool failed() const { return signal != 0 || exit_code != 0; }
  // 128 + signal for a rank that was killed.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// The rank that the last lines of another one name as lost or failed, in the words of sherd's
// errors.
std::optional<int> blamed_rank(const std::deque<std::string>& lines);

// Among ranks that failed, in the order in which that was noticed: the first one that blames no
// other, since one that has lost another may end before it. When each blames another: the first.
// REQUIRES: there is one.
const RankExit& first_to_fail(const std::vector<RankExit>& failures);

// "; the same error ended rank 1, 3": those with the last line of `first`; often nothing.
std::string same_error_of(
    const RankExit& first, const std::vector<RankExit>& failures);

// "signal 9 (SIGKILL)".
std::string describe_signal(int signal);

// "rank 2 was killed by signal 9 (SIGKILL)".
std::string describe(const RankExit& end);

// What the user may not think of, to be added to that; often nothing.
std::string hint_of(const RankExit& end);

}  // namespace sherd::launch
