// SPDX-License-Identifier: Apache-2.0
//
// Groups that are formed one after another on one store.
#include "c10d_shm/join_attempts.h"

#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "c10d_shm/backend.h"
#include "c10d_shm/testing.h"
#include "support/error_of.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;
using sherd::test::error_of;
using test::Rank;
using ::testing::HasSubstr;

using JoinAttemptRecord = JoinAttemptStore::Record;

TEST(JoinAttemptRecord, IsANumberAndAText) {
  EXPECT_EQ(
      (JoinAttemptRecord{.attempt = 3, .text = "a b"}).to_text(), "3 a b");
  const auto note =
      JoinAttemptRecord::from_text("12 failed 3 [c10d_shm] rank 2\nhas died");
  EXPECT_EQ(note->attempt, 12);
  EXPECT_EQ(note->text, "failed 3 [c10d_shm] rank 2\nhas died");
  for (const auto* wrong : {"", "3", "sherd-7", "0 a", "-1 a", " x"}) {
    EXPECT_FALSE(JoinAttemptRecord::from_text(wrong)) << wrong;
  }
}

TEST(JoinAttemptRecord, ConcernsThoseWhoHaveNotTakenPartYet) {
  const JoinAttemptRecord offer{.attempt = 2, .text = "sherd-7"};
  EXPECT_TRUE(offer.concerns(0));
  EXPECT_TRUE(offer.concerns(1));
  EXPECT_FALSE(offer.concerns(2));
  EXPECT_FALSE(offer.concerns(3));
  EXPECT_FALSE(
      (JoinAttemptRecord{.attempt = 2, .text = JoinAttemptRecord::kOver})
          .concerns(0));
}

// The ranks of one store in turn; each attempt is a new object, as in join_shm_group().
class OneStore {
 public:
  shm::StringStore strings_of(int rank) {
    attempts_.push_back(
        std::make_unique<JoinAttemptStore>(store_, rank, clock_));
    return attempts_.back()->strings();
  }
  JoinAttemptStore& last() { return *attempts_.back(); }

 private:
  const c10::intrusive_ptr<c10d::Store> store_ =
      c10::make_intrusive<c10d::HashStore>();
  const SteadyClock clock_;
  std::vector<std::unique_ptr<JoinAttemptStore>> attempts_;
};

std::string heard(const shm::StringStore& strings) {
  const auto found = strings.get(30ms);
  return found.ok() ? found.value() : found.status().message();
}

TEST(JoinAttemptStore, ARankDoesNotHearTwiceOfOneAttempt) {
  OneStore store;
  const auto first = store.strings_of(0);
  first.put("first").throw_if_failed();
  const auto guest = store.strings_of(1);
  EXPECT_EQ(heard(guest), "first");
  EXPECT_EQ(heard(guest), "first");
  // The reason belongs to this attempt: it is news for this one, not for the next.
  first.put("failed").throw_if_failed();
  EXPECT_EQ(heard(guest), "failed");
  const auto again = store.strings_of(1);
  EXPECT_THAT(heard(again), HasSubstr("but of an earlier group"));
  EXPECT_EQ(heard(store.strings_of(2)), "failed");
  store.strings_of(0).put("second").throw_if_failed();
  EXPECT_EQ(heard(again), "second");
  EXPECT_EQ(heard(store.strings_of(2)), "second");
}

TEST(JoinAttemptStore, ARankThatIsNewDoesNotHearOfWhatIsOver) {
  OneStore store;
  const auto first = store.strings_of(0);
  JoinAttemptStore& attempts = store.last();
  first.put("first").throw_if_failed();
  attempts.end();
  const auto other = store.strings_of(1);
  EXPECT_THAT(heard(other), HasSubstr("but of an earlier group"));
  store.strings_of(0).put("second").throw_if_failed();
  EXPECT_EQ(heard(other), "second");
}

// --- With real groups.

class Rejoining {
 public:
  Rejoining(const std::string& folder, int rank, int ranks)
      : rank_(rank),
        store_(c10::make_intrusive<c10d::FileStore>(folder + "/store", ranks)) {
  }

  int rank() const { return rank_; }
  // It always uses the same keys.
  c10::intrusive_ptr<ShmBackend> form(
      int ranks,
      std::chrono::milliseconds timeout = 20s,
      std::size_t buffer_bytes = ShmCommunicatorOptions().buffer_bytes) const {
    auto options = c10::make_intrusive<ShmBackendOptions>(timeout);
    options->communicator.buffer_bytes = buffer_bytes;
    return c10::make_intrusive<ShmBackend>(
        named("group"), rank_, ranks, options);
  }
  c10::intrusive_ptr<c10d::Store> named(const std::string& prefix) const {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store_);
  }
  void expect_sum(c10d::Backend& backend) const {
    std::vector<torch::Tensor> sum = {torch::ones({3})};
    backend.allreduce(sum)->wait();
    EXPECT_TRUE(sum[0].eq(backend.getSize()).all().item<bool>());
  }
  // Tells the others, and waits until they have done the same.
  void say(const std::string& what) const { store_->set(what, "1"); }
  void await(const std::string& what) const { store_->wait({what}); }

 private:
  const int rank_;
  const c10::intrusive_ptr<c10d::Store> store_;
};

void run_rejoining(int ranks, const std::function<void(Rejoining&)>& body) {
  const sherd::testing::ScratchFolder folder;
  test::expect_all_ok(sherd::test::run_processes(ranks, [&](int rank, Rank&) {
    Rejoining self(folder.path(), rank, ranks);
    body(self);
  }));
}

// In each round another rank comes last, after the others were told to go on.
TEST(ShmRejoin, OneStoreServesGroupAfterGroupWhateverRankIsLate) {
  run_rejoining(3, [](Rejoining& self) {
    for (int round = 0; round < 9; ++round) {
      const auto others = str("others of ", round);
      if (round % 3 == self.rank()) {
        self.await(others + (self.rank() == 0 ? " 1" : " 0"));
      } else {
        self.say(str(others, " ", self.rank()));
      }
      self.expect_sum(*self.form(3));
    }
  });
}

TEST(ShmRejoin, AGroupMayGrowAndShrink) {
  run_rejoining(3, [](Rejoining& self) {
    for (int round = 0; round < 3; ++round) {
      if (self.rank() < 2) {
        self.expect_sum(*self.form(2));
        self.say(str("two ", round, " ", self.rank()));
      } else {
        self.await(str("two ", round, " 0"));
        self.await(str("two ", round, " 1"));
      }
      self.expect_sum(*self.form(3));
    }
  });
}

// Rank 1 starts the next attempt before rank 0, and finds why the last one failed.
TEST(ShmRejoin, AnAttemptThatFailedDoesNotEndTheNextOne) {
  run_rejoining(3, [](Rejoining& self) {
    self.say(str("here ", self.rank()));
    self.await("here 0");
    self.await("here 1");
    // Rank 2 does not come.
    if (self.rank() < 2) {
      EXPECT_THAT(
          error_of([&] { self.form(3, 3s); }),
          HasSubstr("not responding: rank 2"));
    }
    self.say(str("missed ", self.rank()));
    self.await("missed 0");
    self.await("missed 1");
    if (self.rank() == 2) {  // It is late and learns what the others learned.
      EXPECT_THAT(
          error_of([&] { self.form(3, 3s); }),
          HasSubstr("not responding: rank 2"));
      self.say("late");
    }
    self.await("late");
    // If one rank has other options, all get an error; then none does.
    const std::size_t differs = self.rank() == 2 ? 1U << 16U : 1U << 17U;
    EXPECT_THAT(
        error_of([&] { self.form(3, 20s, differs); }),
        HasSubstr("expected bytes"));
    if (self.rank() == 0) {
      self.await("coming 1");
      self.await("coming 2");
    }
    self.say(str("coming ", self.rank()));
    self.expect_sum(*self.form(3));
  });
}

TEST(ShmRejoin, AGroupSplitsAgainUnderTheSameName) {
  run_rejoining(3, [](Rejoining& self) {
    const auto all = self.form(3);
    for (int round = 0; round < 4; ++round) {
      const auto part = all->split(self.named("part"), {2, 0}, nullptr);
      if (part != nullptr) {
        self.expect_sum(*part);
      }
    }
    self.expect_sum(*all);
  });
}

}  // namespace
}  // namespace sherd::c10d_shm
