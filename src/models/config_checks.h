// SPDX-License-Identifier: Apache-2.0
//
// The checks that the decoders make of their configurations and inputs. Each throws sherd::Error,
// saying what was expected and found. Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <sstream>
#include <ATen/core/Tensor.h>
#include <sherd/base/error.h>
#include <sherd/models/language_model.h>

namespace sherd::models {

template <typename T>
void expect(
    bool holds, const char* expected, const char* name, const T& found) {
  if (!holds) {
    std::ostringstream message;
    message << "[models] expected " << expected << ", found " << name << " "
            << found;
    throw Error(message.str());
  }
}

// Checks that `part` divides `whole`: "[models] expected a width that heads divide, found width 12
// and heads 5". REQUIRES: part >= 1.
struct DivisibilityCheck {
  const char* whole_name;
  std::int64_t whole;
  const char* part_name;
  std::int64_t part;
};
void expect_divides(const char* expected, const DivisibilityCheck& division);

struct DecoderSizes {
  std::int64_t layers;
  std::int64_t width;
  std::int64_t heads;
  std::int64_t sequence;
  std::int64_t vocabulary;
};
// Checks that all are at least 1.
void check_sizes(const DecoderSizes& sizes);

// Checks that there are two dimensions and no more positions than `positions_max`.
void check_ids(const at::Tensor& ids, std::int64_t positions_max);

// Checks that there are two dimensions, at least one position, and room for all in a cache with
// this number of layers.
void check_decoding(
    const at::Tensor& ids, const KeyValueCache& cache, std::int64_t layers);

}  // namespace sherd::models
