// SPDX-License-Identifier: Apache-2.0
//
// The workloads of `sherd bench step`: each is a GPT with a byte vocabulary and an untied head,
// trained on random bytes. In `wide` weights dominate, in `tiny` fixed costs; `small` is `sherd
// train` in small. Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd::bench {

struct Workload {
  std::string name;
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t sequence = 0;
  std::int64_t batch = 0;  // Rows per rank.
  // Timed steps between two changes of contender: about half a second of the
  // bound on one core of a server of 2024.
  int block_steps = 0;
};

constexpr std::int64_t kVocabulary = 256;
// That of every contender; otherwise AdamW has its defaults.
constexpr double kLearningRate = 3e-4;

// Throws Error that names the known ones.
const Workload& workload_named(const std::string& name);

// How many parameters the model has, all of them trained.
std::int64_t parameters_of(const Workload& work);

// The arguments for each contender's program: "--layers", "6", and so on.
std::vector<std::string> flags_of(const Workload& work);

}  // namespace sherd::bench
