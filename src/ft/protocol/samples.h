// SPDX-License-Identifier: Apache-2.0
//
// Which samples of the run's endless order are taken. What a replica did not bring
// into a step is free again, and the lowest free ones come first, so that each is
// trained once, whoever died. Thread rule: values.
#pragma once

#include <cstdint>
#include <vector>
#include "ft/protocol/identity.h"

namespace sherd::ft {

// In all of them together.
std::int64_t count_of(const std::vector<SampleRange>& ranges);

class SampleSet {
 public:
  SampleSet() = default;

  // Throws Error when some of them are in it already.
  void add(const SampleRange& range);
  void add(const std::vector<SampleRange>& ranges);

  // The lowest `count` that are not in it, ascending.
  std::vector<SampleRange> lowest_free(std::int64_t count) const;

  std::int64_t size() const;
  // Ascending, with gaps between.
  const std::vector<SampleRange>& ranges() const { return ranges_; }

  bool operator==(const SampleSet&) const = default;

 private:
  std::vector<SampleRange> ranges_;
};

}  // namespace sherd::ft
