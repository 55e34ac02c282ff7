// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/single_copy.h"

#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::c10d_shm {
namespace {

using ::testing::HasSubstr;

std::uint64_t address_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

TEST(SingleCopy, ReadsAndWritesAProcess) {
  std::array<int, 3> there = {1, 2, 3};
  std::array<int, 3> here = {0, 0, 0};
  const RemoteBytes remote{
      .pid = ::getpid(), .address = address_of(there.data())};

  Status outcome = copy_from(remote, std::as_writable_bytes(std::span(here)));

  if (!outcome.ok() && outcome.code() == ErrorCode::kFailedPrecondition) {
    GTEST_SKIP() << outcome.message();
  }
  ASSERT_TRUE(outcome.ok()) << outcome.message();
  EXPECT_EQ(here, there);
  here = {7, 8, 9};
  std::uint64_t mark = 0;
  ASSERT_TRUE(
      copy_to(remote, std::as_bytes(std::span(here)), address_of(&mark), 5)
          .ok());
  EXPECT_EQ(there, here);
  EXPECT_EQ(mark, 5U);
}

TEST(SingleCopy, NoBytesNeedNoProcess) {
  EXPECT_TRUE(copy_from({.pid = 0, .address = 0}, {}).ok());
}

TEST(SingleCopy, AProcessThatHasEndedIsLost) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  int number = 0;

  const Status outcome = copy_from(
      {.pid = child, .address = address_of(&number)},
      std::as_writable_bytes(std::span(&number, 1)));

  EXPECT_FALSE(outcome.ok());
  EXPECT_THAT(outcome.message(), HasSubstr("process_vm_readv"));
}

TEST(SingleCopy, MemoryThatIsNotThereIsAnError) {
  int number = 0;
  const Status outcome = copy_from(
      {.pid = ::getpid(), .address = 16},
      std::as_writable_bytes(std::span(&number, 1)));
  EXPECT_FALSE(outcome.ok());
}

}  // namespace
}  // namespace sherd::c10d_shm
