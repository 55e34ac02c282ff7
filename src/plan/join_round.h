// SPDX-License-Identifier: Apache-2.0
//
// What ranks with different numbers of inputs conclude from what each tells the others before a
// backward. Pure. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sherd::plan {

// What a rank does with the gradients of the backward that begins.
enum class JoinKind {
  kNoInputs,  // It has none; it takes part with zeros.
  kReduces,
  kKeeps,             // Under no_sync().
  kReducesPartially,  // Not across replicas.
};

struct JoinRound {
  std::vector<int> active;  // Ranks with inputs.
  int first_without = -1;   // The lowest rank without any; -1: all have some.
  // What the active ones do; kNoInputs when there is none.
  JoinKind kind = JoinKind::kNoInputs;
  // Empty, or a sentence about two of them that do different things.
  std::string difference;
};

// By rank: its JoinKind as a number.
JoinRound join_round(std::span<const double> told);

// The sentence of options.throw_on_early_termination.
std::string no_more_inputs(int rank, std::int64_t backwards);

}  // namespace sherd::plan
