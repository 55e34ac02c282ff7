// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/batches.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <vector>
#include <ATen/ops/empty.h>
#include "base/check.h"
#include "base/hash.h"
#include "data/permutation.h"

namespace sherd::data {
namespace {

constexpr std::int64_t kValidationShare = 10;  // One token in so many.
// Enough to sample every large folder, few enough that hardly a window crosses
// from one stripe into the next.
constexpr std::int64_t kStripesMax = 64;
constexpr std::int64_t kValidationWindowsPerStripe = 64;

BatchOptions checked(const BatchOptions& options) {
  SHERD_CHECK(
      options.batch >= 1 && options.sequence >= 1,
      "[data] expected a batch and a sequence of at least 1, found ",
      options.batch, " and ", options.sequence);
  SHERD_CHECK(
      options.rank >= 0 && options.rank < options.world_size,
      "[data] expected a rank in [0, ", options.world_size, "), found ",
      options.rank);
  SHERD_CHECK(
      options.batch % options.world_size == 0,
      "[data] expected a global batch that the world size divides, found "
      "batch ",
      options.batch, " and world size ", options.world_size);
  return options;
}

std::string hex(std::uint64_t hash) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016" PRIx64, hash);
  return text;
}

}  // namespace

GlobalBatches::GlobalBatches(const Corpus& corpus, const BatchOptions& options)
    : corpus_(corpus), options_(checked(options)) {
  const auto window = options_.sequence + 1;
  const auto stripes = std::clamp<std::int64_t>(
      corpus.tokens() /
          (kValidationShare * kValidationWindowsPerStripe * window),
      1, kStripesMax);
  const auto stripe = corpus.tokens() / stripes;
  const auto held_out = std::max(stripe / kValidationShare, window);
  const auto rest = stripe - held_out;
  training_ = {
      .stripes = stripes, .stripe = stripe, .skipped = 0, .part = rest};
  validation_ = {
      .stripes = stripes, .stripe = stripe, .skipped = rest, .part = held_out};
  SHERD_CHECK(
      rest >= window, "[data] ", corpus.path(), ": expected at least ",
      2 * window, " tokens (sequence ", options_.sequence,
      ": one window to train on, one to validate), found ", corpus.tokens());
}

void GlobalBatches::copy(
    const StripedText& text,
    std::int64_t first,
    std::int64_t count,
    std::int64_t* to) const {
  while (count > 0) {
    const auto inside = first % text.part;
    const auto taken = std::min(count, text.part - inside);
    corpus_.copy(
        first / text.part * text.stripe + text.skipped + inside, taken, to);
    first += taken;
    count -= taken;
    to += taken;
  }
}

void GlobalBatches::copy_validation(
    std::int64_t first, std::int64_t count, std::int64_t* to) const {
  SHERD_CHECK(
      first >= 0 && count >= 0 && first <= validation_tokens() - count,
      "[data] expected a range inside the ", validation_tokens(),
      " tokens of the validation text, found ", count, " from ", first);
  copy(validation_, first, count, to);
}

// Rows that start at `starts`, split into inputs and targets.
Batch GlobalBatches::rows_at(
    const StripedText& text, const std::vector<std::int64_t>& starts) const {
  const auto rows = static_cast<std::int64_t>(starts.size());
  const auto length = options_.sequence;
  Batch batch{
      .inputs = at::empty({rows, length}, at::kLong),
      .targets = at::empty({rows, length}, at::kLong)};
  auto* input = batch.inputs.mutable_data_ptr<std::int64_t>();
  auto* target = batch.targets.mutable_data_ptr<std::int64_t>();
  for (const auto start : starts) {
    copy(text, start, length, input);
    copy(text, start + 1, length, target);
    input += length;
    target += length;
  }
  return batch;
}

std::int64_t GlobalBatches::first_row() const {
  return options_.rank * row_count();
}

std::int64_t GlobalBatches::row_count() const {
  return options_.batch / options_.world_size;
}

// Sample number s of the run is window s % n of epoch s / n, shuffled. An epoch
// cuts the text at an offset below `sequence` at which all n windows fit.
std::int64_t GlobalBatches::window_start(std::int64_t sample) const {
  const auto length = options_.sequence;
  const auto windows =
      std::max<std::int64_t>(1, (training_tokens() - length) / length);
  const auto offsets = std::min(length, training_tokens() - windows * length);
  const auto epoch = static_cast<std::uint64_t>(sample / windows);
  const auto key = mix64(mix64(options_.seed) + epoch);
  const auto offset =
      static_cast<std::int64_t>(key % static_cast<std::uint64_t>(offsets));
  return offset + Permutation(windows, key).at(sample % windows) * length;
}

Batch GlobalBatches::samples(const std::vector<std::int64_t>& numbers) const {
  std::vector<std::int64_t> starts;
  for (const auto number : numbers) {
    SHERD_CHECK(
        number >= 0, "[data] expected a sample of at least 0, found ", number);
    starts.push_back(window_start(number));
  }
  return rows_at(training_, starts);
}

Batch GlobalBatches::at(std::int64_t step) const {
  SHERD_CHECK(step >= 0, "[data] expected a step of at least 0, found ", step);
  std::vector<std::int64_t> starts;
  for (std::int64_t row = 0; row < row_count(); ++row) {
    starts.push_back(window_start(step * options_.batch + first_row() + row));
  }
  return rows_at(training_, starts);
}

Batch GlobalBatches::next() { return at(step_++); }

Position GlobalBatches::position() const {
  return {
      .step = step_,
      .seed = options_.seed,
      .batch = options_.batch,
      .sequence = options_.sequence,
      .corpus_hash = corpus_.hash()};
}

void GlobalBatches::restore(const Position& position) {
  const auto mine = this->position();
  const auto expect = [](const char* what, auto expected, auto found) {
    SHERD_CHECK(
        expected == found, "[data] expected the saved ", what, " ", expected,
        ", found ", found);
  };
  expect("seed", position.seed, mine.seed);
  expect("batch", position.batch, mine.batch);
  expect("sequence", position.sequence, mine.sequence);
  expect("corpus hash", hex(position.corpus_hash), hex(mine.corpus_hash));
  SHERD_CHECK(
      position.step >= 0, "[data] expected a saved step of at least 0, found ",
      position.step);
  step_ = position.step;
}

std::int64_t GlobalBatches::validation_batches() const {
  const auto windows = (validation_tokens() - 1) / options_.sequence;
  return std::max<std::int64_t>(1, windows / options_.batch);
}

Batch GlobalBatches::validation(std::int64_t index) const {
  SHERD_CHECK(
      index >= 0 && index < validation_batches(),
      "[data] expected a validation batch in [0, ", validation_batches(),
      "), found ", index);
  const auto length = options_.sequence;
  const auto windows = (validation_tokens() - 1) / length;
  const auto rows = validation_batches() * options_.batch;
  std::vector<std::int64_t> starts;
  for (std::int64_t i = 0; i < row_count(); ++i) {
    // Batches interleave, so that a few of them see all of the text.
    const auto row = (first_row() + i) * validation_batches() + index;
    starts.push_back(row * windows / rows * length);
  }
  return rows_at(validation_, starts);
}

}  // namespace sherd::data
