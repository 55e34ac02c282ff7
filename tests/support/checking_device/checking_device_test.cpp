// SPDX-License-Identifier: Apache-2.0
//
// One test for each kind of fault that the device finds, and correct programs, in which it finds
// none.
#include "support/checking_device/checking_device.h"

#include <optional>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The error of an operator that is out of order; empty if there is none.
template <typename Body>
std::string fault_of(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

class CheckingDevice : public ::testing::Test {
 protected:
  ~CheckingDevice() override { EXPECT_EQ(take_faults(device).size(), 0U); }

  static void order(const c10::Stream& first, const c10::Stream& then) {
    c10::Event event(c10::kPrivateUse1);
    event.record(first);
    event.block(then);
  }
  at::Tensor on_side(double value) {
    const c10::StreamGuard on(side);
    return at::full({16}, value, at::device(device));
  }

  const c10::Device device = checking_device();
  const c10::impl::VirtualGuardImpl guard{c10::kPrivateUse1};
  const c10::Stream compute = guard.getStream(device);
  const c10::Stream side = guard.getNewStream(device, -1);
};

TEST_F(CheckingDevice, FindsAWriteThatDoesNotWaitForAWrite) {
  const auto memory = at::zeros({64}, at::device(device));
  const auto fault = fault_of([&] {
    const c10::StreamGuard on(side);
    memory.fill_(1);
  });
  EXPECT_THAT(
      fault,
      AllOf(
          HasSubstr("aten::fill_ on stream " + std::to_string(side.id())),
          HasSubstr("writes what aten::zero_ on stream 0 writes"),
          HasSubstr("no event orders them")));
  order(side, compute);  // Ordered before it is freed.
}

TEST_F(CheckingDevice, FindsAUseThatDoesNotWait) {
  const auto values = on_side(2);
  EXPECT_THAT(
      fault_of([&] { (void)at::add(values, 1); }),
      HasSubstr("aten::add on stream 0 reads what aten::fill_"));
  order(side, compute);
  EXPECT_EQ(fault_of([&] { (void)at::add(values, 1); }), "");
  order(compute, side);  // Ordered before it is freed.
}

TEST_F(CheckingDevice, FindsAnOverwriteOfWhatIsStillRead) {
  const auto values = on_side(2);
  order(side, compute);
  const auto sum = at::add(values, 1);
  const auto overwrite = [&] {
    const c10::StreamGuard on(side);
    values.fill_(3);
  };
  EXPECT_THAT(
      fault_of(overwrite),
      HasSubstr("writes what aten::add on stream 0 reads"));
  order(compute, side);
  EXPECT_EQ(fault_of(overwrite), "");
  EXPECT_EQ(sum[15].item<float>(), 3);
}

TEST_F(CheckingDevice, FindsAFreeOfWhatAnotherStreamReads) {
  {
    const auto values = on_side(2);
    order(side, compute);
    (void)at::add(values, 1);
  }
  const auto faults = take_faults(device);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_THAT(faults[0], HasSubstr("frees what aten::add on stream 0 reads"));
}

TEST_F(CheckingDevice, AFaultOfAFreeIsAnErrorOfTheNextOperator) {
  const auto other = at::zeros({1}, at::device(device));
  {
    const auto values = on_side(2);
    order(side, compute);
    (void)at::add(values, 1);
  }
  EXPECT_THAT(fault_of([&] { other.add_(1); }), HasSubstr("frees what"));
  EXPECT_EQ(fault_of([&] { other.add_(1); }), "");
}

TEST_F(CheckingDevice, FindsAUseOfFreedMemory) {
  void* address = nullptr;
  {
    const auto values = at::ones({16}, at::device(device));
    address = values.mutable_data_ptr();
  }
  const auto dangling = at::for_blob(address, {16})
                            .options(at::device(device).dtype(at::kFloat))
                            .target_device(device)
                            .make_tensor();
  EXPECT_THAT(
      fault_of([&] { dangling.fill_(1); }), HasSubstr("writes what a free"));
}

// Its stream may still be busy with what the memory held before.
TEST_F(CheckingDevice, FindsAUseOfMemoryBeforeItsStreamGivesIt) {
  const auto memory = at::empty({16}, at::device(device));
  const auto write = [&] {
    const c10::StreamGuard on(side);
    memory.fill_(1);
  };
  EXPECT_THAT(fault_of(write), HasSubstr("what an allocation on stream 0"));
  order(compute, side);
  order(side, compute);
}

TEST_F(CheckingDevice, ADifferentPartOfTheSameMemoryIsNoConflict) {
  const auto arena = at::zeros({128}, at::device(device));
  order(compute, side);
  {
    const c10::StreamGuard on(side);
    arena.narrow(0, 0, 64).fill_(1);
  }
  EXPECT_EQ(fault_of([&] { arena.narrow(0, 64, 64).add_(1); }), "");
  EXPECT_NE(fault_of([&] { arena.narrow(0, 63, 64).add_(1); }), "");
  order(side, compute);
}

TEST_F(CheckingDevice, AnEventOrdersWhatWasDoneWhenItWasRecorded) {
  const auto values = on_side(2);
  c10::Event event(c10::kPrivateUse1);
  event.record(side);
  {
    const c10::StreamGuard on(side);
    values.fill_(3);
  }
  event.block(compute);
  EXPECT_NE(fault_of([&] { (void)at::add(values, 1); }), "");
  order(compute, side);
}

TEST_F(CheckingDevice, MemoryThatWasFreedServesItsStreamAgain) {
  void* first = nullptr;
  {
    const auto values = at::ones({1000}, at::device(device));
    first = values.mutable_data_ptr();
  }
  const auto again = at::empty({1000}, at::device(device));
  EXPECT_EQ(again.mutable_data_ptr(), first);
  const c10::StreamGuard on(side);
  EXPECT_NE(at::empty({1000}, at::device(device)).mutable_data_ptr(), first);
}

TEST_F(CheckingDevice, CountsHowOftenTheHostWaits) {
  const auto values = at::ones({4}, at::device(device));
  const auto before = host_synchronisations(device);
  const auto sum = at::add(values, 1).sum();
  c10::Event event(c10::kPrivateUse1);
  event.record(compute);
  EXPECT_EQ(host_synchronisations(device), before);
  EXPECT_EQ(sum.item<float>(), 8);
  EXPECT_EQ(host_synchronisations(device), before + 1);
  event.synchronize();
  compute.synchronize();
  EXPECT_EQ(host_synchronisations(device), before + 3);
  (void)values.cpu();
  EXPECT_EQ(host_synchronisations(device), before + 4);
  EXPECT_TRUE(at::equal(values, values));
  EXPECT_EQ(host_synchronisations(device), before + 5);
}

TEST_F(CheckingDevice, AWaitOfTheHostOrdersLikeAnEvent) {
  const auto values = on_side(2);
  side.synchronize();
  EXPECT_EQ(fault_of([&] { (void)at::add(values, 1); }), "");
  compute.synchronize();
}

TEST_F(CheckingDevice, InACaptureTheHostMayNotWait) {
  const auto values = at::ones({4}, at::device(device));
  c10::Event event(c10::kPrivateUse1);
  event.record(compute);
  const CaptureScope capture(device);
  for (const auto& wait : std::vector<std::function<void()>>{
           [&] { (void)values[0].item<float>(); },
           [&] { compute.synchronize(); }, [&] { event.synchronize(); }}) {
    EXPECT_THAT(fault_of(wait), HasSubstr("in a capture"));
  }
}

TEST_F(CheckingDevice, InACaptureNoNewMemoryIsAllocated) {
  const auto step = [&](std::int64_t numel) {
    (void)at::ones({numel}, at::device(device)).add_(1);
  };
  step(5000);
  const CaptureScope capture(device);
  EXPECT_EQ(fault_of([&] { step(5000); }), "");
  EXPECT_THAT(
      fault_of([&] { step(50'000); }),
      AllOf(HasSubstr("new memory"), HasSubstr("in a capture")));
}

TEST_F(CheckingDevice, ACaptureKnowsItsOwnMomentsAlone) {
  const auto add = [](const c10::Stream& stream) {
    const c10::StreamGuard on(stream);
    (void)at::ones({4}, at::device(stream.device()));
  };
  const auto recorded = [](const c10::Stream& stream) {
    c10::Event event(c10::kPrivateUse1);
    event.record(stream);
    return event;
  };
  add(compute);
  add(side);
  const auto before = recorded(side);
  std::optional<c10::Event> inside;
  {
    const CaptureScope capture(device);
    add(compute);
    EXPECT_THAT(
        fault_of([&] { before.block(compute); }),
        HasSubstr("was put into a stream before it"));
    EXPECT_THAT(
        fault_of([&] { add(side); }), HasSubstr("is not in the capture"));
    inside = recorded(compute);
    inside->block(side);
    add(side);
    recorded(side).block(compute);
  }
  EXPECT_TRUE(take_faults(device).empty());
  EXPECT_THAT(
      fault_of([&] { inside->block(side); }),
      HasSubstr("of a capture that has ended"));
}

TEST_F(CheckingDevice, AtTheEndOfACaptureEachOfItsStreamsWasWaitedFor) {
  const auto add_to_side = [&] {
    const c10::StreamGuard on(side);
    (void)at::ones({4}, at::device(device));
  };
  add_to_side();
  {
    const CaptureScope capture(device);
    c10::Event event(c10::kPrivateUse1);
    event.record(compute);
    event.block(side);
    add_to_side();
  }
  EXPECT_THAT(
      take_faults(device), ElementsAre(HasSubstr("has not waited for stream")));
  side.synchronize();
}

TEST_F(CheckingDevice, ForwardAndBackwardAreThoseOfTheCpu) {
  torch::manual_seed(1);
  const auto host_input = torch::randn({5, 8});
  const auto host_weight = torch::randn({3, 8});
  const auto run = [&](const c10::Device& where) {
    const auto weight =
        host_weight.to(where).detach().clone().requires_grad_(true);
    const auto loss =
        at::linear(host_input.to(where), weight).relu().pow(2).sum();
    loss.backward();
    return std::pair(loss.item<float>(), weight.grad().cpu());
  };
  const auto [loss, gradient] = run(device);
  const auto [host_loss, host_gradient] = run(at::kCPU);
  EXPECT_EQ(loss, host_loss);
  EXPECT_TRUE(at::equal(gradient, host_gradient));
}

// Gathers into one of two places while the other one is used for computing, again and again, like
// training steps.
TEST_F(CheckingDevice, AnOperatorGivesAnEmptyResultItsSize) {
  const auto values = at::full({16}, -3.0, at::device(device));
  auto result = at::empty({0}, values.options());
  at::abs_out(result, values);
  const auto fault = fault_of([&] {
    const c10::StreamGuard on(side);
    result.fill_(1);
  });
  EXPECT_THAT(fault, HasSubstr("no event orders them"));
  order(side, compute);
  EXPECT_TRUE(at::equal(result.cpu(), at::full({16}, 3.0)));
}

TEST_F(CheckingDevice, SparseTensorsGiveBackWhatTheyConsistOf) {
  const auto indices = at::zeros({1, 3}, at::device(device).dtype(at::kLong));
  const auto sparse = at::_sparse_coo_tensor_unsafe(
      indices, at::ones({3, 2}, at::device(device)), {5, 2});
  EXPECT_EQ(sparse.device(), device);
  EXPECT_EQ(sparse._nnz(), 3);
  EXPECT_TRUE(at::equal(sparse._values().cpu(), at::ones({3, 2})));
}

TEST_F(CheckingDevice, AProgramInOrderHasNoFault) {
  const auto arena = at::zeros({2, 32}, at::device(device));
  const auto input = at::ones({4, 8}, at::device(device));
  std::array<std::optional<c10::Event>, 2> used;
  order(compute, side);
  at::Tensor out;
  for (std::size_t step = 0; step < 10; ++step) {
    const auto place = arena[static_cast<std::int64_t>(step % 2)].view({4, 8});
    auto& last_use = used.at(step % 2);
    if (last_use) {
      last_use->block(side);
    }
    {
      const c10::StreamGuard on(side);
      place.fill_(static_cast<double>(step));
    }
    order(side, compute);
    out = at::linear(input, place);
    last_use.emplace(c10::kPrivateUse1);
    last_use->record(compute);
  }
  EXPECT_EQ(out[0][0].item<float>(), 72);
}

TEST_F(CheckingDevice, AWaitThatIsLeftOutIsMissed) {
  for (const bool left_out : {false, true}) {
    StreamWaits waits(device);
    const auto later = guard.getNewStream(device, 0);
    if (left_out) {
      waits.leave_out(1, 0);
    }
    const auto values = at::zeros({4}, at::device(device));
    order(compute, later);
    EXPECT_EQ(waits.counts(), (std::vector<int>{0, 1}));
    const auto fault = fault_of([&] {
      const c10::StreamGuard on(later);
      values.fill_(1);
    });
    EXPECT_EQ(fault.empty(), !left_out);
    order(later, compute);
  }
}

TEST_F(CheckingDevice, AWaitThatAnotherOneImpliesDoesNotCount) {
  const StreamWaits waits(device);
  const auto later = guard.getNewStream(device, 0);
  const auto values = at::zeros({4}, at::device(device));
  order(compute, later);
  order(compute, later);
  EXPECT_EQ(waits.counts(), (std::vector<int>{0, 1}));
}

// ---- pinned memory ----

at::Tensor pinned_ones() {
  return at::ones({4}, at::TensorOptions().pinned_memory(true));
}

TEST_F(CheckingDevice, WhatIsCopiedToPinnedMemoryComesWhenTheHostHasWaited) {
  const auto values = at::full({4}, 7.0, at::device(device));
  const auto host = pinned_ones();
  const auto waits = host_synchronisations(device);
  host.copy_(values, /*non_blocking=*/true);
  EXPECT_EQ(host_synchronisations(device), waits);
  EXPECT_TRUE(host.isnan().all().item<bool>());
  c10::Event copied(c10::kPrivateUse1);
  copied.record(compute);
  copied.synchronize();
  EXPECT_TRUE(at::equal(host, at::full({4}, 7.0)));
}

TEST_F(CheckingDevice, ACopyToPageableMemoryMakesTheHostWait) {
  const auto values = at::full({4}, 7.0, at::device(device));
  const auto host = at::ones({4});
  host.copy_(values, /*non_blocking=*/true);
  EXPECT_TRUE(at::equal(host, at::full({4}, 7.0)));
}

TEST_F(CheckingDevice, FindsPinnedMemoryThatIsWrittenWhileTheDeviceMayReadIt) {
  for (const bool too_early : {false, true}) {
    const auto values = at::empty({4}, at::device(device));
    const auto host = pinned_ones();
    values.copy_(host, /*non_blocking=*/true);
    c10::Event copied(c10::kPrivateUse1);
    copied.record(compute);
    if (!too_early) {
      copied.synchronize();
    }
    host.fill_(5);
    copied.synchronize();
    EXPECT_EQ(take_faults(device).size(), too_early ? 1U : 0U);
  }
}

TEST_F(CheckingDevice, PinnedMemoryThatAStreamHasReadItMayWrite) {
  const auto host = pinned_ones();
  const auto values = at::empty({4}, at::device(device));
  values.copy_(host, /*non_blocking=*/true);
  host.copy_(values.add(1), /*non_blocking=*/true);
  c10::Event copied(c10::kPrivateUse1);
  copied.record(compute);
  copied.synchronize();
  EXPECT_EQ(take_faults(device).size(), 0U);
  EXPECT_TRUE(at::equal(host, at::full({4}, 2.0)));
}

TEST_F(CheckingDevice, WhatIsCopiedToPinnedMemoryIsThereForALaterCopyBack) {
  const auto host = pinned_ones();
  host.copy_(at::full({4}, 7.0, at::device(device)), /*non_blocking=*/true);
  const auto ordered = at::empty({4}, at::device(device));
  ordered.copy_(host, /*non_blocking=*/true);
  at::Tensor unordered;
  {
    const c10::StreamGuard on(side);
    unordered = at::empty({4}, at::device(device));
    unordered.copy_(host, /*non_blocking=*/true);
  }
  EXPECT_TRUE(host.isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(ordered.cpu(), at::full({4}, 7.0)));
  EXPECT_TRUE(at::equal(host, at::full({4}, 7.0)));
  order(side, compute);
  EXPECT_TRUE(unordered.cpu().isnan().all().item<bool>());
  EXPECT_EQ(take_faults(device).size(), 1U);  // It was written meanwhile.
}

TEST_F(CheckingDevice, AWaitOfTheHostThatIsLeftOutIsMissed) {
  StreamWaits waits(device);
  waits.leave_out_of_host(0);
  const auto host = pinned_ones();
  host.copy_(at::zeros({4}, at::device(device)), /*non_blocking=*/true);
  c10::Event copied(c10::kPrivateUse1);
  copied.record(compute);
  copied.synchronize();
  EXPECT_EQ(waits.of_host(), 1);
  EXPECT_TRUE(host.isnan().all().item<bool>());
  copied.synchronize();
  EXPECT_TRUE(at::equal(host, at::zeros({4})));
}

TEST_F(CheckingDevice, DevicesHaveStreamsOfTheirOwn) {
  const auto other = checking_device(3);
  const auto values = at::ones({4}, at::device(other));
  EXPECT_EQ(values.device(), other);
  EXPECT_EQ(guard.getStream(other).device_index(), 3);
  EXPECT_EQ(at::add(values, 1).cpu()[3].item<float>(), 2);
  EXPECT_EQ(take_faults(other).size(), 0U);
}

using CheckingDeviceDeathTest = CheckingDevice;

TEST_F(CheckingDeviceDeathTest, TheHostCannotReadItsMemory) {
  const auto values = at::ones({4}, at::device(device));
  EXPECT_DEATH(
      { (void)*static_cast<volatile float*>(values.mutable_data_ptr()); }, "");
}

}  // namespace
}  // namespace sherd::test
