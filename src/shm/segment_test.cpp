// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/child_process.h"

namespace sherd::shm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kGiB = std::size_t{1} << 30U;

Descriptor copy_of(const Segment& segment) {
  return Descriptor(::fcntl(segment.descriptor(), F_DUPFD_CLOEXEC, 0));
}

// How many pages of the segment are in memory.
std::size_t resident_pages(const Segment& segment, std::size_t bytes) {
  const std::size_t page = round_up_to_pages(1);
  std::vector<unsigned char> present(round_up_to_pages(bytes) / page);
  EXPECT_EQ(::mincore(segment.data(), bytes, present.data()), 0);
  std::size_t count = 0;
  for (const unsigned char p : present) {
    count += p & 1U;
  }
  return count;
}

TEST(Segment, StartsAsZerosAndIsSeenByEveryMapping) {
  const SegmentOptions options{.bytes = 10000};
  const Segment one = Segment::create(options).value();
  const Segment two = Segment::from_descriptor(copy_of(one), options).value();
  EXPECT_NE(one.data(), two.data());
  EXPECT_THAT(two.at<unsigned char>(0, 10000), Each(0));

  one.at<std::uint64_t>(800, 2)[1] = 42;

  EXPECT_EQ(two.at<std::uint64_t>(808, 1)[0], 42U);
  EXPECT_EQ(two.bytes(), 10000U);
}

TEST(Segment, IsSharedWithForkedProcesses) {
  const Segment segment = Segment::create({.bytes = 4096}).value();

  const auto report =
      test::run_children({.count = 3}, [&](int index, test::ChildLink&) {
        segment.at<int>(0, 3)[static_cast<std::size_t>(index)] = index + 1;
        return 0;
      });

  EXPECT_EQ(report.children.size(), 3U);
  EXPECT_THAT(segment.at<int>(0, 3), ::testing::ElementsAre(1, 2, 3));
}

TEST(Segment, TakesPagesOnlyWhenTouched) {
  const std::size_t bytes = 64 * round_up_to_pages(1);
  const Segment segment = Segment::create({.bytes = bytes}).value();
  EXPECT_EQ(resident_pages(segment, bytes), 0U);

  segment.at<int>(10 * round_up_to_pages(1), 1)[0] = 7;

  EXPECT_EQ(resident_pages(segment, bytes), 1U);
}

TEST(Segment, NeverShrinks) {
  const Segment segment = Segment::create({.bytes = 8192}).value();
  EXPECT_NE(::ftruncate(segment.descriptor(), 4096), 0);
}

TEST(Segment, RefusesMoreThanTheMemoryLeftAndNamesBothNumbers) {
  const auto refused = Segment::create({.bytes = 1000000 * kGiB});

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      refused.status().message(),
      HasSubstr(str("expected ", 1000000 * kGiB, " bytes of memory, found ")));
}

// For a file above the limit the kernel sends a signal that kills.
TEST(Segment, AFileSizeLimitIsAnErrorAndNoSignal) {
  const auto report =
      test::run_children({.count = 1}, [](int, test::ChildLink& link) {
        const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        link.report(Segment::create({.bytes = 2 << 20}).status().message());
        return 0;
      });

  EXPECT_EQ(report.children[0].signal, 0);
  EXPECT_THAT(report.children[0].result, HasSubstr("found 1048576 bytes"));
}

TEST(Segment, RefusesSizesThatMakeNoSense) {
  EXPECT_EQ(
      Segment::create({.bytes = 0}).status().code(),
      ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      Segment::create({.bytes = ~std::size_t{0}}).status().code(),
      ErrorCode::kInvalidArgument);
}

TEST(Segment, RefusesADescriptorOfSomethingElse) {
  const Segment segment = Segment::create({.bytes = 4096}).value();
  Descriptor plain(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(plain.get(), 4096), 0);

  const auto can_shrink =
      Segment::from_descriptor(std::move(plain), {.bytes = 4096});
  const auto other_size =
      Segment::from_descriptor(copy_of(segment), {.bytes = 8192});
  const auto none = Segment::from_descriptor(Descriptor(), {.bytes = 4096});

  EXPECT_EQ(can_shrink.status().code(), ErrorCode::kPeerMismatch);
  EXPECT_EQ(none.status().code(), ErrorCode::kPeerMismatch);
  EXPECT_EQ(other_size.status().code(), ErrorCode::kPeerMismatch);
  EXPECT_THAT(
      other_size.status().message(),
      HasSubstr("expected a shared segment of 8192 bytes, found one of 4096"));
}

TEST(Segment, MoveAssignmentClosesTheOldOne) {
  Segment first = Segment::create({.bytes = 4096}).value();
  Segment second = Segment::create({.bytes = 8192}).value();
  const int old_file = first.descriptor();
  std::byte* const old_base = first.data();
  std::byte* const kept = second.data();

  first = std::move(second);

  EXPECT_EQ(first.data(), kept);
  EXPECT_EQ(first.bytes(), 8192U);
  EXPECT_EQ(::fcntl(old_file, F_GETFD), -1);
  unsigned char present = 0;
  EXPECT_EQ(::mincore(old_base, 1, &present), -1);
}

TEST(Segment, IsNotInheritedByOtherPrograms) {
  const Segment segment = Segment::create({.bytes = 4096}).value();
  EXPECT_NE(::fcntl(segment.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
  const Segment other =
      Segment::from_descriptor(copy_of(segment), {.bytes = 4096}).value();
  EXPECT_NE(::fcntl(other.descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(Segment, HugePagesAreARequestOnly) {
  const Segment segment =
      Segment::create({.bytes = 4 << 20, .huge_pages = true}).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(segment.data()) % (2U << 20U), 0U);
  segment.at<int>(0, 1)[0] = 7;
  EXPECT_EQ(segment.at<int>(0, 1)[0], 7);
}

TEST(SegmentDeathTest, AWriteToWhatIsOnlyReadDiesAndIsSeenByNobody) {
  const std::size_t page = round_up_to_pages(1);
  const SegmentOptions options{.bytes = 4 * page};
  const Segment one = Segment::create(options).value();
  const Segment two = Segment::from_descriptor(copy_of(one), options).value();
  ASSERT_TRUE(two.make_read_only(page, 2 * page).ok());

  EXPECT_DEATH(two.at<int>(page, 1)[0] = 7, "");
  EXPECT_DEATH(two.at<int>(3 * page - sizeof(int), 1)[0] = 7, "");

  EXPECT_THAT(one.at<int>(0, 4 * page / sizeof(int)), Each(0));
  two.at<int>(page - sizeof(int), 1)[0] = 8;
  two.at<int>(3 * page, 1)[0] = 8;
  one.at<int>(page, 1)[0] = 9;
  EXPECT_EQ(two.at<int>(page, 1)[0], 9);
  EXPECT_DEATH((void)two.make_read_only(1, page), "no whole pages");
  EXPECT_DEATH((void)two.make_read_only(page, 4 * page), "no whole pages");
}

TEST(Segment, WhatIsWrittenPrivatelyIsSeenByNobodyElse) {
  const std::size_t page = round_up_to_pages(1);
  const SegmentOptions options{.bytes = 3 * page};
  const Segment one = Segment::create(options).value();
  const Segment two = Segment::from_descriptor(copy_of(one), options).value();
  one.at<int>(page, 1)[0] = 1;
  ASSERT_TRUE(two.make_read_only(page, page).ok());
  ASSERT_TRUE(two.make_private(page, 2 * page).ok());

  EXPECT_EQ(two.at<int>(page, 1)[0], 1);
  two.at<int>(page, 1)[0] = 2;
  EXPECT_EQ(one.at<int>(page, 1)[0], 1);
  one.at<int>(page, 1)[0] = 3;
  EXPECT_EQ(two.at<int>(page, 1)[0], 2);
  two.at<int>(0, 1)[0] = 4;
  EXPECT_EQ(one.at<int>(0, 1)[0], 4) << "outside of the range";
}

TEST(SegmentDeathTest, ARangeOutsideIsABug) {
  const Segment segment = Segment::create({.bytes = 4096}).value();
  EXPECT_DEATH(segment.at<std::uint64_t>(4096, 1), "outside of the segment");
  EXPECT_DEATH(segment.at<int>(0, ~std::size_t{0}), "outside of the segment");
  EXPECT_DEATH(segment.at<int>(1, 1), "outside of the segment");
}

}  // namespace
}  // namespace sherd::shm
