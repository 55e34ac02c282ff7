// SPDX-License-Identifier: Apache-2.0
//
// Encodes the records of the coordinator's log. The log has a version of its own, which grows when
// the records change; everything that older versions have written can be read. A commit is written
// as what it changes in the members of the record before, so that its size hardly grows with their
// number; to write or read one, the caller passes those members. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "base/status.h"
#include "ft/protocol/history.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Each record begins with the version that wrote it.
inline constexpr std::uint16_t kLogVersion = 5;
// The oldest version that can be read. Before version 4 a commit had all members twice, and before
// version 5 no log was recovered from replicas.
inline constexpr std::uint16_t kLogVersionMin = 2;

// `before` are the members of the history that the record follows. Throws Error for a list above
// its limit.
std::string bytes_of(const Record& record, const std::vector<Member>& before);
// A failure says what was expected and found; no byte may be left over.
Result<Record> record_of(
    std::string_view bytes, const std::vector<Member>& before);

// The members of the history after this record, if `before` are those before it.
const std::vector<Member>& members_after(
    const Record& record, const std::vector<Member>& before);

// A history in two parts: its current state, and the committed states that led there, in pieces.
std::string bytes_of_summary(const History& history);
Result<History> summary_of(std::string_view bytes);

struct PastPiece {
  SampleSet before;  // The samples of all states before these.
  std::vector<History::CommittedState> states;
  bool operator==(const PastPiece&) const = default;
};
std::string bytes_of(const PastPiece& piece);
Result<PastPiece> past_piece_of(std::string_view bytes);

}  // namespace sherd::ft
