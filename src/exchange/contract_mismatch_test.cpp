// SPDX-License-Identifier: Apache-2.0
//
// Ranks that do different things: an error with the same cause on every rank.
#include "exchange/contract_testing.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace sherd::exchange::contract {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr RunOptions kDisorderly{.disorderly = true};

// With several replicas a rank may know it by way of one that gave up.
void expect_mismatch(
    const ExchangeUnderTest& with,
    const Status& status,
    const std::vector<std::string>& named) {
  ASSERT_FALSE(status.ok());
  if (with.replicas == 1 || status.code() != ErrorCode::kPeerLost) {
    EXPECT_EQ(status.code(), ErrorCode::kPeerMismatch) << status.message();
  }
  for (const auto& text : named) {
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
}

struct Difference {
  std::function<void(ModelSpec&)> change;
  std::string named;
};

TEST_P(ExchangeMismatch, DifferentModelsAreNamedByTheirFirstDifference) {
  const Difference differences[] = {
      {[](ModelSpec& m) { m.units[1].flats[0].names[0] = "else"; }, "else"},
      {[](ModelSpec& m) { m.units[1].flats[0].shapes[0] = "[19, 3]"; },
       "[19, 3]"},
      {[](ModelSpec& m) { m.units[0].flats[0].dtype = torch::kInt; }, "Int"},
      {[](ModelSpec& m) { m.units[2].flats[0].trainable = false; }, "frozen"},
      {[](ModelSpec& m) { m.units[2].name = "third"; }, "third"},
      {[](ModelSpec& m) { m.units.pop_back(); }, "u2"},
      {[](ModelSpec& m) { m.placement = ModelPlacement::kReplicate; },
       "replicate"},
      {[](ModelSpec& m) { m.unsharded_bytes_max = 12345; }, "12345"},
      {[](ModelSpec& m) { m.share_gradients = true; }, "shared gradients"},
      // As when ranks ask for different granularities: same sizes, other cuts.
      {[](ModelSpec& m) {
         auto& cuts = m.units[0].flats[0].layout.cuts;
         cuts[1] = cuts[1] == 0 ? 1 : cuts[1] - 1;
       },
       "u0"},
  };
  for (const auto& difference : differences) {
    with().run(kDisorderly, [&](Seat& seat) {
      auto model = plain_model(owners());
      if (seat.rank == ranks() - 1) {
        difference.change(model);
      }
      expect_mismatch(
          with(), seat.exchange->open(model),
          {replicas() == 1 ? "rank 0 " : "rank ",
           "rank " + std::to_string(ranks() - 1) + " ", difference.named});
    });
  }
}

TEST_P(ExchangeMismatch, DifferentUnitsInForwardAreNamedOnEveryRank) {
  if (with().one_sided || replicas() > 1) {
    return;  // Who shares no shard axis goes on.
  }
  for (int other = 1; other < ranks(); ++other) {
    with().run(kDisorderly, [&](Seat& seat) {
      const auto model = plain_model(owners());
      open(seat, model);
      write_shards(*seat.exchange, model, seat.rank, 0);
      expect_whole(*seat.exchange, model, 0, 0);
      const UnitId unit = seat.rank == other ? 2 : 1;
      seat.exchange->start_unshard(unit, {}).throw_if_failed();
      const auto found = seat.exchange->wait_for_unshard(unit);
      expect_mismatch(
          with(), found.status(),
          {"u1", "u2", "rank 0 ", "rank " + std::to_string(other) + " "});
      // And it stays the reason.
      EXPECT_EQ(seat.exchange->publish(1).message(), found.status().message());
    });
  }
}

TEST_P(ExchangeMismatch, ForwardAgainstBackwardIsAMismatch) {
  if (with().one_sided || replicas() > 1) {
    return;  // Who shares no shard axis goes on.
  }
  with().run(kDisorderly, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    const bool in_backward = seat.rank == 0;
    seat.exchange->start_unshard(1, {.in_backward = in_backward})
        .throw_if_failed();
    expect_mismatch(
        with(), seat.exchange->wait_for_unshard(1).status(),
        {"u1", "in backward", "in forward"});
  });
}

// One sends more bytes of its shard than the other has room for.
TEST_P(ExchangeMismatch, DifferentPrecisionsAreNamed) {
  if (with().one_sided || replicas() > 1) {
    return;  // Who shares no shard axis goes on.
  }
  with().run(kDisorderly, [&](Seat& seat) {
    const auto model = make_model(
        owners(), {{{.numels = {70, 410}, .param_dtype = at::kBFloat16}}});
    open(seat, model);
    const auto precision =
        seat.rank == 0 ? Precision::kFull : Precision::kParameter;
    seat.exchange->start_unshard(0, {.precision = precision}).throw_if_failed();
    expect_mismatch(
        with(), seat.exchange->wait_for_unshard(0).status(),
        {"u0 in full precision", "u0 in forward"});
  });
}

TEST_P(ExchangeMismatch, DifferentGenerationsAreNamed) {
  if (replicas() > 1) {
    return;  // Who shares no shard axis goes on.
  }
  with().run(kDisorderly, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    seat.exchange->publish(seat.rank == 0 ? 7 : 8).throw_if_failed();
    seat.exchange->start_unshard(1, {}).throw_if_failed();
    expect_mismatch(
        with(), seat.exchange->wait_for_unshard(1).status(),
        {"generation 7", "generation 8", "u1"});
  });
}

// As when one rank leaves out its optimizer step.
TEST_P(ExchangeMismatch, ARankThatDoesNotPublishIsNamedBeforeTheDeadline) {
  with().run(kDisorderly, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank);
    Status status;
    if (seat.rank > 0) {
      status = seat.exchange->publish(1);
    }
    if (status.ok()) {
      status = seat.exchange->start_unshard(0, {});
    }
    if (status.ok()) {
      status = seat.exchange->wait_for_unshard(0).status();
    }
    if (status.ok()) {
      for (const UnitId unit : {2, 1, 0}) {
        fill_gradients(*seat.exchange, model, unit, seat.rank);
        (void)seat.exchange->start_reduce(
            unit, reduce_options(model.unit(unit)));
      }
      status = seat.exchange->end_backward(backward_end(model)).status();
    }
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(
        status.code(), AnyOf(ErrorCode::kPeerMismatch, ErrorCode::kPeerLost));
    EXPECT_THAT(status.message(), HasSubstr("generation 1"));
  });
}

TEST_P(ExchangeMismatch, GathersOfDifferentGenerationsDifferInBackwardToo) {
  if (replicas() > 1) {
    return;  // Who shares no shard axis goes on.
  }
  with().run(kDisorderly, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    seat.exchange->publish(seat.rank == 0 ? 7 : 8).throw_if_failed();
    const UnitId unit = seat.rank == 0 ? 0 : 1;
    seat.exchange->start_unshard(unit, {.in_backward = true}).throw_if_failed();
    expect_mismatch(
        with(), seat.exchange->wait_for_unshard(unit).status(),
        {"generation 7", "generation 8"});
  });
}

TEST_P(ExchangeMismatch, DifferentStepsAreNamed) {
  with().run(kDisorderly, [&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    if (seat.rank == ranks() - 1) {
      auto values = torch::zeros({3}, torch::kDouble);
      expect_mismatch(
          with(), seat.exchange->all_reduce(values, ScalarReduceOp::kSum),
          {"all-reduce 3", "end the backward"});
      return;
    }
    try {
      reduce_all(*seat.exchange, model, seat.rank);
    } catch (const Error&) {
      EXPECT_GT(replicas(), 1);  // Another one's ranks may have found it.
    }
    expect_mismatch(
        with(), seat.exchange->end_backward(backward_end(model)).status(),
        {"all-reduce 3", "end the backward"});
  });
}

TEST_P(ExchangeMismatch, AllReducesMustAgreeInSizeAndOperation) {
  with().run(kDisorderly, [&](Seat& seat) {
    open(seat, plain_model(owners()));
    auto values = torch::zeros({seat.rank == 0 ? 2 : 3}, torch::kDouble);
    expect_mismatch(
        with(), seat.exchange->all_reduce(values, ScalarReduceOp::kSum),
        {"all-reduce 2", "all-reduce 3"});
  });
  with().run(kDisorderly, [&](Seat& seat) {
    open(seat, plain_model(owners()));
    auto values = torch::zeros({2}, torch::kDouble);
    expect_mismatch(
        with(),
        seat.exchange->all_reduce(
            values,
            seat.rank == 0 ? ScalarReduceOp::kSum : ScalarReduceOp::kMax),
        {"sum", "largest"});
  });
}

}  // namespace
}  // namespace sherd::exchange::contract
