// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <gtest/gtest.h>
#include "ft/ring/send_schedule.h"

namespace sherd::ft::ring {
namespace {

const std::vector<std::int64_t> kCounts = {0, 1, 2, 5, 64, 0, 97, 1000, 3};

TEST(RingSchedule, SegmentsAreInOrderAndDifferByOneAtMost) {
  for (const int members : {1, 2, 3, 4, 7}) {
    for (const std::int64_t elements : {0, 1, 6, 7, 8, 1000}) {
      std::int64_t end = 0;
      for (int s = 0; s < members; ++s) {
        const FloatRange span = segment_of(elements, members, s);
        EXPECT_EQ(span.begin, end);
        EXPECT_GE(span.size(), elements / members);
        EXPECT_LE(span.size(), elements / members + 1);
        end = span.end;
      }
      EXPECT_EQ(end, elements);
    }
  }
}

TEST(RingSchedule, WhatIsSentIsWhatTheNextMemberReceives) {
  for (const int members : {2, 3, 4, 7}) {
    for (int p = 0; p < members; ++p) {
      const RingSchedule here(kCounts, {members, p, 10});
      const RingSchedule next(kCounts, {members, (p + 1) % members, 10});
      for (std::int64_t slice = 0; slice < here.slices(); ++slice) {
        for (int step = 0; step < here.steps(); ++step) {
          EXPECT_EQ(here.sent({slice, step}), next.received({slice, step}));
          if (step + 1 < here.steps()) {
            EXPECT_EQ(
                next.received({slice, step}), next.sent({slice, step + 1}));
          }
        }
      }
    }
  }
}

TEST(RingSchedule, SlicesCoverEachElementOnce) {
  for (const int members : {1, 2, 3, 4, 7}) {
    const RingSchedule schedule(kCounts, {members, 0, 10});
    std::set<std::pair<int, std::int64_t>> seen;
    for (std::int64_t slice = 0; slice < schedule.slices(); ++slice) {
      for (int step = 0; step < members; ++step) {
        // A member's first steps go over all segments.
        const BucketRange piece = schedule.sent({slice, step});
        EXPECT_LE(piece.span.size(), 10);
        for (auto i = piece.span.begin; i < piece.span.end; ++i) {
          EXPECT_TRUE(seen.emplace(piece.bucket, i).second);
        }
      }
    }
    std::size_t all = 0;
    for (const auto count : kCounts) {
      all += static_cast<std::size_t>(count);
    }
    EXPECT_EQ(seen.size(), all);
  }
}

TEST(RingSchedule, BucketsWithoutElementsHaveNoSlices) {
  EXPECT_EQ(RingSchedule({0, 0}, {3, 1, 10}).slices(), 0);
  EXPECT_EQ(RingSchedule({}, {3, 1, 10}).slices(), 0);
  EXPECT_EQ(RingSchedule({0, 31, 0}, {3, 1, 10}).slices(), 2);
  EXPECT_EQ(RingSchedule({0, 31, 0}, {3, 1, 10}).bucket_of(1), 1);
}

// ---- SendSchedule, against members who know only what they were sent ----

// What an element of a piece is made of: members in the order of the sum.
using Sum = std::string;

struct Model {
  RingSchedule schedule;
  SendSchedule send_schedule;
  int given = 0;
  std::map<std::pair<int, std::int64_t>, Sum> out;  // By bucket and element.
  struct Frame {
    SliceStep item;
    std::vector<Sum> sums;
  };
  std::deque<Frame> inbox;
  std::deque<Frame> held;
  std::size_t held_max = 0;

  Model(int members, int position, int window)
      : schedule(kCounts, {members, position, 10}),
        send_schedule(schedule, window) {}

  char name() const {
    return static_cast<char>('a' + schedule.shape().position);
  }
  bool send(Model& next) {
    const auto item = send_schedule.next_to_send(given);
    if (!item) {
      return false;
    }
    const BucketRange piece = schedule.sent(*item);
    Frame frame{*item, {}};
    for (auto i = piece.span.begin; i < piece.span.end; ++i) {
      auto& sum = out[{piece.bucket, i}];
      if (item->step == 0) {
        sum = name();
      }
      frame.sums.push_back(sum);
    }
    send_schedule.sent(*item);
    next.inbox.push_back(std::move(frame));
    return true;
  }
  bool receive() {
    if (inbox.empty()) {
      return false;
    }
    Frame frame = std::move(inbox.front());
    inbox.pop_front();
    EXPECT_EQ(send_schedule.refusal(frame.item), "");
    send_schedule.arrived(frame.item);
    held.push_back(std::move(frame));
    held_max = std::max(held_max, held.size());
    return true;
  }
  bool take() {
    const auto first =
        std::find_if(held.begin(), held.end(), [&](const Frame& frame) {
          return schedule.bucket_of(frame.item.slice) < given;
        });
    if (first == held.end()) {
      return false;
    }
    const BucketRange piece = schedule.received(first->item);
    for (auto i = piece.span.begin; i < piece.span.end; ++i) {
      Sum sum = first->sums[static_cast<std::size_t>(i - piece.span.begin)];
      if (schedule.reduces(first->item.step)) {
        sum += name();
      }
      out[{piece.bucket, i}] = sum;
    }
    send_schedule.taken(first->item);
    held.erase(first);
    return true;
  }
};

void run_course(int members, int window, std::uint64_t seed) {
  SCOPED_TRACE(
      testing::Message() << members << " members, window " << window
                         << ", seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<Model> ring;
  for (int p = 0; p < members; ++p) {
    ring.emplace_back(members, p, window);
  }
  // SendSchedule points at its schedule.
  for (auto& model : ring) {
    model.send_schedule = SendSchedule(model.schedule, window);
  }
  const auto unfinished = [](const Model& m) {
    return !m.send_schedule.finished();
  };
  int idle = 0;
  while (std::any_of(ring.begin(), ring.end(), unfinished) && idle < 1000) {
    const auto p = random() % ring.size();
    Model& one = ring[p];
    bool moved = false;
    switch (random() % 4) {
      case 0:
        moved = one.send(ring[(p + 1) % ring.size()]);
        break;
      case 1:
        moved = one.receive();
        break;
      case 2:
        moved = one.take();
        break;
      default:
        moved = one.given < static_cast<int>(kCounts.size());
        one.given += moved ? 1 : 0;
    }
    idle = moved ? 0 : idle + 1;
  }
  for (auto& model : ring) {
    EXPECT_TRUE(model.send_schedule.finished());
    EXPECT_TRUE(model.send_schedule.has_arrived());
    EXPECT_LE(
        model.held_max,
        static_cast<std::size_t>(window * model.schedule.steps()));
    // The oracle: each element is summed from its segment's member on.
    for (std::size_t b = 0; b < kCounts.size(); ++b) {
      for (int s = 0; s < members; ++s) {
        Sum sum;
        for (int k = 0; k < members; ++k) {
          sum += static_cast<char>('a' + (s + k) % members);
        }
        const FloatRange span = segment_of(kCounts[b], members, s);
        for (auto i = span.begin; i < span.end; ++i) {
          EXPECT_EQ((model.out[{static_cast<int>(b), i}]), sum);
        }
      }
    }
  }
}

TEST(SendSchedule, EndsWithTheSameOrderOfSumsInWhateverOrderThingsHappen) {
  for (const int members : {2, 3, 4, 7}) {
    for (const int window : {1, 2, 5, 100}) {
      for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        run_course(members, window, seed);
      }
    }
  }
}

TEST(SendSchedule, WaitsForABucketThatIsLateAndSendsNoLaterOne) {
  const RingSchedule schedule({30, 30}, {3, 0, 10});
  SendSchedule send_schedule(schedule, 8);
  EXPECT_FALSE(send_schedule.next_to_send(0).has_value());
  ASSERT_EQ(send_schedule.next_to_send(1), (SliceStep{0, 0}));
  send_schedule.sent({0, 0});
  EXPECT_FALSE(send_schedule.next_to_send(1).has_value());
  EXPECT_EQ(send_schedule.next_to_send(2), (SliceStep{1, 0}));
}

TEST(SendSchedule, SendsOlderSlicesFirstAndOnlyAWindowOfThem) {
  const RingSchedule schedule({90}, {3, 0, 10});
  SendSchedule send_schedule(schedule, 2);
  send_schedule.sent(*send_schedule.next_to_send(1));
  send_schedule.sent(*send_schedule.next_to_send(1));
  EXPECT_FALSE(send_schedule.next_to_send(1).has_value())
      << "a window is under way";
  send_schedule.arrived({0, 0});
  send_schedule.taken({0, 0});
  EXPECT_EQ(send_schedule.next_to_send(1), (SliceStep{0, 1}));
}

TEST(SendSchedule, RefusesWhatIsSkippedRepeatedOrAhead) {
  const RingSchedule schedule({90}, {3, 0, 10});
  SendSchedule send_schedule(schedule, 2);
  EXPECT_EQ(send_schedule.refusal({0, 0}), "");
  EXPECT_EQ(send_schedule.refusal({1, 0}), "");
  EXPECT_EQ(
      send_schedule.refusal({0, 1}),
      "expected step 0 of slice 0, found step 1");
  EXPECT_EQ(
      send_schedule.refusal({2, 0}),
      "expected at most 2 slices under way from slice 0 on, found slice 2");
  send_schedule.arrived({0, 0});
  EXPECT_EQ(
      send_schedule.refusal({0, 0}),
      "expected step 1 of slice 0, found step 0");
  for (const SliceStep wrong :
       {SliceStep{-1, 0}, SliceStep{3, 0}, SliceStep{0, 4}, SliceStep{0, -1}}) {
    EXPECT_NE(send_schedule.refusal(wrong), "");
  }
}

}  // namespace
}  // namespace sherd::ft::ring
