// SPDX-License-Identifier: Apache-2.0
//
// What a coordinator knows from its log: the fold of the records. Thread rule:
// values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "ft/protocol/messages.h"
#include "ft/protocol/samples.h"

namespace sherd::ft {

struct History {
  std::uint64_t term = 0;  // 0: the log is empty.
  Epoch epoch;
  std::optional<StateId> canonical;  // Known from the first epoch on.
  std::optional<Commit> commit;      // That made it.
  std::vector<Member> members;       // With the samples of the step to come.
  SampleSet consumed;                // By canonical and what it was made from.
  // Committed and not rolled back, the last few: where a rollback may lead.
  struct Past {
    StateId state;
    std::optional<Commit> commit;
    SampleSet consumed;
    bool operator==(const Past&) const = default;
  };
  std::vector<Past> past;  // Oldest first; the last is canonical.

  bool operator==(const History&) const = default;
};

// Throws Error naming the record for one that cannot follow: a term or an epoch
// that is not higher, a commit of another epoch, or not of the canonical state, or
// with samples that were trained already.
void append(History& history, const Record& record);

}  // namespace sherd::ft
