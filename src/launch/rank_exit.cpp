// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_exit.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <regex>
#include "base/check.h"
#include "base/final_refusal.h"

namespace sherd::launch {

namespace {

std::optional<int> rank_blamed_in(const std::string& text) {
  static const std::regex kBlame(
      "rank ([0-9]{1,9}) (was lost|failed:|has left|has died|has withdrawn|"
      "did not join group|gave (this backward )?up|is not responding|did not "
      "answer)|store "
      "(was|is) lost");
  std::smatch found;
  if (!std::regex_search(text, found, kBlame)) {
    return std::nullopt;
  }
  // That rank's own error follows, which may name the one that caused it.
  const std::string rest = found.suffix();
  if (rest.starts_with(": it gave up: ")) {
    if (const auto cause = rank_blamed_in(rest)) {
      return cause;
    }
  }
  // Rank 0 keeps the store.
  return found[1].matched ? std::stoi(found[1]) : 0;
}

}  // namespace

std::optional<int> blamed_rank(const std::deque<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (const auto rank = rank_blamed_in(*line)) {
      return rank;
    }
  }
  return std::nullopt;
}

bool is_refused(const std::deque<std::string>& lines) {
  return std::ranges::any_of(lines, [](const std::string& line) {
    return line.find(kFinalRefusal) != std::string::npos;
  });
}

const RankExit& first_to_fail(const std::vector<RankExit>& failures) {
  SHERD_ASSERT(!failures.empty());
  const auto found = std::ranges::find_if(failures, [](const RankExit& end) {
    return end.blames.value_or(end.rank) == end.rank;
  });
  return found == failures.end() ? failures.front() : *found;
}

std::string same_error_of(
    const RankExit& first, const std::vector<RankExit>& failures) {
  std::string ranks;
  for (const RankExit& end : failures) {
    if (end.rank != first.rank && !end.last_line.empty() &&
        end.last_line == first.last_line) {
      ranks += str(ranks.empty() ? "" : ", ", end.rank);
    }
  }
  return ranks.empty() ? "" : str("; the same error ended rank ", ranks);
}

std::string describe_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal)
                         : str("signal ", signal, " (SIG", name, ")");
}

std::string how_ended(const RankExit& end) {
  return end.signal != 0 ? "was killed by " + describe_signal(end.signal)
                         : str("exited with code ", end.exit_code);
}

std::string describe(const RankExit& end) {
  return str("rank ", end.rank, " ", how_ended(end));
}

std::string hint_of(const RankExit& end) {
  switch (end.signal) {
    case SIGKILL:
      return "; the kernel sends it too, when memory runs out";
    case SIGBUS:
      return "; a file that it reads, such as its training data, has become "
             "shorter, or shared memory has run out";
    default:
      return "";
  }
}

}  // namespace sherd::launch
