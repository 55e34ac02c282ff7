// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/reduce_schedule.h"

#include <algorithm>
#include <utility>
#include "base/check.h"
#include "ft/protocol/reduce_shape.h"

namespace sherd::ft::ring {
namespace {

using Pattern = ReduceSchedule::Pattern;
using Use = ReceiveStep::Use;

// Step k sends what step k - 1 received, to the only receiver.
Pattern ring_pattern(int members, int position) {
  Pattern pattern;
  for (int step = 0; step < 2 * (members - 1); ++step) {
    const auto segment_at = [&](int first) {
      return (first - step + 2 * members) % members;
    };
    pattern.sends.push_back(
        {.to = 0,
         .step = step,
         .segment = segment_at(position),
         .after = step,
         .begins_sum = step == 0});
    pattern.receives.push_back(
        {.from = 0,
         .segment = segment_at(position - 1),
         .use = step < members - 1 ? Use::kAddOwn : Use::kCopy,
         .completes = step == members - 2,
         .begins_sum = step == 0});
  }
  return pattern;
}

int index_of(const std::vector<int>& positions, int position) {
  return static_cast<int>(
      std::ranges::lower_bound(positions, position) - positions.begin());
}

// Which of its parent's frames a child sends: those of the children come first, in order.
int step_at_parent(int members, int tree, int position) {
  const int parent = *tree_node_of(members, tree, position).parent;
  const auto children = tree_node_of(members, tree, parent).children;
  return static_cast<int>(
      std::ranges::find(children, position) - children.begin());
}

// The children's parts arrive first, then this member's sum goes up, then the complete sum arrives
// and goes down.
Pattern tree_pattern(
    int members, int tree, int position, const std::vector<int>& peers) {
  const TreeNode node = tree_node_of(members, tree, position);
  const auto children_of = [&](int member) {
    return static_cast<int>(
        tree_node_of(members, tree, member).children.size());
  };
  const int children = children_of(position);
  Pattern pattern;
  for (int i = 0; i < children; ++i) {
    const int child = node.children[static_cast<std::size_t>(i)];
    pattern.receives.push_back(
        {.from = index_of(peers, child),
         .segment = 0,
         .use = i == 0 ? Use::kAddOwn : Use::kAdd,
         .completes = !node.parent && i + 1 == children,
         .begins_sum = children_of(child) == 0});
  }
  if (node.parent) {
    const int parent = index_of(peers, *node.parent);
    pattern.sends.push_back(
        {.to = parent,
         .step = step_at_parent(members, tree, position),
         .segment = 0,
         .after = children,
         .begins_sum = children == 0});
    pattern.receives.push_back({.from = parent, .use = Use::kCopy});
  }
  for (const int child : node.children) {
    pattern.sends.push_back(
        {.to = index_of(peers, child),
         .step = children_of(child),
         .segment = 0,
         .after = static_cast<int>(pattern.receives.size())});
  }
  return pattern;
}

}  // namespace

FloatRange segment_of(std::int64_t elements, int segments, int segment) {
  const std::int64_t size = elements / segments;
  // The number of segments that have one element more.
  const std::int64_t longer = elements % segments;
  const std::int64_t begin =
      segment * size + std::min<std::int64_t>(segment, longer);
  return {begin, begin + size + (segment < longer ? 1 : 0)};
}

ReduceSchedule::ReduceSchedule(
    std::vector<std::int64_t> elements, Options options)
    : elements_(std::move(elements)), options_(options), first_slices_{0} {
  const auto [members, position, chunk_max] = options_;
  SHERD_ASSERT(
      members > 0 && position >= 0 && position < members && chunk_max > 0);
  receivers_ = receivers_of(members, position);
  senders_ = senders_of(members, position);
  const bool is_ring = reduce_shape_of(members) == ReduceShape::kRing;
  if (is_ring) {
    segments_ = members;
    patterns_ = {ring_pattern(members, position)};
  } else {
    for (int tree = 0; tree < kTrees; ++tree) {
      patterns_.push_back(tree_pattern(members, tree, position, senders_));
    }
  }
  first_slices_.reserve(elements_.size() + 1);
  for (const auto count : elements_) {
    SHERD_ASSERT(count >= 0);
    const auto chunk =
        is_ring ? chunk_max : tree_chunk_of(count, members, chunk_max);
    // No segment is longer than the first.
    const auto longest = segment_of(count, segments_, 0).size();
    const auto chunks = longest / chunk + (longest % chunk == 0 ? 0 : 1);
    chunk_elements_.push_back(chunk);
    first_slices_.push_back(first_slices_.back() + chunks);
  }
}

int ReduceSchedule::bucket_of(std::int64_t slice) const {
  SHERD_ASSERT(slice >= 0 && slice < slices());
  const auto after = std::ranges::upper_bound(first_slices_, slice);
  return static_cast<int>(after - first_slices_.begin()) - 1;
}

std::int64_t ReduceSchedule::receives_from(int sender) const {
  const auto patterns = static_cast<std::int64_t>(patterns_.size());
  std::int64_t frames = 0;
  for (std::int64_t p = 0; p < patterns; ++p) {
    const auto& receives = pattern(p).receives;
    const auto of_slice = std::ranges::count_if(
        receives, [&](const ReceiveStep& one) { return one.from == sender; });
    frames += of_slice * ((slices() + patterns - 1 - p) / patterns);
  }
  return frames;
}

BucketRange ReduceSchedule::piece(std::int64_t slice, int segment) const {
  const int bucket = bucket_of(slice);
  const auto b = static_cast<std::size_t>(bucket);
  const FloatRange whole = segment_of(elements_[b], segments_, segment);
  const auto chunk = slice - first_slices_[b];
  FloatRange span;
  span.begin = std::min(whole.begin + chunk * chunk_elements_[b], whole.end);
  span.end = std::min(span.begin + chunk_elements_[b], whole.end);
  return {bucket, segment, span};
}

int ReduceSchedule::window(int slots) const {
  return reduce_shape_of(options_.members) == ReduceShape::kRing
      ? slots
      : std::max(slots, kTrees * reduce_hops_of(options_.members));
}

// In a ring, a member begins a slice only when the slice one window earlier has gone all the way
// round, past the next member, too, and a connection keeps its order. In trees it may have the sum
// of that earlier slice while another member, whose sum arrives over other links, has only sent its
// part; but that member has the sums of all slices another window earlier.
int ReduceSchedule::early_slices_max(int window) const {
  return senders_.size() > 1 ? 2 * window : window;
}

std::string text_of(const BucketRange& piece) {
  if (piece.span.size() == 0) {
    return str("no elements of bucket ", piece.bucket);
  }
  return str(
      "elements ", piece.span.begin, " to ", piece.span.end - 1, " of bucket ",
      piece.bucket);
}

}  // namespace sherd::ft::ring
