// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/state_bytes.h"

#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "device/stream.h"
#include "support/checking_device/checking_device.h"

namespace sherd::ft {
namespace {

class ParameterDigest : public ::testing::Test {
 protected:
  ParameterDigest() {
    parameters_.items.push_back({"weight", torch::arange(1000, torch::kFloat)});
    parameters_.items.push_back({"bias", torch::zeros({7})});
  }
  std::uint64_t digest() const { return parameter_digest(parameters_); }

  NamedParameters parameters_;
};

TEST_F(ParameterDigest, IsThatOfEqualBitsWhereverTheyLie) {
  const auto before = digest();
  EXPECT_EQ(digest(), before);
  auto& weight = parameters_.items[0].slice;
  weight = torch::stack({weight, weight}, 1).select(1, 1);
  ASSERT_FALSE(weight.is_contiguous());
  EXPECT_EQ(digest(), before);
}

TEST_F(ParameterDigest, SeesEachBit) {
  const auto before = digest();
  for (const std::int64_t at : {0, 499, 999}) {
    for (unsigned bit = 0; bit < 32; ++bit) {
      auto* place = parameters_.items[0].slice.data_ptr<float>() + at;
      std::uint32_t bits = 0;
      std::memcpy(&bits, place, sizeof bits);
      const std::uint32_t flipped = bits ^ (1U << bit);
      std::memcpy(place, &flipped, sizeof bits);
      EXPECT_NE(digest(), before) << at << " bit " << bit;
      std::memcpy(place, &bits, sizeof bits);
    }
  }
  EXPECT_EQ(digest(), before);
}

TEST_F(ParameterDigest, SeesWhichParameterItIs) {
  const auto before = digest();
  std::swap(parameters_.items[0], parameters_.items[1]);
  EXPECT_NE(digest(), before);
}

TEST(StateDigest, SeesEachTensorItsNameAndItsType) {
  const auto digest = [](const char* name, const torch::Tensor& elements) {
    CheckpointState state;
    state.add(
        "model",
        {.name = name, .shape = elements.sizes().vec(), .elements = elements});
    state.add(
        "model", {.name = "last", .shape = {1}, .elements = torch::zeros({1})});
    return state_digest(state, 0);
  };
  const auto values = torch::arange(1000, torch::kInt);
  const auto before = digest("w", values);
  EXPECT_EQ(digest("w", values.clone()), before);
  const auto apart = torch::stack({values, values}, 1).select(1, 1);
  ASSERT_FALSE(apart.is_contiguous());
  EXPECT_EQ(digest("w", apart), before) << "of equal bits wherever they lie";
  EXPECT_NE(digest("v", values), before);
  EXPECT_NE(digest("w", values.view(torch::kFloat)), before);
  for (const std::int64_t at : {0, 499, 999}) {
    const auto changed = values.clone();
    changed[at] += 1;
    EXPECT_NE(digest("w", changed), before) << at;
  }
}

// A string that doubles while it grows would take the state's memory twice.
TEST(StateBytes, TakeNoMoreRoomThanTheyNeed) {
  CheckpointState state;
  for (const char* name : {"a", "b", "c"}) {
    state.add(
        "model",
        {.name = name, .shape = {100000}, .elements = torch::ones({100000})});
  }
  const std::string bytes = state_bytes(state, 0);
  EXPECT_GT(bytes.size(), 1200000U);
  EXPECT_EQ(bytes.capacity(), bytes.size());
}

TEST(StateBytes, AreInTheOrderOfIndicesWhateverTheStrides) {
  const auto state_of = [](const torch::Tensor& elements) {
    CheckpointState state;
    state.add(
        "model",
        {.name = "w", .shape = elements.sizes().vec(), .elements = elements});
    return state;
  };
  const auto values = torch::arange(12, torch::kFloat).view({3, 4});
  const auto plain = values.clone();
  const auto transposed = values.t().contiguous().t();
  const auto apart = torch::zeros({3, 8}).slice(1, 0, 8, 2);
  apart.copy_(values);
  for (const auto& from : {plain, transposed, apart}) {
    const auto bytes = state_bytes(state_of(from), 0);
    for (const auto& to : {plain, transposed, apart}) {
      const auto place = torch::empty_strided({3, 4}, to.strides()).zero_();
      restore_state(state_of(place), 0, bytes);
      EXPECT_TRUE(torch::equal(place, values))
          << from.strides() << " to " << to.strides();
    }
  }
}

// The bytes and digests are the same, and restoring works, in the current stream.
TEST(StateBytes, AreThoseOfTheCpuOnADevice) {
  const auto device = sherd::test::checking_device();
  const device::CurrentStream on(device::Stream::with_high_priority(device));
  const auto values = torch::arange(12, torch::kFloat).view({3, 4});
  const auto state_on = [&](const torch::Tensor& matrix) {
    CheckpointState state;
    state.add("model", {.name = "w", .shape = {3, 4}, .elements = matrix});
    state.add("model", {.name = "v", .shape = {4, 3}, .elements = matrix.t()});
    return state;
  };
  const auto there = state_on(values.to(device));
  const auto bytes = state_bytes(state_on(values), 0);
  EXPECT_EQ(state_bytes(there, 0), bytes);
  EXPECT_EQ(state_digest(there, 0), state_digest(state_on(values), 0));
  const auto place = torch::zeros({3, 4}, device);
  restore_state(state_on(place), 0, bytes);
  EXPECT_TRUE(torch::equal(place.cpu(), values));
  NamedParameters here;
  here.items.push_back({"w", values.view({-1})});
  NamedParameters named;
  named.items.push_back({"w", place.view({-1})});
  EXPECT_EQ(parameter_digest(named), parameter_digest(here));
  EXPECT_THAT(sherd::test::take_faults(device), ::testing::IsEmpty());
}

}  // namespace
}  // namespace sherd::ft
