// SPDX-License-Identifier: Apache-2.0
#include "fsdp/caching_allocator.h"

#include <optional>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace sherd::fsdp {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// The header of a block takes another page.
constexpr std::int64_t kPage = 4096;

torch::Tensor tensor_of(std::int64_t bytes) {
  return torch::empty({bytes}, torch::kByte);
}

TEST(CachingAllocator, ABlockServesTheNextTensorOfItsSize) {
  const CachingAllocator allocator;
  ASSERT_TRUE(CachingAllocator::installed());
  const auto before = CachingAllocator::bytes();
  auto first = tensor_of(kMiB);
  const auto* memory = first.data_ptr();
  EXPECT_EQ(CachingAllocator::bytes() - before, kMiB + kPage);
  first.reset();
  EXPECT_EQ(CachingAllocator::bytes(), before);
  EXPECT_EQ(CachingAllocator::cached_bytes(), kMiB + kPage);
  const auto second = tensor_of(kMiB);
  EXPECT_EQ(second.data_ptr(), memory);
  EXPECT_EQ(CachingAllocator::cached_bytes(), 0);
}

TEST(CachingAllocator, NeverHoldsMoreThanWasInUseAtOnce) {
  const CachingAllocator allocator;
  auto large = tensor_of(3 * kMiB);
  auto old = tensor_of(kMiB);
  old.reset();
  auto young = tensor_of(2 * kMiB);  // No more than these 5 MiB.
  EXPECT_EQ(CachingAllocator::cached_bytes(), 0);
  large.reset();
  young.reset();
  EXPECT_EQ(CachingAllocator::cached_bytes(), 5 * kMiB + 2 * kPage);
  // Of another size, so it has to be mapped; what was freed first goes.
  const auto other = tensor_of(kMiB);
  EXPECT_EQ(CachingAllocator::cached_bytes(), 2 * kMiB + kPage);
}

TEST(CachingAllocator, GivesBackWhatItKeeps) {
  std::optional<CachingAllocator> allocator(std::in_place);
  tensor_of(kMiB);
  EXPECT_GT(CachingAllocator::cached_bytes(), 0);
  CachingAllocator::release_cached();
  EXPECT_EQ(CachingAllocator::cached_bytes(), 0);
  tensor_of(kMiB);
  EXPECT_GT(CachingAllocator::cached_bytes(), 0);
  allocator.reset();
  EXPECT_EQ(CachingAllocator::cached_bytes(), 0);
}

TEST(CachingAllocator, TensorsOutliveIt) {
  std::vector<torch::Tensor> tensors;
  std::int64_t before = 0;
  {
    const CachingAllocator allocator;
    before = CachingAllocator::bytes();
    for (const auto bytes : {std::int64_t{0}, std::int64_t{1}, kMiB}) {
      tensors.push_back(tensor_of(bytes).zero_());
    }
  }
  EXPECT_FALSE(CachingAllocator::installed());
  EXPECT_GT(CachingAllocator::bytes(), before);
  tensors[2].resize_({2 * kMiB});
  EXPECT_EQ(tensors[2].slice(0, 0, kMiB).sum().item<std::int64_t>(), 0);
  tensors.clear();
  EXPECT_EQ(CachingAllocator::bytes(), before);
  EXPECT_EQ(CachingAllocator::cached_bytes(), 0);
}

TEST(CachingAllocator, TellsThePeakBetweenTwoCalls) {
  const CachingAllocator allocator;
  const auto before = CachingAllocator::bytes();
  CachingAllocator::take_peak();
  tensor_of(kMiB);
  tensor_of(2 * kMiB);
  EXPECT_EQ(CachingAllocator::take_peak() - before, 2 * kMiB + kPage);
  EXPECT_EQ(CachingAllocator::take_peak(), before);
}

TEST(CachingAllocator, IsUsedByManyThreadsAtOnce) {
  const CachingAllocator allocator;
  const auto before = CachingAllocator::bytes();
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const auto value = 10 * t + i % 10;
        const auto bytes = (i % 7) * kMiB / 4 + 16;
        const auto tensor = torch::full({bytes}, value, torch::kByte);
        const auto copy = tensor.clone();
        EXPECT_TRUE(copy.eq(value).all().item<bool>());
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(CachingAllocator::bytes(), before);
}

}  // namespace
}  // namespace sherd::fsdp
