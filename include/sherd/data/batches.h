// SPDX-License-Identifier: Apache-2.0
//
// GlobalBatches cuts a corpus into training batches. The global batch of a step depends only on
// seed and step, so a run with another number of ranks, or one that resumes, sees the same rows in
// the same steps. Each rank takes its own part of the rows.
//
// If there are several weighted sources, they take turns: each has its share of every 4096 samples,
// in an order drawn from the seed, and goes through its own text as if it were the only one.
//
// A corpus is cut into up to 64 equal stripes. The last tenth of each is kept for validation, so
// that both texts are of the same kind even if the corpus changes along the way, as folders do. If
// there is a separate corpus for validation, nothing is kept from the others. The rest, stripe
// after stripe, is cut into windows of sequence + 1 tokens; neighbours share one token, because the
// last target of a window is the first input of the next. An epoch takes every window once, in an
// order drawn from seed and epoch, and its windows start at another offset than those of the epoch
// before.
//
// Thread rule: one thread for next() and restore(), any thread for the rest.
#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/data/corpus.h>

namespace sherd::data {

// Two int64 tensors [rows, sequence]; target t is the token after input t.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

struct BatchOptions {
  // The number of rows of the global batch, a multiple of the world size.
  std::int64_t batch = 12;
  std::int64_t sequence = 128;
  std::uint64_t seed = 0;
  int rank = 0;
  int world_size = 1;
};

// The position of a run in its data, and what must be equal to resume from there.
struct Position {
  std::int64_t step = 0;  // The step whose batch next() returns next.
  std::uint64_t seed = 0;
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::uint64_t corpus_hash = 0;

  bool operator==(const Position&) const = default;
};

class GlobalBatches {
 public:
  // `corpus` must outlive this object. Throws Error, saying what was expected and found, if the
  // batch is not a multiple of the world size, a size is below 1, the rank is outside the world, or
  // the corpus is too short for one training window and one validation window.
  GlobalBatches(const Corpus& corpus, const BatchOptions& options);
  // The same for several sources. Also throws Error if a weight is so small that its source has
  // none of 4096 samples.
  GlobalBatches(const BlendedCorpus& corpus, const BatchOptions& options);

  // This rank's rows of the global batch of a step, counted from 0: rows
  // [rank * batch / world_size, (rank + 1) * batch / world_size).
  Batch at(std::int64_t step) const;

  // Returns rows by their numbers in the run's endless order; at(step) has those from step * batch
  // on. For fault-tolerant runs, in which a coordinator assigns samples.
  Batch samples(const std::vector<std::int64_t>& numbers) const;

  // Returns at(position().step) and advances by one step. Makes the system read the step after it
  // from disk in the background.
  Batch next();

  Position position() const;
  // Continues a run at a position: next() returns what it would have returned there. Throws Error,
  // and changes nothing, if anything but the step differs: seed, sizes or text.
  void restore(const Position& position);

  // The number of validation batches, at least 1.
  std::int64_t validation_batches() const;
  // This rank's rows of validation batch `index`. The rows are spread evenly over the validation
  // text and depend on neither seed nor world size; if there is less text than rows, rows repeat.
  // REQUIRES: 0 <= index < validation_batches().
  Batch validation(std::int64_t index) const;

  // Lengths of the two texts. The few tokens that do not fill equal stripes are in neither.
  std::int64_t training_tokens() const;
  std::int64_t validation_tokens() const;

  // Writes tokens [first, first + count) of the validation text to `to`.
  // REQUIRES: the range is inside [0, validation_tokens()).
  void copy_validation(
      std::int64_t first, std::int64_t count, std::int64_t* to) const;

 private:
  // A text made of the same part of every stripe of a corpus: its token i is token (i / part) *
  // stripe + skipped + i % part of the corpus.
  struct StripedText {
    const Corpus* corpus = nullptr;
    std::int64_t stripes = 1;
    std::int64_t stripe = 0;
    std::int64_t skipped = 0;
    std::int64_t part = 0;

    std::int64_t tokens() const { return stripes * part; }
    void copy(std::int64_t first, std::int64_t count, std::int64_t* to) const;
    void read_ahead(std::int64_t first, std::int64_t count) const;
    // Calls `each` with the ranges of the corpus that make up a range of the text.
    template <typename Function>
    void for_range(
        std::int64_t first, std::int64_t count, const Function& each) const;
  };
  // The window of a text that starts at token `start`.
  struct Row {
    const StripedText* text;
    std::int64_t start;
  };
  struct WeightedCorpus {
    const Corpus* corpus;
    double weight;
  };

  GlobalBatches(
      const std::vector<WeightedCorpus>& sources,
      const Corpus* validation,
      std::uint64_t hash,
      const BatchOptions& options);
  void add_striped(const Corpus& corpus);
  void add_whole(const Corpus& corpus, std::vector<StripedText>& to) const;
  void share_out(const std::vector<WeightedCorpus>& sources);
  Row row_of(std::int64_t sample) const;
  Row window(std::size_t source, std::int64_t sample) const;
  Row validation_window(std::int64_t index) const;
  std::int64_t validation_windows() const;
  std::vector<Row> rows_of(std::int64_t step) const;
  Batch batch_of(const std::vector<Row>& rows) const;
  std::int64_t first_row() const;
  std::int64_t row_count() const;

  const BatchOptions options_;
  const std::uint64_t hash_;
  std::vector<StripedText> training_;  // One for each source.
  // How many samples of a block belong to the sources before each source; the last entry is for
  // all.
  std::vector<std::int64_t> samples_before_;
  std::vector<StripedText> validation_;
  std::int64_t step_ = 0;
};

}  // namespace sherd::data
