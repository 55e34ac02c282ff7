// SPDX-License-Identifier: Apache-2.0
#include "support/checking_device/thread_backend.h"

#include <barrier>
#include <thread>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include "base/check.h"
#include "support/checking_device/checking_device.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A rank with a device and two communicators.
struct ThreadRank {
  int rank = 0;
  c10::Device device;
  c10::intrusive_ptr<c10d::Backend> gather;
  c10::intrusive_ptr<c10d::Backend> reduce;
  // With four ranks, the rows are {0, 1} and {2, 3}, and the columns {0, 2} and {1, 3}.
  c10::intrusive_ptr<c10d::Backend> row;
  c10::intrusive_ptr<c10d::Backend> column;
  c10::Stream compute;
  c10::Stream side;

  void order(const c10::Stream& first, const c10::Stream& then) const {
    c10::Event event(c10::kPrivateUse1);
    event.record(first);
    event.block(then);
  }
  at::Tensor full(std::int64_t numel, double value) const {
    return at::full({numel}, value, at::device(device));
  }
};

c10::intrusive_ptr<c10d::Backend> line_of(
    ThreadNetwork& network, int ranks, int rank, bool row) {
  if (ranks != 4) {
    return nullptr;
  }
  const int first = row ? rank / 2 * 2 : rank % 2;
  return network.backend(
      rank, str(row ? "row " : "column ", first),
      {first, first + (row ? 1 : 2)});
}

// Returns the exception of each rank.
template <typename Body>
std::vector<std::string> run_ranks(
    int ranks, std::chrono::milliseconds deadline, const Body& body) {
  ThreadNetwork network(ranks, deadline);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  (void)checking_device();
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto device = checking_device(rank);
      const c10::DeviceGuard on(device);
      const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
      try {
        body(ThreadRank{
            rank, device, network.backend(rank, "gathers"),
            network.backend(rank, "reductions"),
            line_of(network, ranks, rank, true),
            line_of(network, ranks, rank, false), guard.getStream(device),
            guard.getNewStream(device, -1)});
      } catch (const c10::Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what_without_backtrace();
      }
    });
  }
  threads.clear();
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(take_faults(checking_device(rank)).size(), 0U);
  }
  return errors;
}

constexpr auto kDeadline = std::chrono::seconds(20);

template <typename Body>
void run_well(int ranks, const Body& body) {
  for (const auto& error : run_ranks(ranks, kDeadline, body)) {
    EXPECT_EQ(error, "");
  }
}

void all_gather(c10d::Backend& via, at::Tensor out, at::Tensor in) {
  c10d::AllgatherOptions options;
  options.asyncOp = false;
  via._allgather_base(out, in, options);
}

void reduce_scatter(c10d::Backend& via, at::Tensor out, at::Tensor in) {
  c10d::ReduceScatterOptions options;
  options.asyncOp = false;
  via._reduce_scatter_base(out, in, options);
}

TEST(ThreadBackend, CollectivesMoveWhatC10dSays) {
  for (const int ranks : {1, 2, 3}) {
    run_well(ranks, [&](const ThreadRank& self) {
      const auto gathered = self.full(2 * ranks, -1);
      all_gather(*self.gather, gathered, self.full(2, self.rank));
      const auto scattered = self.full(1, -1);
      reduce_scatter(*self.reduce, scattered, gathered.narrow(0, 0, ranks));
      std::vector<at::Tensor> tensors{self.full(3, self.rank + 1)};
      c10d::AllreduceOptions all;
      all.asyncOp = false;
      self.gather->allreduce(tensors, all);
      const auto host = gathered.cpu();
      for (int r = 0; r < ranks; ++r) {
        EXPECT_EQ(host[2 * r + 1].item<float>(), r);
      }
      EXPECT_EQ(scattered.item<float>(), ranks * (self.rank / 2));
      EXPECT_EQ(tensors[0][2].item<float>(), ranks * (ranks + 1) / 2);
    });
  }
}

TEST(ThreadBackend, ARootSendsAndReceives) {
  run_well(3, [&](const ThreadRank& self) {
    std::vector<at::Tensor> values{self.full(4, self.rank)};
    c10d::BroadcastOptions broadcast;
    broadcast.asyncOp = false;
    broadcast.rootRank = 2;
    self.gather->broadcast(values, broadcast);
    EXPECT_EQ(values[0][3].item<float>(), 2);
    c10d::ReduceOptions reduce;
    reduce.asyncOp = false;
    reduce.rootRank = 1;
    self.gather->reduce(values, reduce);
    EXPECT_EQ(values[0][0].item<float>(), self.rank == 1 ? 6 : 2);
  });
}

TEST(ThreadBackend, AGatherMayTakeItsShardFromItsPlace) {
  run_well(2, [&](const ThreadRank& self) {
    const auto whole = self.full(8, -1);
    const auto own = whole.narrow(0, 4 * self.rank, 4);
    own.fill_(self.rank + 5);
    all_gather(*self.gather, whole, own);
    const auto host = whole.cpu();
    EXPECT_EQ(host[0].item<float>(), 5);
    EXPECT_EQ(host[7].item<float>(), 6);
  });
}

// Rank 1 starts only after rank 0 has returned from its start; work that does not depend on the
// gather goes on.
TEST(ThreadBackend, StartingWaitsForNoPeer) {
  std::barrier<> started(2);
  run_well(2, [&](const ThreadRank& self) {
    const auto whole = self.full(8, -1);
    const auto shard = self.full(4, self.rank);
    const auto other = self.full(4, 0);
    self.order(self.compute, self.side);
    if (self.rank == 1) {
      started.arrive_and_wait();
    }
    {
      const c10::StreamGuard on(self.side);
      all_gather(*self.gather, whole, shard);
    }
    other.add_(1);
    if (self.rank == 0) {
      started.arrive_and_wait();
    }
    self.order(self.side, self.compute);
    EXPECT_EQ(whole[7].item<float>(), 1);
  });
}

TEST(ThreadBackend, WhoUsesAGatherWithoutWaitingIsFound) {
  const auto errors = run_ranks(2, kDeadline, [&](const ThreadRank& self) {
    const auto whole = self.full(8, -1);
    const auto shard = self.full(4, self.rank);
    self.order(self.compute, self.side);
    {
      const c10::StreamGuard on(self.side);
      all_gather(*self.gather, whole, shard);
    }
    std::string found;
    try {
      whole.add(1);
    } catch (const c10::Error& error) {
      found = error.what_without_backtrace();
    }
    self.order(self.side, self.compute);
    TORCH_CHECK(false, found);
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("aten::add on stream"));
    EXPECT_THAT(
        error, HasSubstr("reads what an all-gather of 32 bytes of gathers"));
  }
}

TEST(ThreadBackend, CommunicatorsInDifferentOrdersAreFound) {
  const auto errors = run_ranks(2, kDeadline, [&](const ThreadRank& self) {
    const auto whole = self.full(8, self.rank);
    const auto shard = self.full(4, self.rank);
    for (const bool gathers : {self.rank == 0, self.rank != 0}) {
      if (gathers) {
        all_gather(*self.gather, whole, shard);
      } else {
        reduce_scatter(*self.reduce, shard, whole);
      }
    }
    self.compute.synchronize();
  });
  for (const auto& error : errors) {
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("ranks must start collectives in one order"),
            HasSubstr("an all-gather of 32 bytes of gathers"),
            HasSubstr("a reduce-scatter of 32 bytes of reductions")));
  }
}

at::Tensor all_reduced(c10d::Backend& via, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  via.allreduce(tensors, options);
  return tensor;
}

TEST(ThreadBackend, SomeRanksMayHaveACommunicatorOfTheirOwn) {
  run_well(4, [&](const ThreadRank& self) {
    const auto row = self.full(1, self.rank);
    const auto column = self.full(1, self.rank);
    // Rows may differ in what they do first, as long as ranks do not wait in a circle.
    for (const bool first : {true, false}) {
      if (first == (self.rank < 2)) {
        all_reduced(*self.row, row);
      } else {
        all_reduced(*self.column, column);
      }
    }
    EXPECT_EQ(row.item<float>(), self.rank < 2 ? 1 : 5);
    EXPECT_EQ(column.item<float>(), self.rank % 2 == 0 ? 2 : 4);
  });
}

TEST(ThreadBackend, FourRanksThatWaitInACircleAreFound) {
  const auto errors = run_ranks(4, kDeadline, [&](const ThreadRank& self) {
    const auto row = self.full(1, self.rank);
    const auto column = self.full(1, self.rank);
    for (const bool first : {true, false}) {
      if (first == (self.rank == 0 || self.rank == 3)) {
        all_reduced(*self.row, row);
      } else {
        all_reduced(*self.column, column);
      }
    }
    self.compute.synchronize();
  });
  for (const auto& error : errors) {
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("ranks must start collectives in one order"),
            HasSubstr("of row "), HasSubstr("of column ")));
  }
}

TEST(ThreadBackend, ACollectiveThatARankLeavesOutIsFound) {
  const auto errors =
      run_ranks(2, std::chrono::milliseconds(100), [&](const ThreadRank& self) {
        if (self.rank == 0) {
          all_gather(*self.gather, self.full(8, 0), self.full(4, 0));
          self.compute.synchronize();
        }
      });
  EXPECT_THAT(
      errors[0],
      AllOf(
          HasSubstr("an all-gather of 32 bytes"),
          HasSubstr("some rank has not started")));
}

}  // namespace
}  // namespace sherd::test
