// SPDX-License-Identifier: Apache-2.0
//
// Ranks with different numbers of inputs tell each other, before a backward, what they will do.
// This computes what follows from it. Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sherd::plan {

// What a rank does with the gradients of the backward that begins.
enum class JoinKind {
  kNoInputs,  // It has no inputs; it takes part with zeros.
  kReduces,
  kKeeps,             // It keeps them, under no_sync().
  kReducesPartially,  // It reduces them, but not across replicas.
};

struct JoinRound {
  std::vector<int> active;  // Ranks with inputs.
  int first_without = -1;   // The lowest rank without inputs; -1: none.
  // What the active ranks do; kNoInputs if there is none.
  JoinKind kind = JoinKind::kNoInputs;
  // Empty, or a sentence about two active ranks that do different things.
  std::string difference;
};

// `told` has, by rank, its JoinKind as a number.
JoinRound join_round(std::span<const double> told);

// The error message for options.throw_on_early_termination.
std::string no_more_inputs(int rank, std::int64_t backwards);

}  // namespace sherd::plan
