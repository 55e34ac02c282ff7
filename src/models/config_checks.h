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

// "width 12 and heads 5". `more` are further names, each followed by what was found.
template <typename T, typename... More>
void write_found(
    std::ostream& out, const char* name, const T& found, const More&... more) {
  out << name << " " << found;
  if constexpr (sizeof...(more) > 0) {
    out << " and ";
    write_found(out, more...);
  }
}

// "[models] expected a width that heads divide, found width 12 and heads 5".
template <typename T, typename... More>
void expect(
    bool holds,
    const char* expected,
    const char* name,
    const T& found,
    const More&... more) {
  if (!holds) {
    std::ostringstream message;
    message << "[models] expected " << expected << ", found ";
    write_found(message, name, found, more...);
    throw Error(message.str());
  }
}

// Checks that the sizes which every decoder has are at least 1.
template <typename Config>
void check_sizes(const Config& config) {
  expect(config.layers >= 1, "at least 1 layer", "layers", config.layers);
  expect(config.width >= 1, "a positive width", "width", config.width);
  expect(config.heads >= 1, "at least 1 head", "heads", config.heads);
  expect(
      config.sequence >= 1, "a positive sequence length", "sequence",
      config.sequence);
  expect(
      config.vocabulary >= 1, "a positive vocabulary", "vocabulary",
      config.vocabulary);
}

// Checks that there are two dimensions and no more positions than `positions_max`.
void check_ids(const at::Tensor& ids, std::int64_t positions_max);

// Checks that there are two dimensions, at least one position, the cache's number of rows, and
// room for all in a cache with this number of layers.
void check_decoding(
    const at::Tensor& ids, const KeyValueCache& cache, std::int64_t layers);

}  // namespace sherd::models
