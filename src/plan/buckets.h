// SPDX-License-Identifier: Apache-2.0
//
// Which gradients travel together. A few large messages cost less than many
// small ones, and the first should leave while backward still runs: parameters
// are put into buckets in the order in which their gradients are expected, up
// to a limit each, the first bucket a small one. Depends on the arguments only,
// so every rank that passes equal ones gets the same buckets.
// Mirrors c10d's compute_bucket_assignment_by_size; PyTorch Distributed, arXiv
// 2006.15704, section 4.2. Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sherd::plan {

struct BucketItem {
  std::int64_t bytes = 0;
  // Only items of one kind share a bucket: those of one dtype and device.
  int kind = 0;
  // Shares with nobody: a gradient that is sparse.
  bool alone = false;
};

// Buckets, in the order in which they are full when items come in `order`, each
// a list of items in that order. A bucket is full when its bytes reach its
// limit, and so may exceed it by one item. Each kind takes the limits one after
// another, and the last one again and again. What is left at the end makes
// buckets in the order of their first items.
// Throws Error unless `order` has each item once and there is a limit, all of
// them positive.
std::vector<std::vector<int>> assign_buckets(
    std::span<const BucketItem> items,
    std::span<const std::int64_t> limits,
    std::span<const int> order);

// An order that all ranks can follow, from those in which each saw its gradients
// become ready: by mean position, equal ones by item. A rank's list may leave
// items out, which then count as its last, as do those that no rank lists.
// Throws Error for an item that does not exist or comes twice in a list.
std::vector<int> common_order(
    int items, std::span<const std::vector<int>> order_by_rank);

}  // namespace sherd::plan
