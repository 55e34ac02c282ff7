// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/digest_thread.h"

#include <future>
#include <vector>
#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

TEST(DigestThread, DoesOneAfterAnotherInItsOwnThread) {
  DigestThread worker;
  std::vector<int> done;
  std::promise<std::thread::id> last;
  for (int i = 0; i < 100; ++i) {
    worker.post([&, i] {
      done.push_back(i);
      if (i == 99) {
        last.set_value(std::this_thread::get_id());
      }
    });
  }
  EXPECT_NE(last.get_future().get(), std::this_thread::get_id());
  ASSERT_EQ(done.size(), 100U);
  EXPECT_EQ(done[37], 37);
}

TEST(DigestThread, WaitsAtItsEndForWhatHasBegun) {
  std::promise<void> begun;
  std::promise<void> go_on;
  bool done = false;
  std::thread helper;
  {
    DigestThread worker;
    worker.post([&] {
      begun.set_value();
      go_on.get_future().wait();
      done = true;
    });
    begun.get_future().wait();
    helper = std::thread([&] { go_on.set_value(); });
  }
  helper.join();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace sherd::ft
