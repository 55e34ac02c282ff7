// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/hook_table.h"

#include <stdexcept>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::c10d_shm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HookTable, CallsWhatIsRegisteredInTheOrderOfItsNumbers) {
  HookTable<int> table;
  std::vector<int> calls;
  EXPECT_THAT(table.run(0), IsEmpty());
  table.set(7, [&](int argument) { calls.push_back(700 + argument); });
  table.set(-3, [&](int argument) { calls.push_back(argument); });
  table.set(5, [&](int) { calls.push_back(5); });
  table.set(5, [&](int) { calls.push_back(500); });
  table.run(1);
  EXPECT_THAT(calls, ElementsAre(1, 500, 701));
  table.remove(5);
  table.remove(6);
  calls.clear();
  table.run(2);
  EXPECT_THAT(calls, ElementsAre(2, 702));
}

TEST(HookTable, OneThatThrowsKeepsNobodyFromBeingCalled) {
  HookTable<> table;
  int calls = 0;
  table.set(1, [] { throw std::runtime_error("first"); });
  table.set(2, [&] { ++calls; });
  table.set(3, [] { throw std::runtime_error("third"); });
  const auto failures = table.run();
  EXPECT_EQ(calls, 1);
  ASSERT_EQ(failures.size(), 2U);
  EXPECT_THROW(std::rethrow_exception(failures[1]), std::runtime_error);
}

TEST(HookTable, AHookMayRemoveItself) {
  HookTable<> table;
  int calls = 0;
  table.set(1, [&] {
    ++calls;
    table.remove(1);
  });
  table.run();
  table.run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace sherd::c10d_shm
