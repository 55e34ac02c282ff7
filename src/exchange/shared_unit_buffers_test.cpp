// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_unit_buffers.h"
#include "exchange/shared_layout.h"

#include <sys/mman.h>

#include <cstring>
#include <gtest/gtest.h>

namespace sherd::exchange {
namespace {

// Of two ranks and three units.
class HostPlacesTest : public ::testing::Test {
 protected:
  inline static const auto kBytes = static_cast<std::size_t>(64 * kPage);

  HostPlacesTest()
      : memory_(static_cast<std::byte*>(::mmap(
            nullptr,
            kBytes,
            PROT_READ | PROT_WRITE,
            MAP_SHARED | MAP_ANONYMOUS,
            -1,
            0))),
        places_({memory_, kBytes}, dropped_, 3) {}

  void drop(int local, UnitId unit) {
    ++dropped_[static_cast<std::size_t>(local * 3 + unit)];
  }
  std::int64_t allocate(
      UnitId unit,
      std::int64_t pages,
      std::vector<bool> wanted = {true, true},
      std::int64_t pages_max = 0) {
    return places_.allocate(
        {.unit = unit,
         .bytes = pages * kPage,
         .wanted = std::move(wanted),
         .bytes_max = pages_max * kPage});
  }

  std::vector<std::uint64_t> dropped_ = std::vector<std::uint64_t>(6, 0);
  std::byte* memory_;
  SharedUnitBuffers places_;
};

TEST_F(HostPlacesTest, APlaceIsLentAgainWhenEveryReaderHasDroppedIt) {
  const auto first = allocate(0, 2);
  drop(0, 0);
  const auto second = allocate(1, 2);
  EXPECT_NE(second, first);  // Rank 1 still reads it.
  drop(1, 0);
  EXPECT_EQ(allocate(2, 2), first);
  EXPECT_EQ(places_.allocated_bytes(), 4 * kPage);
}

TEST_F(HostPlacesTest, WhoGotNothingNeedsNotDropIt) {
  const auto first = allocate(0, 1, {false, true});
  drop(1, 0);
  EXPECT_EQ(allocate(0, 1, {true, false}), first);
  EXPECT_NE(allocate(0, 1, {false, true}), first);  // Rank 0 still reads.
}

TEST_F(HostPlacesTest, KeepsToTheLimitAndReturnsPages) {
  const auto first = allocate(0, 3, {true, true}, 4);
  std::memset(memory_ + first, 1, 3 * kPage);
  drop(0, 0);
  drop(1, 0);
  (void)allocate(1, 2, {true, true}, 4);
  EXPECT_EQ(places_.allocated_bytes(), 2 * kPage);
  // The kept place had to go, and its bytes with it.
  EXPECT_EQ(memory_[first + 2 * kPage], std::byte(0));
}

TEST_F(HostPlacesTest, RanksApartExceedTheLimitByWhatTheyHold) {
  (void)allocate(0, 3, {true, false}, 4);
  (void)allocate(1, 3, {false, true}, 4);
  EXPECT_EQ(places_.allocated_bytes(), 6 * kPage);
  EXPECT_EQ(places_.allocated_bytes_of(0), 3 * kPage);
  EXPECT_EQ(places_.allocated_bytes_of(1), 3 * kPage);
  drop(0, 0);
  drop(1, 1);
  (void)allocate(2, 3, {true, true}, 4);
  EXPECT_EQ(places_.allocated_bytes(), 3 * kPage);
}

TEST_F(HostPlacesTest, WhatPassesIsNotCounted) {
  const SharedUnitBuffers::Request whole{
      .unit = 0, .bytes = 8 * kPage, .wanted = {true, true}, .passing = true};
  const auto first = places_.allocate(whole);
  EXPECT_EQ(places_.allocated_bytes(), 0);
  drop(0, 0);
  drop(1, 0);
  EXPECT_EQ(places_.allocate(whole), first);
}

}  // namespace
}  // namespace sherd::exchange
