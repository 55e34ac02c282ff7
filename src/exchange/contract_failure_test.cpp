// SPDX-License-Identifier: Apache-2.0
//
// Ranks that never come, are lost, or close: what the others get, and that no
// call waits for ever. A hang is cut short by the runner and fails the test.
#include "exchange/contract_testing.h"

#include <array>
#include <gmock/gmock.h>
#include <torch/torch.h>

namespace sherd::exchange::contract {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;

std::string rank_name(int rank) { return "rank " + std::to_string(rank); }

// Every call fails with `first`, and does not wait.
void expect_closed(
    Exchange& exchange, const ModelSpec& model, const Status& first) {
  auto values = torch::zeros({2}, torch::kDouble);
  for (const auto& status : std::array{
           exchange.start_unshard(1, {}), exchange.wait_for_unshard(1).status(),
           exchange.publish(9),
           exchange.all_reduce(values, ScalarReduceOp::kSum),
           exchange.end_backward(backward_end(model)).status()}) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.message(), first.message());
  }
  fill_gradients(exchange, model, 1, 0);
  EXPECT_EQ(
      exchange.start_reduce(1, reduce_options(model.units[1])).message(),
      first.message());
  (void)exchange.progress();
  exchange.close({ErrorCode::kInvalidArgument, "another reason"});
  EXPECT_EQ(exchange.publish(10).message(), first.message());
}

TEST_P(ExchangeFailure, ARankThatNeverComesIsNamedWhenTheDeadlinePasses) {
  const int late = ranks() - 1;
  Marks opened;
  Marks ended;
  // Also the deadline of connecting and opening, which a busy machine must not miss, and within
  // which the ranks that come all start.
  with().run(
      {.deadline = milliseconds(2000), .disorderly = true}, [&](Seat& seat) {
        const auto model = plain_model(owners());
        open(seat, model);
        opened.meet(seat.rank, ranks());
        if (seat.rank == late) {
          for (int rank = 0; rank < late; ++rank) {
            ended.wait_for(rank);
          }
          return;
        }
        reduce_all(*seat.exchange, model, seat.rank);
        const auto status =
            seat.exchange->end_backward(backward_end(model)).status();
        ASSERT_FALSE(status.ok());
        // Whoever hears of it from the first to notice calls it lost.
        EXPECT_THAT(
            status.code(),
            AnyOf(ErrorCode::kDeadlineExceeded, ErrorCode::kPeerLost));
        const int shards = ranks() / replicas();
        const auto place = [&](int rank) {
          return with().both_axes ? rank / replicas() : rank % shards;
        };
        const bool waits_for_it =
            with().replica_of(seat.rank) == with().replica_of(late) ||
            place(seat.rank) == place(late);
        // Another one names, when its deadline passes first, who waits for it.
        EXPECT_THAT(
            status.message(),
            HasSubstr(waits_for_it ? rank_name(late) : "rank "));
        expect_closed(*seat.exchange, model, status);
        ended.set(seat.rank);
      });
}

enum class Stage {
  kOpen,
  kUnshard,
  kReduce,
  kEndBackward,
  kAllReduce,
};

// What survivors do until they notice.
Status until_noticed(Seat& seat, const ModelSpec& model) {
  for (std::uint64_t round = 1;; ++round) {
    auto values = torch::ones({1}, torch::kDouble);
    Status status = seat.exchange->start_unshard(0, {});
    if (status.ok()) {
      status = seat.exchange->wait_for_unshard(0).status();
    }
    if (status.ok()) {
      seat.exchange->reshard(0);
      for (const UnitId unit : {2, 1, 0}) {
        fill_gradients(*seat.exchange, model, unit, seat.rank);
        status = status.ok() ? seat.exchange->start_reduce(
                                   unit, reduce_options(model.unit(unit)))
                             : status;
      }
    }
    if (status.ok()) {
      status = seat.exchange->end_backward(backward_end(model)).status();
    }
    if (status.ok()) {
      status = seat.exchange->all_reduce(values, ScalarReduceOp::kSum);
    }
    if (status.ok()) {
      status = seat.exchange->publish(round);
    }
    if (!status.ok()) {
      return status;
    }
  }
}

// One round as above, up to `stage`, and death.
void die_at(Stage stage, Seat& seat, const ModelSpec& model) {
  if (stage == Stage::kOpen) {
    seat.die();
  }
  open(seat, model);
  if (stage == Stage::kUnshard) {
    seat.die();
  }
  seat.exchange->start_unshard(0, {}).throw_if_failed();
  seat.exchange->wait_for_unshard(0).status().throw_if_failed();
  seat.exchange->reshard(0);
  fill_gradients(*seat.exchange, model, 2, seat.rank);
  seat.exchange->start_reduce(2, reduce_options(model.units[2]))
      .throw_if_failed();
  if (stage == Stage::kReduce) {
    seat.die();
  }
  for (const UnitId unit : {1, 0}) {
    fill_gradients(*seat.exchange, model, unit, seat.rank);
    seat.exchange->start_reduce(unit, reduce_options(model.unit(unit)))
        .throw_if_failed();
  }
  if (stage == Stage::kEndBackward) {
    seat.die();
  }
  seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
  seat.die();
}

TEST_P(ExchangeFailure, ALostRankIsNamedByEveryOther) {
  for (const auto stage :
       {Stage::kOpen, Stage::kUnshard, Stage::kReduce, Stage::kEndBackward,
        Stage::kAllReduce}) {
    const int lost = static_cast<int>(stage) % ranks();
    with().run({.dies = lost, .disorderly = true}, [&](Seat& seat) {
      const auto model = plain_model(owners());
      if (seat.rank == lost) {
        die_at(stage, seat, model);
        return;
      }
      Status status = seat.exchange->open(model);
      const bool opened = status.ok();
      if (opened) {
        status = until_noticed(seat, model);
      }
      EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.message();
      EXPECT_THAT(status.message(), HasSubstr(rank_name(lost)));
      if (opened) {
        expect_closed(*seat.exchange, model, status);
      }
      seat.exchange.reset();  // Returns, with work under way.
    });
  }
}

TEST_P(ExchangeFailure, ClosingFailsThoseWhoWaitAndTellsThemWhy) {
  Marks opened;
  with().run({.disorderly = true}, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    opened.meet(seat.rank, ranks());
    if (seat.rank == 0) {
      const Status reason(ErrorCode::kFailedPrecondition, "had enough");
      seat.exchange->close(reason);
      expect_closed(*seat.exchange, model, reason);
      return;
    }
    try {
      reduce_all(*seat.exchange, model, seat.rank);
    } catch (const Error&) {
      // It may know as early as that; the end of backward says it in any case.
      SUCCEED();
    }
    const auto status =
        seat.exchange->end_backward(backward_end(model)).status();
    // Not kAborted, which leaves an exchange usable.
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("rank 0"));
    EXPECT_THAT(status.message(), HasSubstr("had enough"));
    expect_closed(*seat.exchange, model, status);
  });
}

TEST_P(ExchangeFailure, ClosingTwiceKeepsTheFirstReason) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank);
    seat.meet();
    seat.exchange->close({ErrorCode::kFailedPrecondition, "the end"});
    seat.exchange->close({ErrorCode::kPeerLost, "no"});
    expect_closed(
        *seat.exchange, model, {ErrorCode::kFailedPrecondition, "the end"});
    // What was received stays readable.
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

TEST_P(ExchangeFailure, LeavingInOrderDisturbsNobodyInTheLastStep) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank);
    expect_sums(*seat.exchange, model, seat.rank, ranks());
    seat.exchange->close(Status());
    EXPECT_EQ(seat.exchange->publish(1).code(), ErrorCode::kFailedPrecondition);
    seat.exchange.reset();
  });
}

// A rank that makes fewer steps than others. No deadline ends their wait.
TEST_P(ExchangeFailure, WhoClosesInOrderIsNamedByThoseWhoGoOn) {
  const int first = ranks() - 1;
  Marks stepped;
  Marks ended;
  const RunOptions patient{
      .deadline = std::chrono::minutes(10), .disorderly = true};
  with().run(patient, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank);
    expect_sums(*seat.exchange, model, seat.rank, ranks());
    // A rank that fails in its next step gives up, also for those who are late.
    stepped.meet(seat.rank, ranks());
    if (seat.rank == first) {
      seat.exchange->close(Status());
      // Neither its end nor that of its connections tells the others.
      for (int rank = 0; rank < first; ++rank) {
        ended.wait_for(rank);
      }
      return;
    }
    const auto status = until_noticed(seat, model);
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(rank_name(first)));
    expect_closed(*seat.exchange, model, status);
    ended.set(seat.rank);
    // A process that ends here could be taken for the cause by those who have
    // not noticed yet.
    for (int rank = 0; rank < first; ++rank) {
      ended.wait_for(rank);
    }
  });
}

TEST_P(ExchangeFailure, DestructionWithWorkUnderWayFailsThoseWhoNeedIt) {
  Marks opened;
  Marks ended;
  with().run({.disorderly = true}, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    opened.meet(seat.rank, ranks());
    fill_gradients(*seat.exchange, model, 2, seat.rank);
    (void)seat.exchange->start_reduce(2, reduce_options(model.units[2]));
    if (seat.rank == 0) {
      (void)seat.exchange->start_unshard(0, {});
      seat.exchange.reset();
      // Alive while peers may still write to what was its memory.
      for (int rank = 1; rank < ranks(); ++rank) {
        ended.wait_for(rank);
      }
      return;
    }
    for (const UnitId unit : {1, 0}) {
      fill_gradients(*seat.exchange, model, unit, seat.rank);
      (void)seat.exchange->start_reduce(unit, reduce_options(model.unit(unit)));
    }
    const auto status =
        seat.exchange->end_backward(backward_end(model)).status();
    // Its last request may have come, which is no end of a backward.
    EXPECT_THAT(
        status.code(), AnyOf(ErrorCode::kPeerLost, ErrorCode::kPeerMismatch));
    EXPECT_THAT(status.message(), HasSubstr("rank 0"));
    ended.set(seat.rank);
  });
}

TEST_P(ExchangeFailure, DestructionReturnsBeforeOpen) {
  with().run({.disorderly = true}, [&](Seat& seat) { seat.exchange.reset(); });
}

}  // namespace
}  // namespace sherd::exchange::contract
