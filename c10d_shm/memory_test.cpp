// SPDX-License-Identifier: Apache-2.0
//
// How tensors lie in memory: inputs and outputs that share memory, outputs with several elements at
// one place, inference tensors with gaps, conjugates.
#include <gmock/gmock.h>
#include "c10d_shm/backend.h"
#include "c10d_shm/tensor_bytes.h"
#include "c10d_shm/testing.h"
#include "support/error_of.h"

namespace sherd::c10d_shm {
namespace {

using sherd::test::error_of;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;
using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

// --- Which calls write at the end.

WriteTiming writes_of(const Tensors& written, const Tensors& read) {
  CallMemory memory;
  memory.writes(written);
  for (const auto& tensor : read) {
    memory.reads(tensor);
  }
  return memory.write_timing();
}

TEST(CallMemory, WritesAtTheEndWhatIsAlsoReadOrWrittenTwice) {
  const auto all = torch::zeros({12});
  const auto at = [&](int begin, int size) {
    return all.narrow(0, begin, size);
  };
  EXPECT_EQ(writes_of({}, {}), WriteTiming::kDirectly);
  EXPECT_EQ(
      writes_of({at(0, 4), at(8, 4)}, {at(4, 4)}), WriteTiming::kDirectly);
  EXPECT_EQ(
      writes_of({at(0, 4)}, {at(4, 4), at(4, 8)}), WriteTiming::kDirectly);
  EXPECT_EQ(writes_of({at(0, 4)}, {at(3, 4)}), WriteTiming::kAtTheEnd);
  EXPECT_EQ(writes_of({at(3, 4)}, {at(0, 4)}), WriteTiming::kAtTheEnd);
  EXPECT_EQ(writes_of({at(0, 12)}, {at(5, 1)}), WriteTiming::kAtTheEnd);
  EXPECT_EQ(
      writes_of({at(5, 1)}, {at(0, 12), at(2, 1)}), WriteTiming::kAtTheEnd);
  EXPECT_EQ(writes_of({at(0, 4), at(0, 4)}, {}), WriteTiming::kAtTheEnd);
  EXPECT_EQ(
      writes_of({at(0, 4), at(2, 0)}, {at(1, 0)}), WriteTiming::kDirectly);
}

TEST(CallMemory, CountsTheGapsOfWhatIsWritten) {
  const auto all = torch::zeros({4, 4});
  const auto column = all.select(1, 1);
  EXPECT_EQ(
      writes_of({column}, {all[1].narrow(0, 2, 2)}), WriteTiming::kAtTheEnd);
  // A tensor with gaps is read from a copy.
  EXPECT_EQ(writes_of({all[1]}, {column}), WriteTiming::kDirectly);
}

TEST(CallMemory, TheOwnPieceMayLieWhereItsResultComesTo) {
  const auto all = torch::zeros({8});
  CallMemory memory;
  memory.writes(all);
  memory.reads_unless_at(all.narrow(0, 4, 4), extent_of(all.narrow(0, 4, 4)));
  EXPECT_EQ(memory.write_timing(), WriteTiming::kDirectly);
  memory.reads_unless_at(all.narrow(0, 3, 4), extent_of(all.narrow(0, 4, 4)));
  EXPECT_EQ(memory.write_timing(), WriteTiming::kAtTheEnd);
}

// --- Inputs and outputs of one call that share memory.

struct Span {
  std::int64_t begin;
  std::int64_t size;
};

using SharedCall =
    std::function<void(c10d::Backend&, int rank, Tensors outs, Tensors ins)>;

// A call whose operands are pieces of one tensor, in units of some elements.
struct Shared {
  const char* name;
  std::vector<Span> outs;
  std::vector<Span> ins;
  SharedCall call;
  // False if Gloo refuses them, or gives numbers that differ between runs or ranks.
  bool gloo_can = true;
};

Tensors pieces_in(
    const torch::Tensor& all,
    const std::vector<Span>& spans,
    std::int64_t unit) {
  Tensors pieces;
  for (const auto& span : spans) {
    pieces.push_back(all.narrow(0, span.begin * unit, span.size * unit));
  }
  return pieces;
}

Tensors clones(const Tensors& tensors) {
  Tensors all;
  for (const auto& tensor : tensors) {
    all.push_back(tensor.clone());
  }
  return all;
}

std::vector<Tensors> lists_of(const Tensors& tensors) { return {tensors}; }

void sum_all(c10d::Backend& on, int, Tensors outs, Tensors) {
  on.allreduce_coalesced(outs)->wait();
}
void gather_all(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  auto lists = lists_of(outs);
  on.allgather(lists, ins)->wait();
}
void gather_all_in_one(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  on._allgather_base(outs[0], ins[0])->wait();
}
void gather_several(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  on.allgather_into_tensor_coalesced(outs, ins)->wait();
}
void gather_lists(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  std::vector<Tensors> lists = {{outs[0], outs[1]}, {outs[2], outs[3]}};
  on.allgather_coalesced(lists, ins)->wait();
}
void sum_and_scatter(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  auto lists = lists_of(ins);
  on.reduce_scatter(outs, lists)->wait();
}
void sum_and_scatter_one(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  on._reduce_scatter_base(outs[0], ins[0])->wait();
}
void sum_and_scatter_several(
    c10d::Backend& on, int, Tensors outs, Tensors ins) {
  on.reduce_scatter_tensor_coalesced(outs, ins)->wait();
}
void exchange(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  on.alltoall(outs, ins)->wait();
}
void exchange_one(c10d::Backend& on, int, Tensors outs, Tensors ins) {
  std::vector<std::int64_t> equal;
  on.alltoall_base(outs[0], ins[0], equal, equal)->wait();
}
void gather_to_0(c10d::Backend& on, int rank, Tensors outs, Tensors ins) {
  auto lists = rank == 0 ? lists_of(outs) : std::vector<Tensors>();
  on.gather(lists, ins)->wait();
}
void scatter_from_0(c10d::Backend& on, int rank, Tensors outs, Tensors ins) {
  auto lists = rank == 0 ? lists_of(ins) : std::vector<Tensors>();
  on.scatter(outs, lists)->wait();
}

// They are for two ranks.
std::vector<Shared> shared_calls() {
  return {
      {"sum [t, t]", {{0, 4}, {0, 4}}, {}, sum_all},
      {"sum overlapping", {{0, 4}, {2, 6}}, {}, sum_all},
      {"gather, 0", {{0, 4}, {4, 4}}, {{0, 4}}, gather_all},
      {"gather, 2", {{0, 4}, {4, 4}}, {{2, 4}}, gather_all},
      {"gather, 4", {{0, 4}, {4, 4}}, {{4, 4}}, gather_all},
      {"gather to [t, t]", {{0, 4}, {0, 4}}, {{4, 4}}, gather_all},
      {"gather overlapping", {{0, 4}, {2, 4}}, {{5, 4}}, gather_all},
      {"gather one, 0", {{0, 8}}, {{0, 4}}, gather_all_in_one},
      {"gather one, 2", {{0, 8}}, {{2, 4}}, gather_all_in_one},
      {"gather one, 4", {{0, 8}}, {{4, 4}}, gather_all_in_one},
      {"gather several", {{0, 4}, {4, 4}}, {{4, 2}, {0, 2}}, gather_several},
      {"gather lists",
       {{0, 2}, {2, 1}, {3, 2}, {5, 1}},
       {{3, 2}, {0, 1}},
       gather_lists},
      {"scatter, 0", {{0, 4}}, {{0, 4}, {4, 4}}, sum_and_scatter},
      {"scatter, 2", {{2, 4}}, {{0, 4}, {4, 4}}, sum_and_scatter, false},
      {"scatter, 4", {{4, 4}}, {{0, 4}, {4, 4}}, sum_and_scatter, false},
      {"scatter t of [t, t]", {{0, 4}}, {{0, 4}, {0, 4}}, sum_and_scatter},
      {"scatter one, 0", {{0, 4}}, {{0, 8}}, sum_and_scatter_one},
      {"scatter one, 2", {{2, 4}}, {{0, 8}}, sum_and_scatter_one},
      {"scatter one, 4", {{4, 4}}, {{0, 8}}, sum_and_scatter_one},
      {"scatter several",
       {{0, 2}, {2, 2}},
       {{2, 4}, {0, 4}},
       sum_and_scatter_several},
      {"exchange", {{0, 4}, {4, 4}}, {{0, 4}, {4, 4}}, exchange, false},
      {"exchange, turned", {{0, 4}, {4, 4}}, {{4, 4}, {0, 4}}, exchange, false},
      {"exchange one", {{0, 8}}, {{0, 8}}, exchange_one, false},
      {"exchange one, 2", {{0, 8}}, {{2, 8}}, exchange_one, false},
      {"gather to 0, 2", {{0, 4}, {4, 4}}, {{2, 4}}, gather_to_0},
      {"gather to 0, 4", {{0, 4}, {4, 4}}, {{4, 4}}, gather_to_0},
      {"scatter from 0, 0", {{0, 4}}, {{0, 4}, {4, 4}}, scatter_from_0},
      {"scatter from 0, 2", {{2, 4}}, {{0, 4}, {4, 4}}, scatter_from_0, false},
  };
}

// Operands that share memory give the same as separate ones, with the last output winning, and the
// same as Gloo.
TEST(ShmMemory, OperandsThatShareMemoryGiveWhatSeparateOnesDo) {
  for (const auto& communicator : test::all_transfer_paths()) {
    test::expect_all_ok(run_backend_ranks(
        2, {.communicator = communicator}, [](BackendRank& ranked, Rank&) {
          const int rank = ranked.rank();
          for (const std::int64_t unit : {3, 40'000}) {
            const auto start =
                torch::arange(12 * unit, torch::kFloat32).remainder(19) +
                rank * 20;
            for (const auto& each : shared_calls()) {
              SCOPED_TRACE(str(each.name, ", ", unit));
              const auto apart = start.clone();
              auto places = pieces_in(apart, each.outs, unit);
              auto outs = clones(places);
              const auto ins = clones(pieces_in(apart, each.ins, unit));
              each.call(ranked.shm(), rank, outs, ins);
              for (std::size_t i = 0; i < outs.size(); ++i) {
                places[i].copy_(outs[i]);
              }
              const auto found = [&](c10d::Backend& backend) {
                auto all = start.clone();
                each.call(
                    backend, rank, pieces_in(all, each.outs, unit),
                    pieces_in(all, each.ins, unit));
                return all;
              };
              EXPECT_TRUE(found(ranked.shm()).equal(apart));
              if (each.gloo_can && unit == 3) {
                EXPECT_TRUE(found(ranked.gloo()).equal(apart));
              }
            }
          }
        }));
  }
}

// --- What cannot be written, and what only some threads can write.

TEST(ShmMemory, AnOutputWithSeveralElementsAtOnePlaceIsRefusedAtOnce) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    auto expanded = torch::ones({1}).expand({4});
    auto input = torch::ones({2});
    Tensors one = {expanded};
    const auto refused = [](const std::function<void()>& call) {
      EXPECT_THAT(
          error_of(call),
          HasSubstr("expected an output with a place for each element, found "
                    "CPUFloatType of sizes [4] and strides [0]"));
    };
    refused([&] { ranked.shm().recv(one, 1 - ranked.rank(), 0); });
    refused([&] { ranked.shm().allreduce(one, {}); });
    refused([&] { ranked.shm().allreduce_coalesced(one, {}); });
    refused([&] { ranked.shm()._allgather_base(expanded, input, {}); });
    refused(
        [&] { ranked.shm().broadcast(one, {.rootRank = 1 - ranked.rank()}); });
    // A tensor that is only read may be expanded.
    Tensors source = {ranked.rank() == 0 ? expanded : torch::zeros({4})};
    ranked.shm().broadcast(source, {.rootRank = 0})->wait();
    EXPECT_TRUE(source[0].equal(torch::ones({4})));
  }));
}

torch::Tensor inference_tensor_with_gaps() {
  const c10::InferenceMode inference;
  return torch::ones({300, 5}).t();
}

// None of P2pWorker's thread, the group's own and one that waits is in inference mode.
TEST(ShmMemory, InferenceTensorsAreWrittenByEveryThread) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    const int other = 1 - ranked.rank();
    const auto expected = torch::arange(1500.0F).view({5, 300});
    Tensors received = {inference_tensor_with_gaps()};
    Tensors sent = {expected + ranked.rank()};
    const auto receiving = ranked.shm().recv(received, other, 0);
    ranked.shm().send(sent, other, 0)->wait();
    EXPECT_TRUE(receiving->wait());
    EXPECT_TRUE(received[0].equal(expected + other));

    Tensors by_own = {inference_tensor_with_gaps()};
    ranked.shm().allreduce(by_own, {})->getFuture()->wait();
    Tensors by_waiter = {inference_tensor_with_gaps()};
    ranked.shm().allreduce(by_waiter, {})->wait();
    Tensors by_inferrer = {inference_tensor_with_gaps()};
    {
      const c10::InferenceMode inference;
      ranked.shm().allreduce(by_inferrer, {})->wait();
    }
    for (const auto& tensor : {by_own[0], by_waiter[0], by_inferrer[0]}) {
      EXPECT_TRUE(tensor.eq(2).all().item<bool>());
    }
  }));
}

// Other tensors that record gradients behave as before: a leaf may be received into, and Autograd
// notices that what it saved has changed.
TEST(ShmMemory, WritingCountsTheVersionOfOtherTensors) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    auto leaf = torch::ones({5, 3}).t().requires_grad_();
    const auto version = leaf._version();
    const auto product = leaf * leaf;
    Tensors tensors = {leaf};
    ranked.shm().allreduce(tensors, {})->getFuture()->wait();
    EXPECT_TRUE(leaf.eq(2).all().item<bool>());
    EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad() && !leaf.is_inference());
    EXPECT_GT(leaf._version(), version);
    EXPECT_THAT(
        error_of([&] { product.sum().backward(); }),
        HasSubstr("modified by an inplace operation"));
  }));
}

TEST(ShmMemory, ConjugatesMoveAsTheirValues) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    const auto value = torch::complex(torch::ones({3}), torch::ones({3}));
    auto memory = ranked.rank() == 0 ? value.clone() : torch::zeros_like(value);
    Tensors tensors = {memory.conj()};
    ranked.shm().broadcast(tensors, {.rootRank = 0})->wait();
    EXPECT_TRUE(memory.equal(value));
  }));
}

}  // namespace
}  // namespace sherd::c10d_shm
