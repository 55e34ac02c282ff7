// SPDX-License-Identifier: Apache-2.0
#include "exchange/replica_sums.h"

#include <algorithm>
#include <random>
#include <gmock/gmock.h>

namespace sherd::exchange {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Units = std::vector<UnitId>;

// After a backward that reduced these units.
ReplicaOrder order_after(const Units& units) {
  ReplicaOrder order;
  for (const auto unit : units) {
    EXPECT_THAT(order.add(unit), IsEmpty());
  }
  (void)order.take_rest();
  order.backward_ended();
  return order;
}

TEST(ReplicaOrder, IsFromTheLastUnitToTheFirst) {
  ReplicaOrder order;
  EXPECT_THAT(order.add(1), IsEmpty());
  EXPECT_THAT(order.add(2), IsEmpty());
  EXPECT_THAT(order.take_rest(), ElementsAre(2, 1));
}

TEST(ReplicaOrder, IsThatOfTheUnitsOfTheLastBackward) {
  auto order = order_after({0, 1, 2, 3});
  EXPECT_THAT(order.add(2), IsEmpty());
  EXPECT_THAT(order.add(1), IsEmpty());
  EXPECT_THAT(order.add(3), ElementsAre(3, 2, 1));
  EXPECT_THAT(order.add(0), ElementsAre(0));
  EXPECT_THAT(order.take_rest(), IsEmpty());
}

TEST(ReplicaOrder, ForgetsUnitsThatWereNotReduced) {
  auto order = order_after({0, 1, 2, 3});
  EXPECT_THAT(order.add(2), IsEmpty());
  EXPECT_THAT(order.add(0), IsEmpty());
  EXPECT_THAT(order.take_rest(), ElementsAre(2, 0));
  order.backward_ended();
  EXPECT_THAT(order.add(2), ElementsAre(2));
  EXPECT_THAT(order.add(3), IsEmpty());  // It was not expected.
  EXPECT_THAT(order.add(0), ElementsAre(0));
  EXPECT_THAT(order.take_rest(), ElementsAre(3));
  order.backward_ended();
  EXPECT_THAT(order.add(3), ElementsAre(3));
}

TEST(ReplicaOrder, KeepsItsUnitsWhereABackwardReducesNone) {
  auto order = order_after({0, 1});
  EXPECT_THAT(order.take_rest(), IsEmpty());
  order.backward_ended();
  EXPECT_THAT(order.add(1), ElementsAre(1));
}

TEST(ReplicaOrder, TakesLateRoundsAtTheirEnd) {
  auto order = order_after({0, 1, 2});
  EXPECT_THAT(order.add(1), IsEmpty());
  EXPECT_THAT(order.add(2), ElementsAre(2, 1));
  EXPECT_THAT(order.add(0), ElementsAre(0));
  EXPECT_THAT(order.take_rest(), IsEmpty());
  EXPECT_THAT(order.add(1), IsEmpty());
  EXPECT_THAT(order.add(2), IsEmpty());
  EXPECT_THAT(order.take_rest(), ElementsAre(2, 1));
  order.backward_ended();
  EXPECT_THAT(order.add(2), ElementsAre(2));  // Each is expected once.
}

// Whatever the order in which replicas can start, and whatever each backward reduces.
TEST(ReplicaOrder, T30IsTheSameOnAllReplicas) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<ReplicaOrder> replicas(3);
  for (int backward = 0; backward < 200; ++backward) {
    for (int round = 0; round < 2; ++round) {
      Units reduced;
      for (const UnitId unit : {0, 1, 2, 3, 4, 5}) {
        if (random() % 3 != 0) {
          reduced.push_back(unit);
        }
      }
      Units first;
      for (auto& order : replicas) {
        std::shuffle(reduced.begin(), reduced.end(), random);
        Units started;
        const auto note = [&](const Units& units) {
          started.insert(started.end(), units.begin(), units.end());
        };
        for (const auto unit : reduced) {
          note(order.add(unit));
        }
        note(order.take_rest());
        EXPECT_THAT(started, ::testing::UnorderedElementsAreArray(reduced));
        if (&order == &replicas.front()) {
          first = started;
        }
        EXPECT_EQ(started, first);
      }
    }
    for (auto& order : replicas) {
      order.backward_ended();
    }
  }
}

}  // namespace
}  // namespace sherd::exchange
