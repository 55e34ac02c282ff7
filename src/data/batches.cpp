// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/batches.h>

#include <algorithm>
#include <cmath>
#include <vector>
#include <ATen/ops/empty.h>
#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/permutation.h"

namespace sherd::data {
namespace {

constexpr std::int64_t kValidationShare = 10;  // One token of this many.
// Enough to sample every large folder, but so few that hardly any window crosses from one stripe
// into the next.
constexpr std::int64_t kStripesMax = 64;
constexpr std::int64_t kValidationWindowsPerStripe = 64;
// Several sources take turns in blocks of this many samples.
constexpr std::int64_t kBlock = 4096;

template <typename Texts>
std::int64_t tokens_of(const Texts& texts) {
  std::int64_t sum = 0;
  for (const auto& text : texts) {
    sum += text.tokens();
  }
  return sum;
}

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

}  // namespace

GlobalBatches::GlobalBatches(const Corpus& corpus, const BatchOptions& options)
    : GlobalBatches({{&corpus, 1.0}}, nullptr, corpus.hash(), options) {}

GlobalBatches::GlobalBatches(
    const BlendedCorpus& corpus, const BatchOptions& options)
    : GlobalBatches(
          [&] {
            std::vector<WeightedCorpus> sources;
            for (const auto& source : corpus.sources()) {
              sources.push_back({source.corpus.get(), source.weight});
            }
            return sources;
          }(),
          corpus.validation(),
          corpus.hash(),
          options) {}

GlobalBatches::GlobalBatches(
    const std::vector<WeightedCorpus>& sources,
    const Corpus* validation,
    std::uint64_t hash,
    const BatchOptions& options)
    : options_(checked(options)), hash_(hash) {
  for (const auto& source : sources) {
    if (validation != nullptr) {
      add_whole(*source.corpus, training_);
    } else {
      add_striped(*source.corpus);
    }
  }
  if (validation != nullptr) {
    add_whole(*validation, validation_);
  }
  share_out(sources);
}

void GlobalBatches::add_whole(
    const Corpus& corpus, std::vector<StripedText>& to) const {
  SHERD_CHECK(
      corpus.tokens() > options_.sequence, "[data] ", corpus.path(),
      ": expected at least ", options_.sequence + 1, " tokens (sequence ",
      options_.sequence, " and the last target), found ", corpus.tokens());
  to.push_back(
      {.corpus = &corpus, .stripe = corpus.tokens(), .part = corpus.tokens()});
}

void GlobalBatches::add_striped(const Corpus& corpus) {
  const auto window = options_.sequence + 1;
  const auto stripes = std::clamp<std::int64_t>(
      corpus.tokens() /
          (kValidationShare * kValidationWindowsPerStripe * window),
      1, kStripesMax);
  const auto stripe = corpus.tokens() / stripes;
  const auto held_out = std::max(stripe / kValidationShare, window);
  const auto rest = stripe - held_out;
  SHERD_CHECK(
      rest >= window, "[data] ", corpus.path(), ": expected at least ",
      2 * window, " tokens (sequence ", options_.sequence,
      ": one window to train on, one to validate), found ", corpus.tokens());
  StripedText text{
      .corpus = &corpus, .stripes = stripes, .stripe = stripe, .part = rest};
  training_.push_back(text);
  text.skipped = rest;
  text.part = held_out;
  validation_.push_back(text);
}

// Each source gets the whole samples of its share of a block. The remaining samples go to the
// largest remainders, and among equal ones to the first.
void GlobalBatches::share_out(const std::vector<WeightedCorpus>& sources) {
  double sum = 0;
  for (const auto& source : sources) {
    sum += source.weight;
  }
  struct Share {
    std::size_t source;
    std::int64_t samples;
    double rest;
  };
  std::vector<Share> shares;
  std::int64_t left = kBlock;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const double exact = sources[i].weight / sum * static_cast<double>(kBlock);
    const auto whole = static_cast<std::int64_t>(std::floor(exact));
    shares.push_back({i, whole, exact - static_cast<double>(whole)});
    left -= whole;
  }
  auto order = shares;
  std::stable_sort(
      order.begin(), order.end(),
      [](const auto& a, const auto& b) { return a.rest > b.rest; });
  for (std::int64_t i = 0; i < left; ++i) {
    ++shares[order[static_cast<std::size_t>(i) % order.size()].source].samples;
  }
  samples_before_ = {0};
  for (const auto& share : shares) {
    SHERD_CHECK(
        share.samples >= 1, "[data] ", sources[share.source].corpus->path(),
        ": expected a weight of at least 1 / ", kBlock,
        " of the sum of all weights, found ",
        sources[share.source].weight / sum);
    samples_before_.push_back(samples_before_.back() + share.samples);
  }
}

template <typename Function>
void GlobalBatches::StripedText::for_range(
    std::int64_t first, std::int64_t count, const Function& each) const {
  while (count > 0) {
    const auto inside = first % part;
    const auto taken = std::min(count, part - inside);
    each(first / part * stripe + skipped + inside, taken);
    first += taken;
    count -= taken;
  }
}

void GlobalBatches::StripedText::copy(
    std::int64_t first, std::int64_t count, std::int64_t* to) const {
  for_range(first, count, [&](std::int64_t begin, std::int64_t taken) {
    corpus->copy(begin, taken, to);
    to += taken;
  });
}

void GlobalBatches::StripedText::read_ahead(
    std::int64_t first, std::int64_t count) const {
  for_range(first, count, [&](std::int64_t begin, std::int64_t taken) {
    corpus->read_ahead(begin, taken);
  });
}

std::int64_t GlobalBatches::training_tokens() const {
  return tokens_of(training_);
}

std::int64_t GlobalBatches::validation_tokens() const {
  return tokens_of(validation_);
}

void GlobalBatches::copy_validation(
    std::int64_t first, std::int64_t count, std::int64_t* to) const {
  SHERD_CHECK(
      first >= 0 && count >= 0 && first <= validation_tokens() - count,
      "[data] expected a range inside the ", validation_tokens(),
      " tokens of the validation text, found ", count, " from ", first);
  for (const auto& text : validation_) {
    const auto taken =
        std::clamp<std::int64_t>(text.tokens() - first, 0, count);
    text.copy(first, taken, to);
    first = std::max<std::int64_t>(0, first - text.tokens());
    count -= taken;
    to += taken;
  }
}

// Splits rows into inputs and targets.
Batch GlobalBatches::batch_of(const std::vector<Row>& rows) const {
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto length = options_.sequence;
  Batch batch{
      .inputs = at::empty({count, length}, at::kLong),
      .targets = at::empty({count, length}, at::kLong)};
  auto* input = batch.inputs.mutable_data_ptr<std::int64_t>();
  auto* target = batch.targets.mutable_data_ptr<std::int64_t>();
  for (const auto& row : rows) {
    row.text->copy(row.start, length, input);
    row.text->copy(row.start + 1, length, target);
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

// Sample number s of a source is window s % n of epoch s / n, shuffled. An epoch cuts the text at
// an offset below `sequence` at which all n windows fit.
GlobalBatches::Row GlobalBatches::window(
    std::size_t source, std::int64_t sample) const {
  const auto& text = training_[source];
  const auto length = options_.sequence;
  const auto windows =
      std::max<std::int64_t>(1, (text.tokens() - length) / length);
  const auto offsets = std::min(length, text.tokens() - windows * length);
  const auto epoch = static_cast<std::uint64_t>(sample / windows);
  auto key = mix64(mix64(options_.seed) + epoch);
  for (std::size_t i = 0; i < source; ++i) {
    key = mix64(key);
  }
  const auto offset =
      static_cast<std::int64_t>(key % static_cast<std::uint64_t>(offsets));
  return {
      &text, offset + Permutation(windows, key).at(sample % windows) * length};
}

// The place of sample s in its shuffled block says to which source it belongs and how many samples
// of the block that source has had before. So the answer for any sample does not need the samples
// before it.
GlobalBatches::Row GlobalBatches::row_of(std::int64_t sample) const {
  if (training_.size() == 1) {
    return window(0, sample);
  }
  const auto block = sample / kBlock;
  const auto key = mix64(
      mix64(options_.seed) ^ mix64(static_cast<std::uint64_t>(block) + 1));
  const auto place = Permutation(kBlock, key).at(sample % kBlock);
  const auto after =
      std::upper_bound(samples_before_.begin(), samples_before_.end(), place);
  const auto source =
      static_cast<std::size_t>(after - samples_before_.begin() - 1);
  const auto share = samples_before_[source + 1] - samples_before_[source];
  return window(source, block * share + place - samples_before_[source]);
}

std::vector<GlobalBatches::Row> GlobalBatches::rows_of(
    std::int64_t step) const {
  std::vector<Row> rows;
  for (std::int64_t row = 0; row < row_count(); ++row) {
    rows.push_back(row_of(step * options_.batch + first_row() + row));
  }
  return rows;
}

Batch GlobalBatches::samples(const std::vector<std::int64_t>& numbers) const {
  std::vector<Row> rows;
  for (const auto number : numbers) {
    SHERD_CHECK(
        number >= 0, "[data] expected a sample of at least 0, found ", number);
    rows.push_back(row_of(number));
  }
  return batch_of(rows);
}

Batch GlobalBatches::at(std::int64_t step) const {
  SHERD_CHECK(step >= 0, "[data] expected a step of at least 0, found ", step);
  return batch_of(rows_of(step));
}

Batch GlobalBatches::next() {
  auto batch = at(step_++);
  for (const auto& row : rows_of(step_)) {
    row.text->read_ahead(row.start, options_.sequence + 1);
  }
  return batch;
}

Position GlobalBatches::position() const {
  return {
      .step = step_,
      .seed = options_.seed,
      .batch = options_.batch,
      .sequence = options_.sequence,
      .corpus_hash = hash_};
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

std::int64_t GlobalBatches::validation_windows() const {
  std::int64_t windows = 0;
  for (const auto& text : validation_) {
    windows += (text.tokens() - 1) / options_.sequence;
  }
  return windows;
}

// REQUIRES: 0 <= index < validation_windows().
GlobalBatches::Row GlobalBatches::validation_window(std::int64_t index) const {
  auto text = validation_.begin();
  for (;; ++text) {
    const auto windows = (text->tokens() - 1) / options_.sequence;
    if (index < windows) {
      return {&*text, index * options_.sequence};
    }
    index -= windows;
  }
}

std::int64_t GlobalBatches::validation_batches() const {
  return std::max<std::int64_t>(1, validation_windows() / options_.batch);
}

Batch GlobalBatches::validation(std::int64_t index) const {
  SHERD_CHECK(
      index >= 0 && index < validation_batches(),
      "[data] expected a validation batch in [0, ", validation_batches(),
      "), found ", index);
  const auto windows = validation_windows();
  const auto total = validation_batches() * options_.batch;
  std::vector<Row> rows;
  for (std::int64_t i = 0; i < row_count(); ++i) {
    // Batches interleave, so even a few of them cover all of the text.
    const auto row = (first_row() + i) * validation_batches() + index;
    rows.push_back(validation_window(row * windows / total));
  }
  return batch_of(rows);
}

}  // namespace sherd::data
