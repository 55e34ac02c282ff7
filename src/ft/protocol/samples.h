// SPDX-License-Identifier: Apache-2.0
//
// The set of samples that are taken, in the run's endless order. Samples that a lost replica did
// not contribute to a step become free again, and the lowest free samples are taken first, so that
// each is trained once. Thread rule: values.
#pragma once

#include <cstdint>
#include <vector>
#include "ft/protocol/identity.h"

namespace sherd::ft {

// The number of samples in all ranges together.
std::int64_t count_of(const std::vector<SampleRange>& ranges);

// The share of one rank of a replica: all ranks have equally many samples, and neighbouring ranks
// have neighbouring samples. Throws Error unless `ranks` divides their number.
std::vector<SampleRange> samples_of_rank(
    const std::vector<SampleRange>& samples, int rank, int ranks);

class SampleSet {
 public:
  SampleSet() = default;

  // Throws Error if the set already has some of them.
  void add(const SampleRange& range);
  void add(const std::vector<SampleRange>& ranges);

  // The lowest `count` samples that are not in the set, ascending.
  std::vector<SampleRange> lowest_free(std::int64_t count) const;

  std::int64_t size() const;
  // Ascending, with gaps between them.
  const std::vector<SampleRange>& ranges() const { return ranges_; }

  bool operator==(const SampleSet&) const = default;

 private:
  std::vector<SampleRange> ranges_;
};

}  // namespace sherd::ft
