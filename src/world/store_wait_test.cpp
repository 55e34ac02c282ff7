// SPDX-License-Identifier: Apache-2.0
#include "world/store_wait.h"

#include <functional>
#include <future>
#include <thread>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "support/delay.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::world {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(PollingStore, WaitsForKeysOfAnyStoreNoLongerThanAsked) {
  const sherd::testing::ScratchFolder folder;
  const std::vector<c10::intrusive_ptr<c10d::Store>> stores{
      c10::make_intrusive<c10d::HashStore>(),
      c10::make_intrusive<c10d::FileStore>(folder.path() + "/store", 1)};
  for (const auto& store : stores) {
    store->setTimeout(20ms);
    PollingStore lent("lent", store);
    lent.set("there", std::string("value"));
    EXPECT_THAT(
        test::error_of([&] { lent.get("missing"); }),
        HasSubstr("nobody set missing within 0.02 s"));
    EXPECT_THAT(
        test::error_of([&] { lent.multiGet({"there", "missing"}); }),
        HasSubstr("nobody set there, missing within 0.02 s"));
    EXPECT_EQ(lent.get_to_str("there"), "value");
    store->setTimeout(c10d::Store::kNoTimeout);
    std::jthread late([&lent] {
      test::be_late(50ms);
      lent.set("missing", std::string("late"));
    });
    EXPECT_EQ(lent.get_to_str("missing"), "late");
  }
}

// Answers nothing while it stands still, like a store whose process was stopped.
class StandingStore final : public c10d::PrefixStore {
 public:
  explicit StandingStore(std::shared_future<void> goes_on)
      : PrefixStore("", c10::make_intrusive<c10d::HashStore>()),
        goes_on_(std::move(goes_on)) {}

  void set(
      const std::string& key, const std::vector<std::uint8_t>& value) override {
    goes_on_.wait();
    PrefixStore::set(key, value);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    goes_on_.wait();
    return PrefixStore::get(key);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    goes_on_.wait();
    return PrefixStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    goes_on_.wait();
    return PrefixStore::check(keys);
  }

 private:
  const std::shared_future<void> goes_on_;
};

TEST(StoreOfAnother, EndsACallThatIsNotAnsweredWithTheNameOfTheKeeper) {
  std::promise<void> goes_on;
  StoreOfAnother store(
      "p", c10::make_intrusive<StandingStore>(goes_on.get_future().share()),
      {.keeper = "rank 0", .place = "node0:1", .rank = 2}, 20ms);
  const std::vector<std::function<void()>> calls{
      [&] { store.set("key", std::string("1")); },
      [&] { store.get_to_str("key"); }, [&] { store.add("number", 1); },
      [&] { wait_for_key(store, "key", 1h); }};
  for (const auto& call : calls) {
    EXPECT_THAT(
        test::error_of(call),
        HasSubstr(
            "rank 0 did not answer rank 2 within 0.02 s: it keeps the store at "
            "node0:1"));
  }
  goes_on.set_value();
  store.set_patience(1min);
  store.set("answered", std::string("value"));
  EXPECT_EQ(store.get_to_str("answered"), "value");
  EXPECT_TRUE(store.check({"answered"}));
  EXPECT_FALSE(store.check({"p/answered"}));
  EXPECT_EQ(store.add("sum", 2), 2);
}

}  // namespace
}  // namespace sherd::world
