// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/peer_memory.h"

#include <array>
#include <atomic>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "shm/testing.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;
using shm::test::kClock;
using shm::test::Table;
using ::testing::Each;
using ::testing::HasSubstr;

// Rank 0 lends memory and rank 1 copies; both are this process.
class PeerMemoryTest : public ::testing::Test {
 protected:
  PeerMemoryTest() {
    for (shm::Peers* peers : {&owner_, &late_}) {
      peers->enter();
    }
    for (shm::Peers* peers : {&owner_, &late_}) {
      peers->watch().throw_if_failed();
    }
    lender_.open();
    writer_.open();
  }
  void SetUp() override {
    const Status copied = reader_.read(0, address(), other_);
    if (!copied.ok() && copied.code() == ErrorCode::kFailedPrecondition) {
      GTEST_SKIP() << copied.message();
    }
  }
  std::uint64_t address() const {
    return reinterpret_cast<std::uintptr_t>(lent_.data());
  }
  // The counts of writes from rank 1 to rank 0: begun, ended.
  std::span<std::uint64_t> writes() const {
    auto* row = table_.data().data() + shm::kCacheLine;
    return {reinterpret_cast<std::uint64_t*>(row), 2};
  }

  const Table table_{2, 0, PeerWriter::bytes(2)};
  shm::Peers owner_{table_.peers_memory(), {.rank = 0, .ranks = 2}};
  shm::Peers late_{table_.peers_memory(), {.rank = 1, .ranks = 2}};
  PeerWriter lender_{table_.data(), owner_, kClock};
  PeerWriter writer_{table_.data(), late_, kClock};
  PeerMemory reader_{late_, kClock};
  std::array<std::byte, 100> lent_{};
  std::array<std::byte, 100> other_{};
};

TEST_F(PeerMemoryTest, CopiesWhatIsLent) {
  lent_.fill(std::byte{3});
  ASSERT_TRUE(reader_.read(0, address(), other_).ok());
  EXPECT_EQ(other_, lent_);
  other_.fill(std::byte{4});

  ASSERT_TRUE(writer_.write(0, address(), other_).ok());

  EXPECT_EQ(other_, lent_);
  EXPECT_THAT(writes(), Each(1U));
  lender_.await_end(0ms);
}

TEST_F(PeerMemoryTest, MemoryThatWasRevokedIsNeitherUsedNorWritten) {
  owner_.revoke_memory();
  other_.fill(std::byte{4});

  const Status read = reader_.read(0, address(), other_);
  const Status written = writer_.write(0, address(), other_);

  for (const Status& failed : {read, written}) {
    EXPECT_EQ(failed.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(failed.message(), HasSubstr("rank 0 has given up"));
  }
  EXPECT_THAT(lent_, Each(std::byte{0}));
  lender_.await_end(0ms);
}

TEST_F(PeerMemoryTest, TheCauseIsTheFirstTrouble) {
  owner_.give_up("it was tired");
  owner_.revoke_memory();
  EXPECT_THAT(
      reader_.read(0, address(), other_).message(),
      HasSubstr("rank 0 gave up: it was tired"));
}

TEST_F(PeerMemoryTest, TheOwnerWaitsForAWriteThatHasBegun) {
  writes()[0] = 1;
  owner_.revoke_memory();
  std::atomic<bool> returned{false};
  auto waiting = std::async(std::launch::async, [&] {
    lender_.await_end(60s);
    returned = true;
  });
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout);
  std::atomic_ref(writes()[1]).store(1);
  waiting.get();
  EXPECT_TRUE(returned);
}

TEST_F(PeerMemoryTest, AProcessWhoseMemoryStaysInDangerAborts) {
  writes()[0] = 1;
  owner_.revoke_memory();
  EXPECT_DEATH(
      lender_.await_end(1ms), "rank 1 was stopped while it wrote memory of");
}

}  // namespace
}  // namespace sherd::c10d_shm
