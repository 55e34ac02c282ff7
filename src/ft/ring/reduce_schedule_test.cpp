// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/reduce_schedule.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <gtest/gtest.h>
#include "ft/protocol/reduce_shape.h"
#include "ft/ring/send_schedule.h"

namespace sherd::ft::ring {
namespace {

const std::vector<std::int64_t> kCounts = {0, 1, 2, 5, 64, 0, 97, 1000, 3};

TEST(ReduceSchedule, SegmentsAreInOrderAndDifferByOneAtMost) {
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

std::vector<ReduceSchedule> schedules_of(
    const std::vector<std::int64_t>& counts, int members) {
  std::vector<ReduceSchedule> schedules;
  for (int p = 0; p < members; ++p) {
    schedules.emplace_back(counts, ReduceSchedule::Options{members, p, 10});
  }
  return schedules;
}

TEST(ReduceSchedule, WhatIsSentIsWhatItsReceiverReceives) {
  for (int members = 2; members <= 40; ++members) {
    SCOPED_TRACE(members);
    const auto all = schedules_of(kCounts, members);
    for (std::int64_t slice = 0; slice < all[0].slices(); ++slice) {
      int sent = 0;
      int received = 0;
      for (int p = 0; p < members; ++p) {
        const auto& here = all[static_cast<std::size_t>(p)];
        received += here.receives(slice);
        for (int k = 0; k < here.sends(slice); ++k) {
          const SendStep& send = here.send({slice, k});
          const auto& there = all[static_cast<std::size_t>(
              here.receivers()[static_cast<std::size_t>(send.to)])];
          ASSERT_LT(send.step, there.receives(slice));
          const ReceiveStep& receive = there.receive({slice, send.step});
          EXPECT_EQ(there.senders()[static_cast<std::size_t>(receive.from)], p);
          EXPECT_EQ(receive.begins_sum, send.begins_sum);
          EXPECT_EQ(here.sent({slice, k}), there.received({slice, send.step}));
          ++sent;
        }
      }
      EXPECT_EQ(sent, received);
    }
  }
}

TEST(ReduceSchedule, CompletesEachElementOnceAtEachMember) {
  for (const int members : {2, 3, 4, 7, 16, 17, 18, 23, 24, 40}) {
    SCOPED_TRACE(members);
    for (const auto& schedule : schedules_of(kCounts, members)) {
      std::set<std::pair<int, std::int64_t>> seen;
      for (std::int64_t slice = 0; slice < schedule.slices(); ++slice) {
        for (int step = 0; step < schedule.receives(slice); ++step) {
          const ReceiveStep& receive = schedule.receive({slice, step});
          const BucketRange piece = schedule.received({slice, step});
          EXPECT_LE(piece.span.size(), 10);
          for (auto i = piece.span.begin;
               (receive.completes || receive.use == ReceiveStep::Use::kCopy) &&
               i < piece.span.end;
               ++i) {
            EXPECT_TRUE(seen.emplace(piece.bucket, i).second);
          }
        }
      }
      EXPECT_EQ(
          static_cast<std::int64_t>(seen.size()),
          std::accumulate(kCounts.begin(), kCounts.end(), std::int64_t{0}));
    }
  }
}

TEST(ReduceSchedule, SendsAboutTwiceTheBucketFromEachMember) {
  for (const int members : {2, 7, 16, 17, 24, 32, 33}) {
    constexpr std::int64_t kElements = 1'000'000;
    for (int p = 0; p < members; ++p) {
      const ReduceSchedule schedule({kElements}, {members, p, 1000});
      std::int64_t sent = 0;
      for (std::int64_t slice = 0; slice < schedule.slices(); ++slice) {
        for (int k = 0; k < schedule.sends(slice); ++k) {
          sent += schedule.sent({slice, k}).span.size();
        }
      }
      EXPECT_LE(
          static_cast<double>(sent),
          sent_share_of(members) * kElements + 2 * 1000);
    }
  }
}

TEST(ReduceSchedule, OfOneMemberIsItsOwnSegment) {
  const ReduceSchedule schedule({25, 3}, {1, 0, 10});
  EXPECT_TRUE(schedule.receivers().empty() && schedule.senders().empty());
  EXPECT_EQ(schedule.slices(), 4);
  EXPECT_EQ(schedule.own(2), (BucketRange{0, 0, {20, 25}}));
}

TEST(ReduceSchedule, BucketsWithoutElementsHaveNoSlices) {
  EXPECT_EQ(ReduceSchedule({0, 0}, {3, 1, 10}).slices(), 0);
  EXPECT_EQ(ReduceSchedule({}, {3, 1, 10}).slices(), 0);
  EXPECT_EQ(ReduceSchedule({0, 31, 0}, {3, 1, 10}).slices(), 2);
  EXPECT_EQ(ReduceSchedule({0, 31, 0}, {3, 1, 10}).bucket_of(1), 1);
}

// ---- SendSchedule, with members who know only what they were sent ----

// Describes how an element was summed: members, with a pair of brackets for each addition.
using Sum = std::string;

Sum name_of(int position) { return {static_cast<char>('A' + position)}; }
Sum plus(const Sum& one, const Sum& other) { return "(" + one + other + ")"; }

struct Model {
  ReduceSchedule schedule;
  SendSchedule send_schedule;
  int given = 0;
  // Indexed by bucket and element.
  std::map<std::pair<int, std::int64_t>, Sum> out;
  struct Frame {
    SliceStep item;
    std::vector<Sum> sums;
  };
  // Frames by sender: one connection keeps its order, different ones do not.
  std::vector<std::deque<Frame>> inbox;
  std::deque<Frame> held;
  std::size_t held_max = 0;

  Model(
      const std::vector<std::int64_t>& counts,
      ReduceSchedule::Options options,
      int window)
      : schedule(counts, options),
        send_schedule(schedule, window),
        inbox(schedule.senders().size()) {}

  Sum name() const { return name_of(schedule.options().position); }
  bool send(std::vector<Model>& all, const std::vector<bool>& free) {
    const auto item = send_schedule.next_to_send(given, free);
    if (!item) {
      return false;
    }
    const SendStep& send = schedule.send(*item);
    const BucketRange piece = schedule.sent(*item);
    Frame frame{{item->slice, send.step}, {}};
    for (auto i = piece.span.begin; i < piece.span.end; ++i) {
      auto& sum = out[{piece.bucket, i}];
      if (send.begins_sum) {
        sum = name();
      }
      frame.sums.push_back(sum);
    }
    send_schedule.sent(*item);
    Model& to = all[static_cast<std::size_t>(
        schedule.receivers()[static_cast<std::size_t>(send.to)])];
    const auto& senders = to.schedule.senders();
    const auto self =
        std::find(senders.begin(), senders.end(), schedule.options().position);
    to.inbox[static_cast<std::size_t>(self - senders.begin())].push_back(
        std::move(frame));
    return true;
  }
  bool receive(std::size_t sender) {
    if (inbox[sender].empty()) {
      return false;
    }
    Frame frame = std::move(inbox[sender].front());
    inbox[sender].pop_front();
    EXPECT_EQ(send_schedule.refusal(frame.item, static_cast<int>(sender)), "");
    send_schedule.arrived(frame.item);
    held.push_back(std::move(frame));
    held_max = std::max(held_max, held.size());
    return true;
  }
  bool take() {
    const auto first =
        std::find_if(held.begin(), held.end(), [&](const Frame& frame) {
          return schedule.bucket_of(frame.item.slice) < given &&
              send_schedule.may_take(frame.item);
        });
    if (first == held.end()) {
      return false;
    }
    const BucketRange piece = schedule.received(first->item);
    const auto use = schedule.receive(first->item).use;
    for (auto i = piece.span.begin; i < piece.span.end; ++i) {
      const Sum& sum =
          first->sums[static_cast<std::size_t>(i - piece.span.begin)];
      auto& here = out[{piece.bucket, i}];
      here = use == ReceiveStep::Use::kCopy ? sum
          : use == ReceiveStep::Use::kAdd   ? plus(here, sum)
                                            : plus(sum, name());
    }
    send_schedule.taken(first->item);
    held.erase(first);
    return true;
  }
};

std::vector<Model> models_of(
    const std::vector<std::int64_t>& counts, int members, int window) {
  std::vector<Model> all;
  for (int p = 0; p < members; ++p) {
    all.emplace_back(counts, ReduceSchedule::Options{members, p, 10}, window);
  }
  // SendSchedule points to its schedule.
  for (auto& model : all) {
    model.send_schedule = SendSchedule(model.schedule, window);
  }
  return all;
}

// The expected order in trees: a member's first child, itself, its second child.
Sum tree_sum(int members, int tree, int position) {
  Sum sum = name_of(position);
  bool first = true;
  for (const int child : tree_node_of(members, tree, position).children) {
    const Sum part = tree_sum(members, tree, child);
    sum = first ? plus(part, sum) : plus(sum, part);
    first = false;
  }
  return sum;
}

// The expected order in a ring: from the segment's member on.
Sum ring_sum(int members, int segment) {
  Sum sum = name_of(segment);
  for (int k = 1; k < members; ++k) {
    sum = plus(sum, name_of((segment + k) % members));
  }
  return sum;
}

void expect_sums(const Model& model) {
  const auto& schedule = model.schedule;
  const int members = schedule.options().members;
  const bool is_ring = reduce_shape_of(members) == ReduceShape::kRing;
  std::vector<Sum> sums;  // Indexed by segment or tree.
  for (int i = 0; i < (is_ring ? members : kTrees); ++i) {
    int root = 0;
    while (!is_ring && tree_node_of(members, i, root).parent) {
      ++root;
    }
    sums.push_back(is_ring ? ring_sum(members, i) : tree_sum(members, i, root));
  }
  std::int64_t chunks = 0;  // The chunks of earlier buckets.
  for (std::size_t b = 0; b < kCounts.size(); ++b) {
    for (std::int64_t i = 0; i < kCounts[b]; ++i) {
      int which = static_cast<int>((chunks + i / 10) % kTrees);
      for (int s = 0; is_ring && s < members; ++s) {
        const FloatRange span = segment_of(kCounts[b], members, s);
        which = i >= span.begin && i < span.end ? s : which;
      }
      EXPECT_EQ(
          model.out.at({static_cast<int>(b), i}),
          sums[static_cast<std::size_t>(which)]);
    }
    chunks += (kCounts[b] + 9) / 10;
  }
}

std::vector<bool> some_free(std::size_t receivers, std::mt19937_64& random) {
  std::vector<bool> free(receivers);
  for (std::size_t i = 0; i < receivers; ++i) {
    free[i] = receivers == 1 || random() % 2 == 0;
  }
  return free;
}

bool move_at_random(std::vector<Model>& all, std::mt19937_64& random) {
  Model& one = all[random() % all.size()];
  switch (random() % 4) {
    case 0:
      return one.send(all, some_free(one.schedule.receivers().size(), random));
    case 1:
      return one.receive(random() % one.inbox.size());
    case 2:
      return one.take();
    default:
      const bool moved = one.given < static_cast<int>(kCounts.size());
      one.given += moved ? 1 : 0;
      return moved;
  }
}

void run_course(int members, int window, std::uint64_t seed) {
  SCOPED_TRACE(
      testing::Message() << members << " members, window " << window
                         << ", seed " << seed);
  std::mt19937_64 random(seed);
  auto all = models_of(kCounts, members, window);
  const auto unfinished = [](const Model& m) {
    return !m.send_schedule.finished();
  };
  int idle = 0;
  while (std::any_of(all.begin(), all.end(), unfinished) && idle < 30000) {
    idle = move_at_random(all, random) ? 0 : idle + 1;
  }
  for (const auto& model : all) {
    EXPECT_TRUE(model.send_schedule.finished());
    EXPECT_TRUE(model.send_schedule.has_taken());
    EXPECT_FALSE(model.send_schedule.waits_for().has_value());
    for (std::size_t s = 0; s < model.inbox.size(); ++s) {
      EXPECT_TRUE(model.send_schedule.has_arrived_from(static_cast<int>(s)));
    }
    const auto& schedule = model.schedule;
    EXPECT_LE(
        model.held_max,
        static_cast<std::size_t>(
            schedule.early_slices_max(window) *
            std::max(schedule.receives(0), schedule.receives(1))));
    expect_sums(model);
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

TEST(SendSchedule, EndsInTheSameWayWithMoreMembersThanARingHas) {
  const std::uint64_t seed = std::random_device()();
  for (const int members : {16, 17, 18, 23, 24, 40}) {
    for (const int window : {1, 3}) {
      run_course(members, window, seed);
    }
  }
}

// In each round all frames of the previous round arrive, and everything that can be sent is sent.
int rounds_of(int members) {
  auto all = models_of({1}, members, 1);
  const auto unfinished = [](const Model& m) {
    return !m.send_schedule.finished();
  };
  int rounds = 0;
  while (std::any_of(all.begin(), all.end(), unfinished) && rounds < 1000) {
    for (auto& model : all) {
      model.given = 1;
      for (std::size_t s = 0; s < model.inbox.size(); ++s) {
        while (model.receive(s)) {
        }
      }
      while (model.take()) {
      }
    }
    for (auto& model : all) {
      const std::vector<bool> free(model.schedule.receivers().size(), true);
      while (model.send(all, free)) {
      }
    }
    ++rounds;
  }
  return rounds - 1;  // Nothing arrives in the first round.
}

TEST(SendSchedule, ASliceTakesAsManyHopsAsItsShapeHas) {
  for (int members = 2; members <= 40; ++members) {
    EXPECT_EQ(rounds_of(members), reduce_hops_of(members)) << members;
  }
}

const std::vector<bool> kFree = {true};

TEST(SendSchedule, WaitsForABucketThatIsLateAndSendsNoLaterOne) {
  const ReduceSchedule schedule({30, 30}, {3, 0, 10});
  SendSchedule send_schedule(schedule, 8);
  EXPECT_FALSE(send_schedule.next_to_send(0, kFree).has_value());
  ASSERT_EQ(send_schedule.next_to_send(1, kFree), (SliceStep{0, 0}));
  send_schedule.sent({0, 0});
  EXPECT_FALSE(send_schedule.next_to_send(1, kFree).has_value());
  EXPECT_EQ(send_schedule.next_to_send(2, kFree), (SliceStep{1, 0}));
}

TEST(SendSchedule, SendsOlderSlicesFirstAndOnlyAWindowOfThem) {
  const ReduceSchedule schedule({90}, {3, 0, 10});
  SendSchedule send_schedule(schedule, 2);
  send_schedule.sent(*send_schedule.next_to_send(1, kFree));
  send_schedule.sent(*send_schedule.next_to_send(1, kFree));
  EXPECT_FALSE(send_schedule.next_to_send(1, kFree).has_value())
      << "a window is under way";
  send_schedule.arrived({0, 0});
  send_schedule.taken({0, 0});
  EXPECT_EQ(send_schedule.next_to_send(1, kFree), (SliceStep{0, 1}));
}

TEST(SendSchedule, RefusesWhatIsSkippedRepeatedOrAhead) {
  const ReduceSchedule schedule({90}, {3, 0, 10});
  SendSchedule send_schedule(schedule, 2);
  EXPECT_EQ(send_schedule.refusal({0, 0}, 0), "");
  EXPECT_EQ(send_schedule.refusal({1, 0}, 0), "");
  EXPECT_EQ(
      send_schedule.refusal({0, 1}, 0),
      "expected step 0 of slice 0, found step 1");
  EXPECT_EQ(
      send_schedule.refusal({2, 0}, 0),
      "expected at most 2 slices under way from slice 0 on, found slice 2");
  send_schedule.arrived({0, 0});
  EXPECT_EQ(
      send_schedule.refusal({0, 0}, 0),
      "expected step 1 of slice 0, found step 0");
  for (const SliceStep wrong :
       {SliceStep{-1, 0}, SliceStep{3, 0}, SliceStep{0, 4}, SliceStep{0, -1}}) {
    EXPECT_NE(send_schedule.refusal(wrong, 0), "");
  }
}

// A member of 17 that has two children and a parent in one tree, through which every second slice
// goes.
struct Inner {
  static int inner_position() {
    int position = 0;
    while (tree_node_of(17, 0, position).children.size() < 2 ||
           !tree_node_of(17, 0, position).parent) {
      ++position;
    }
    return position;
  }
  int sender_at(int step) const { return schedule.receive({0, step}).from; }

  int position = inner_position();
  ReduceSchedule schedule{{100}, {17, position, 10}};
  SendSchedule send_schedule{schedule, 2};
};

TEST(SendSchedule, TakesChildrensPartsInTheirOrderWhicheverComesFirst) {
  Inner inner;
  auto& course = inner.send_schedule;
  EXPECT_EQ(course.refusal({0, 1}, inner.sender_at(1)), "");
  course.arrived({0, 1});
  EXPECT_FALSE(course.may_take({0, 1}));
  EXPECT_EQ(course.waits_for(), inner.sender_at(0));
  course.arrived({0, 0});
  ASSERT_TRUE(course.may_take({0, 0}));
  course.taken({0, 0});
  ASSERT_TRUE(course.may_take({0, 1}));
  EXPECT_EQ(course.waits_for(), inner.sender_at(2));
}

TEST(SendSchedule, RefusesInTreesWhatComesFromAnotherOrTooEarly) {
  Inner inner;
  auto& course = inner.send_schedule;
  EXPECT_EQ(
      course.refusal({0, 0}, inner.sender_at(1)),
      "expected step 1 of slice 0, found step 0");
  EXPECT_EQ(
      course.refusal({0, 2}, inner.sender_at(2)),
      "expected the sum of slice 0 after 2 parts of it, found it after 0");
  EXPECT_EQ(course.refusal({2, 0}, inner.sender_at(0)), "");
  EXPECT_EQ(
      course.refusal({4, 0}, inner.sender_at(0)),
      "expected at most 4 slices under way from slice 0 on, found slice 4");
  course.arrived({0, 0});
  EXPECT_EQ(
      course.refusal({0, 0}, inner.sender_at(0)),
      "expected step 3 of slice 0, found step 0");
}

TEST(SendSchedule, PassesByAReceiverThatIsBusy) {
  Inner inner;
  auto& course = inner.send_schedule;
  // The second slice uses the other tree, in which the member is a leaf.
  const SendStep& up = inner.schedule.send({1, 0});
  std::vector<bool> free(inner.schedule.receivers().size(), true);
  EXPECT_EQ(course.next_to_send(1, free), (SliceStep{1, 0}));
  free[static_cast<std::size_t>(up.to)] = false;
  EXPECT_EQ(course.next_to_send(1, free), std::nullopt);
}

}  // namespace
}  // namespace sherd::ft::ring
