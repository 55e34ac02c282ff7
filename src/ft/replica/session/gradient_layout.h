// SPDX-License-Identifier: Apache-2.0
//
// GradientLayout places the gradients of a rank's slices one behind the other and divides them into
// the buckets of the all-reduce. The last slices come first, as in backward. Each bucket ends with
// a mark for each of its slices, which is summed with the gradients and so says whether any replica
// had one. Thread rule: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::ft {

class GradientLayout {
 public:
  // A bucket ends with the slice that fills it. There is at least one bucket, which may be empty.
  // REQUIRES: bucket_elements > 0.
  GradientLayout(
      const std::vector<std::int64_t>& slices, std::int64_t bucket_elements);

  std::int64_t begin_of(std::size_t slice) const { return begins_[slice]; }
  std::int64_t mark_of(std::size_t slice) const { return marks_[slice]; }
  int bucket_of(std::size_t slice) const { return bucket_of_[slice]; }
  // The number of elements of each bucket, including marks.
  const std::vector<std::int64_t>& buckets() const { return buckets_; }

 private:
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> marks_;
  std::vector<int> bucket_of_;
  std::vector<std::int64_t> buckets_;
};

// The contents of each bucket, for people to read: "h.0.ln_1.weight", or "h.0.ln_1.weight to
// h.3.mlp.c_fc.bias". REQUIRES: a name for each slice.
std::vector<std::string> bucket_names(
    const GradientLayout& layout, const std::vector<std::string>& slices);

}  // namespace sherd::ft
