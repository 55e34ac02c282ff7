// SPDX-License-Identifier: Apache-2.0
#include "world/store_wait.h"

#include <thread>
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

}  // namespace
}  // namespace sherd::world
