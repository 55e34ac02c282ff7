// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/peer_memory.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "c10d_shm/communicator/collectives.h"
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

// From now on the kernel refuses this process, for good, to write memory of others.
void forbid_writing() {
  std::array filter = {
      sock_filter BPF_STMT(
          BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(
          BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {
      .len = static_cast<unsigned short>(filter.size()),
      .filter = filter.data()};
  const bool forbidden = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  EXPECT_TRUE(forbidden);
}

// Reading alone is not enough: large reductions write.
TEST(SingleCopyOfAGroup, IsNotUsedWhereOneRankMayOnlyRead) {
  const ShmCommunicatorOptions options{.buffer_bytes = 4096};
  const Table table(2, 1, ShmCommunicator::bytes(2, options));
  shm::test::expect_all_ok(shm::test::run_forked(
      table, [&](int rank, shm::Peers& peers, shm::test::ChildLink&) {
        if (rank == 1) {
          forbid_writing();
        }
        ShmCommunicator communicator(table.data(), peers, kClock, options);
        EXPECT_TRUE(communicator.open(30s).ok());
        EXPECT_FALSE(communicator.single_copy());
        EXPECT_TRUE(
            barrier(communicator, {.what = "the end", .deadline = 30s}).ok());
        return 0;
      }));
}

}  // namespace
}  // namespace sherd::c10d_shm
