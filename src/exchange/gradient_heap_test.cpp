// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_heap.h"

#include <cstdio>
#include <optional>
#include <sstream>
#include <thread>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "exchange/contract_processes_testing.h"
#include "exchange/shared_memory_exchange.h"
#include "shm/available_memory.h"
#include "world/transport.h"

namespace sherd::exchange {
namespace {

constexpr std::int64_t kBlock = 1 << 16;

at::Tensor tensor_of(std::int64_t bytes) {
  return torch::empty({bytes}, torch::kByte);
}

// A heap with room for two blocks.
struct TwoBlocks {
  std::shared_ptr<std::vector<std::byte>> memory =
      std::make_shared<std::vector<std::byte>>(2 * kBlock);
  std::weak_ptr<void> mapping = memory;
  std::shared_ptr<GradientHeap> heap = std::make_shared<GradientHeap>(
      *memory, std::set{std::size_t{kBlock}}, memory);

  TwoBlocks() { memory.reset(); }
  ~TwoBlocks() { GradientHeap::leave(); }
  std::optional<std::int64_t> place(const at::Tensor& tensor) const {
    return heap->offset(tensor.data_ptr(), tensor.nbytes());
  }
};

TEST(GradientHeap, TensorsOfItsSizeLieThereWhileAThreadIsInside) {
  const TwoBlocks two;
  EXPECT_FALSE(two.place(tensor_of(kBlock)));
  two.heap->enter();
  auto first = tensor_of(kBlock);
  EXPECT_EQ(two.place(first), 0);
  EXPECT_FALSE(two.place(tensor_of(kBlock - 1)));
  std::thread([&] { EXPECT_FALSE(two.place(tensor_of(kBlock))); }).join();
  const auto second = tensor_of(kBlock);
  EXPECT_EQ(two.place(second), kBlock);
  EXPECT_FALSE(two.place(tensor_of(kBlock)));  // There is no room.
  first.reset();
  first = tensor_of(kBlock);
  EXPECT_EQ(two.place(first), 0);
  EXPECT_EQ(two.heap->bytes(), 2 * kBlock);
  first.reset();
  EXPECT_EQ(two.heap->bytes(), kBlock);
  GradientHeap::leave();
  EXPECT_FALSE(two.place(tensor_of(kBlock)));
  two.heap->enter();
  two.heap->close();
  EXPECT_FALSE(two.place(tensor_of(kBlock)));
}

TEST(GradientHeap, ItsMemoryLivesAsLongAsTheLastTensor) {
  TwoBlocks two;
  two.heap->enter();
  auto tensor = tensor_of(kBlock);
  auto other = tensor_of(kBlock);
  two.heap.reset();
  tensor.fill_(1);
  tensor.reset();
  EXPECT_FALSE(two.mapping.expired());
  other.reset();
  EXPECT_TRUE(two.mapping.expired());
  EXPECT_TRUE(tensor_of(kBlock).fill_(1).all().item<bool>());
}

TEST(GradientHeap, BlocksMayBeFreedByTheirAddress) {
  const TwoBlocks two;
  two.heap->enter();
  auto* allocator = c10::GetAllocator(c10::kCPU);
  void* const block = allocator->raw_allocate(kBlock);
  void* const other = allocator->raw_allocate(kBlock + 1);
  EXPECT_EQ(two.heap->offset(block, kBlock), 0);
  EXPECT_FALSE(two.heap->offset(other, kBlock));
  allocator->raw_deallocate(block);
  allocator->raw_deallocate(other);
  EXPECT_EQ(two.place(tensor_of(kBlock)), 0);
}

bool lies_in_the_segment(const at::Tensor& tensor) {
  std::istringstream maps(*shm::read_small_file("/proc/self/maps"));
  std::string line;
  while (std::getline(maps, line)) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    const auto at = reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 &&
        at >= begin && at < end) {
      return line.find("/memfd:sherd-segment") != std::string::npos;
    }
  }
  return false;
}

// Rank 0 drops its gradient before rank 1 has read it.
TEST(GradientHeap, AGradientStaysUntilEveryRankHasSummed) {
  using namespace contract;
  Marks posted;
  run_in_processes(
      [](const World& world, const std::vector<int>& all) {
        return make_shared_memory_exchange(
            world, "heap", world::make_c10d_transport(world, "heap", all));
      },
      2, {},
      [&](Seat& seat) {
        const auto model = make_model(2, {{{.numels = {40'000}}}});
        open(seat, model);
        for (int step = 1; step <= 3; ++step) {
          seat.exchange->begin_backward();
          auto options = reduce_options(model.units[0]);
          {
            const auto gradient =
                torch::full({40'000}, step + seat.rank, torch::kFloat);
            EXPECT_TRUE(lies_in_the_segment(gradient));
            options.gradients = {gradient};
          }
          if (seat.rank == 1 && step == 1) {
            posted.wait_for(0);
          }
          seat.exchange->start_reduce(0, options).throw_if_failed();
          options = {};
          const auto other = torch::full({40'000}, 1e30F);
          // There is one block, and rank 1 has not read it yet.
          EXPECT_FALSE(
              seat.rank == 0 && step == 1 && lies_in_the_segment(other));
          posted.set(seat.rank);
          seat.exchange->end_backward(backward_end(model))
              .status()
              .throw_if_failed();
          expect_gradient(
              *seat.exchange, model, 0, 0, seat.rank,
              torch::full({40'000}, 2 * step + 1, torch::kFloat));
        }
      });
}

}  // namespace
}  // namespace sherd::exchange
