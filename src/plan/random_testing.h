// SPDX-License-Identifier: Apache-2.0
//
// Support for property tests: a seeded source of small numbers. for_seeds runs a body for a series
// of seeds; it stops at the first one that fails and prints it. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <random>
#include <gtest/gtest.h>

namespace sherd::plan {

class TestRandom {
 public:
  explicit TestRandom(std::uint64_t seed) : engine_(seed) {}

  // Uniform in [low, high].
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

 private:
  std::mt19937_64 engine_;
};

template <typename Body>
void for_seeds(std::uint64_t count, Body body) {
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    TestRandom random(seed);
    body(random);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
}

}  // namespace sherd::plan
