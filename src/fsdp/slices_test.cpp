// SPDX-License-Identifier: Apache-2.0
#include "fsdp/slices.h"

#include "fsdp/testing.h"

namespace sherd::fsdp {
namespace {

using test::FakeRank;
using test::run_fake_ranks;
using testing::Net;
using testing::opened_exchange;
using testing::spec_of;

constexpr int kOwners = 3;
// Unit 0 is the frozen offset.
constexpr int kTrained = 1;

ModelUnits units_of(const Net& net) {
  return build_units(*net, kOwners, {.units = units::none()});
}

// One rank's slices over a model and an exchange of their own.
struct World {
  explicit World(FakeRank& self, bool replicate = false)
      : model(units_of(net)),
        exchange(opened_exchange(
            self,
            spec_of(
                model,
                replicate ? exchange::ModelPlacement::kReplicate
                          : exchange::ModelPlacement::kShard))),
        slices(model, *exchange, self.rank, replicate) {}

  std::vector<bool> all_used() const { return std::vector<bool>(6, true); }

  Net net;
  ModelUnits model;
  std::unique_ptr<exchange::Exchange> exchange;
  Slices slices;
};

void on_each_rank(const test::FakeBody& body) {
  run_fake_ranks(kOwners, exchange::FakeOptions{}, [&](FakeRank& self) {
    body(self);
    self.barrier.arrive_and_wait();
  });
}

TEST(Slices, AreOneDimensionalLeavesOverShardMemory) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    for (const auto& slice : w.slices.all()) {
      const auto& parameter =
          w.model.parameters[static_cast<std::size_t>(slice.parameter)];
      EXPECT_EQ(slice.tensor.dim(), 1);
      EXPECT_GT(slice.tensor.numel(), 0);
      EXPECT_TRUE(slice.tensor.is_leaf());
      EXPECT_FALSE(slice.tensor.is_view());
      EXPECT_EQ(slice.tensor.requires_grad(), parameter.name != "offset");
      EXPECT_EQ(slice.gradient.defined(), parameter.trainable >= 0);
      EXPECT_EQ(slice.name, parameter.name);
      EXPECT_TRUE(slice.tensor.is_alias_of(
          w.exchange->shard_memory(parameter.unit, parameter.flat).shard));
    }
  });
}

TEST(Slices, CoverEachElementOnceOverAllRanks) {
  std::vector<std::atomic<std::int64_t>> covered(7);
  on_each_rank([&](FakeRank& self) {
    World w(self);
    for (const auto& slice : w.slices.all()) {
      covered[static_cast<std::size_t>(slice.parameter)] +=
          slice.tensor.numel();
    }
  });
  const Net net;
  const auto model = units_of(net);
  ASSERT_EQ(model.parameters.size(), covered.size());
  for (std::size_t p = 0; p < covered.size(); ++p) {
    EXPECT_EQ(covered[p].load(), model.parameters[p].tensor.numel());
  }
}

TEST(Slices, TakeTheirPartOfAFullParameter) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    for (std::size_t p = 0; p < w.model.parameters.size(); ++p) {
      const auto& full = w.model.parameters[p].tensor;
      // Also from memory that is not contiguous.
      w.slices.copy_from_full(
          static_cast<int>(p),
          full.dim() == 2 ? full.t().contiguous().t() : full);
    }
    for (const auto& slice : w.slices.all()) {
      const auto& parameter =
          w.model.parameters[static_cast<std::size_t>(slice.parameter)];
      const auto& layout = w.model.flat_of(parameter).layout;
      const auto part =
          plan::parameter_slice(layout, parameter.position, self.rank);
      EXPECT_TRUE(torch::equal(
          slice.tensor.detach(),
          parameter.tensor.detach().flatten().slice(
              0, part.in_parameter.begin, part.in_parameter.end)));
    }
  });
}

TEST(Slices, AnOwnerOfAllHasWholeParameters) {
  on_each_rank([](FakeRank& self) {
    World w(self, /*replicate=*/true);
    ASSERT_EQ(w.slices.all().size(), w.model.parameters.size());
    for (const auto& slice : w.slices.all()) {
      EXPECT_EQ(
          slice.tensor.numel(),
          w.model.parameters[static_cast<std::size_t>(slice.parameter)]
              .tensor.numel());
    }
  });
}

TEST(Slices, GradientsAppearWhereUsedAndStayTheSameMemory) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    auto used = w.all_used();
    used[2] = false;
    w.slices.set_gradients(kTrained, used);
    for (const auto& slice : w.slices.all()) {
      const auto& parameter =
          w.model.parameters[static_cast<std::size_t>(slice.parameter)];
      const auto& grad = slice.tensor.grad();
      ASSERT_EQ(
          grad.defined(),
          parameter.unit == kTrained && parameter.trainable != 2)
          << slice.name;
      if (grad.defined()) {
        EXPECT_EQ(grad.const_data_ptr(), slice.gradient.const_data_ptr());
        grad.detach_();  // As torch::optim::Optimizer::zero_grad does.
        EXPECT_EQ(grad.numel(), slice.tensor.numel());
      }
    }
    w.slices.clear_gradients();
    for (const auto& slice : w.slices.all()) {
      EXPECT_FALSE(slice.tensor.grad().defined());
    }
  });
}

TEST(Slices, ReductionsAddOnlyWhereAGradientIs) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    EXPECT_EQ(
        w.slices.accumulation(kTrained),
        std::vector<bool>(w.model.units[kTrained].flats.size(), false));
    w.slices.set_gradients(kTrained, w.all_used());
    for (const auto& slice : w.slices.all()) {
      if (slice.gradient.defined()) {
        at::Tensor(slice.gradient).fill_(7);
      }
    }
    // The user drops one gradient and replaces another.
    std::vector<const Slices::Slice*>
        own;  // Whoever holds a gradient keeps it.
    for (const auto& slice : w.slices.all()) {
      if (slice.tensor.requires_grad()) {
        own.push_back(&slice);
      }
    }
    own.front()->tensor.mutable_grad().reset();
    own.back()->tensor.mutable_grad() = torch::full_like(own.back()->tensor, 3);
    const auto add = w.slices.accumulation(kTrained);
    for (std::size_t f = 0; f < add.size(); ++f) {
      EXPECT_TRUE(add[f]);
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
      const double expected = i + 1 == own.size() ? 3 : i == 0 ? 0 : 7;
      EXPECT_EQ(own[i]->gradient.max().item<double>(), expected) << i;
      EXPECT_EQ(own[i]->gradient.min().item<double>(), expected) << i;
    }
    EXPECT_EQ(
        own.back()->tensor.grad().const_data_ptr(),
        own.back()->gradient.const_data_ptr());
  });
}

}  // namespace
}  // namespace sherd::fsdp
