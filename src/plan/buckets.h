// SPDX-License-Identifier: Apache-2.0
//
// Gradient buckets: which gradients are reduced together. A few large messages cost less than many
// small ones, and the first one should be sent while backward still runs. So parameters fill
// buckets in the order in which their gradients are expected, up to a limit each, and the first
// bucket is small. Equal arguments give equal buckets on every rank. Mirrors c10d's
// compute_bucket_assignment_by_size (PyTorch Distributed, arXiv 2006.15704, section 4.2). Thread
// rule: pure functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd::plan {

struct BucketItem {
  std::int64_t bytes = 0;
  // A bucket has items of one kind only, that is of one dtype and device.
  int kind = 0;
};

// Buckets in the order in which they fill up if items come in `order`; each lists its items in that
// order. A bucket is full when its bytes reach its limit, so it may exceed it by one item. Each
// kind uses the limits one after another and then repeats the last one. Buckets that never fill
// come last, in the order of their first items. Throws Error unless `order` has each item once and
// there are limits, all of them positive.
std::vector<std::vector<int>> assign_buckets(
    std::span<const BucketItem> items,
    std::span<const std::int64_t> limits,
    std::span<const int> order);

// One order for all ranks, from the orders in which each rank saw its gradients become ready: by
// mean position, ties by item. Items that are missing in a rank's list count as its last. Throws
// Error for an item that does not exist or appears twice in a list.
std::vector<int> common_order(
    int items, std::span<const std::vector<int>> order_by_rank);

}  // namespace sherd::plan
