// SPDX-License-Identifier: Apache-2.0
//
// The contract of the end of a backward, of gathers inside it, and of
// all_reduce.
#include "exchange/contract_testing.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include "base/hash.h"

namespace sherd::exchange::contract {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_P(ExchangeBackward, ReturnsOnlyWhenEveryRankHasCome) {
  Marks coming;
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    reduce_all(*seat.exchange, model, seat.rank);
    if (seat.rank > 0) {
      coming.wait_for(seat.rank - 1);  // One after the other.
    }
    coming.set(seat.rank);
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    for (int rank = 0; rank < ranks(); ++rank) {
      EXPECT_TRUE(coming.is_set(rank)) << "rank " << rank << " has not come";
    }
  });
}

// Reduces units 0 to 2, each when the one before has ended.
Status reduce_one_by_one(Seat& seat, const ModelSpec& model) {
  Status status;
  for (UnitId unit = 0; status.ok() && unit < 3; ++unit) {
    fill_gradients(*seat.exchange, model, unit, seat.rank);
    auto options = reduce_options(model.unit(unit));
    options.under_way_max = 1;
    options.patient = true;
    status = seat.exchange->start_reduce(unit, options);
  }
  return status;
}

// Room for its second reduction comes from what rank 0 does after a gather that needs all.
TEST_P(ExchangeBackward, ARankThatReducesAtItsEndAssistsOthersMeanwhile) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 4);
    seat.exchange->publish(1).throw_if_failed();
    auto end = backward_end(model);
    if (seat.rank == 0) {
      expect_whole(*seat.exchange, model, 1, 4, {.in_backward = true});
      reduce_all(*seat.exchange, model, seat.rank);
    } else {
      end.reduce_meanwhile = [&] { return reduce_one_by_one(seat, model); };
    }
    seat.exchange->end_backward(end).status().throw_if_failed();
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

// The others have room for their second reduction once rank 0, which waits for them in the
// all-reduce, has made its part of the first sum.
TEST_P(ExchangeBackward, ARankThatWaitsInAnAllReduceAssistsOthersMeanwhile) {
  if (!with().limits_reductions) {
    return;
  }
  Marks marks;
  with().run([&](Seat& seat) {
    auto model = plain_model(owners());
    // A sum then ends only when all ranks have made their parts.
    model.placement =
        with().replicates ? ModelPlacement::kReplicate : ModelPlacement::kShard;
    open(seat, model);
    if (seat.rank != 0) {
      marks.wait_for(0);
    }
    for (const UnitId unit : {2, 1, 0}) {
      fill_gradients(*seat.exchange, model, unit, seat.rank);
      auto options = reduce_options(model.unit(unit));
      options.under_way_max = seat.rank == 0 ? 0 : 1;
      options.patient = seat.rank != 0;
      seat.exchange->start_reduce(unit, options).throw_if_failed();
    }
    marks.set(seat.rank);
    const auto number = at::ones({1}, at::kDouble);
    seat.exchange->all_reduce(number, ScalarReduceOp::kMax).throw_if_failed();
    if (seat.rank != 0) {
      EXPECT_EQ(seat.exchange->counters().reduces_under_way_peak, 1);
    }
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

// Rank 0 has posted all in another order, and waits for what the others post last.
TEST_P(ExchangeBackward, ARankThatWaitsForItsOldestSumMakesOthers) {
  if (!with().sums_in_any_order) {
    return;
  }
  with().run([&](Seat& seat) {
    auto model = plain_model(owners());
    // A sum then ends only when all ranks have made their parts.
    model.placement =
        with().replicates ? ModelPlacement::kReplicate : ModelPlacement::kShard;
    open(seat, model);
    auto end = backward_end(model);
    if (seat.rank == 0) {
      for (const UnitId unit : {2, 1, 0}) {
        fill_gradients(*seat.exchange, model, unit, seat.rank);
        seat.exchange->start_reduce(unit, reduce_options(model.unit(unit)))
            .throw_if_failed();
      }
    } else {
      end.reduce_meanwhile = [&] { return reduce_one_by_one(seat, model); };
    }
    seat.exchange->end_backward(end).status().throw_if_failed();
    if (seat.rank != 0) {
      EXPECT_EQ(seat.exchange->counters().reduces_under_way_peak, 1);
    }
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

TEST_P(ExchangeBackward, UsedMarksAreOredByParameter) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    for (const UnitId unit : {0, 1, 2, 3, 5}) {
      fill_gradients(*seat.exchange, model, unit, seat.rank);
      auto options = reduce_options(model.unit(unit));
      for (std::size_t i = 0; i < options.used.size(); ++i) {
        // Parameter 0 by nobody, 1 by the last rank, others by all.
        options.used[i] = i > 1 || (i == 1 && seat.rank == ranks() - 1);
      }
      seat.exchange->start_reduce(unit, options).throw_if_failed();
    }
    const auto outcome =
        seat.exchange->end_backward(backward_end(model)).value();
    ASSERT_EQ(outcome.used.size(), model.units.size());
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      std::vector<bool> expected(trainable_parameters(model.units[u]), true);
      if (!expected.empty()) {
        expected[0] = false;
      }
      EXPECT_EQ(outcome.used[u], expected) << "unit " << u;
      EXPECT_FALSE(outcome.late[u]);
    }
    // Marks do not outlive their backward.
    auto unused = reduce_options(model.units[2]);
    unused.used = {false};
    fill_gradients(*seat.exchange, model, 2, 0);
    seat.exchange->start_reduce(2, unused).throw_if_failed();
    const auto next = seat.exchange->end_backward(backward_end(model)).value();
    EXPECT_FALSE(next.used[1][2]);
  });
}

TEST_P(ExchangeBackward, OneLateRankBringsAllToAnotherRound) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    reduce_all(*seat.exchange, model, seat.rank);
    auto end = backward_end(model);
    end.late[1] = seat.rank == ranks() - 1;
    const auto outcome = seat.exchange->end_backward(end).value();
    EXPECT_EQ(outcome.late, (std::vector<bool>{false, true, false}));
    fill_gradients(*seat.exchange, model, 1, seat.rank + 1);
    auto options = reduce_options(model.units[1]);
    options.accumulate = {true};
    seat.exchange->start_reduce(1, options).throw_if_failed();
    const auto last = seat.exchange->end_backward(backward_end(model)).value();
    EXPECT_EQ(last.late, std::vector<bool>(3, false));
    auto sum = torch::zeros_like(pattern(model, 1, 0, 0));
    for (int r = 0; r < ranks(); ++r) {
      sum.add_(pattern(model, 1, 0, r)).add_(pattern(model, 1, 0, r + 1));
    }
    expect_gradient(*seat.exchange, model, 1, 0, seat.rank, sum);
  });
}

TEST_P(ExchangeBackward, AnAbortNamesRankAndReasonAndLeavesTheExchangeUsable) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    const int aborter = ranks() - 1;
    for (int round = 0; round < 2; ++round) {
      reduce_all(*seat.exchange, model, seat.rank);
      auto end = backward_end(model);
      end.aborted = seat.rank == aborter ? "loss is not finite" : "";
      const auto aborted = seat.exchange->end_backward(end).status();
      ASSERT_FALSE(aborted.ok());
      EXPECT_EQ(aborted.code(), ErrorCode::kAborted);
      EXPECT_THAT(
          aborted.message(),
          AllOf(
              HasSubstr("rank " + std::to_string(aborter)),
              HasSubstr("loss is not finite")));

      run_backward(*seat.exchange, model, seat.rank, round);
      expect_sums(*seat.exchange, model, seat.rank, ranks(), round);
    }
    write_shards(*seat.exchange, model, seat.rank, 4);
    seat.exchange->publish(1).throw_if_failed();
    expect_whole(*seat.exchange, model, 2, 4);
  });
}

TEST_P(ExchangeBackward, RanksMayGatherDifferentUnits) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    const UnshardOptions options{.in_backward = true};
    for (int round = 0; round < 3; ++round) {
      // Rank 0 gathers nothing in the first round; others each other things,
      // in different orders and numbers.
      const int wants = (seat.rank + 2 * round) % (ranks() + 1);
      for (int i = 0; i < wants; ++i) {
        const auto unit = static_cast<UnitId>((seat.rank + i * 2) % 6);
        expect_whole(*seat.exchange, model, unit, 1, options);
      }
      run_backward(*seat.exchange, model, seat.rank, round);
      expect_sums(*seat.exchange, model, seat.rank, ranks(), round);
    }
    expect_whole(*seat.exchange, model, 0, 1);  // Together again.
  });
}

// As when some ranks have left the plan that others follow. Several gathers are
// under way at a time, and every rank has drawn others, in another order; some
// are at their end at once.
TEST_P(ExchangeBackward, RanksMayLeaveThePlanOfOthers) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(seed);
    with().run([&](Seat& seat) {
      const auto model = mixed_model(owners());
      open(seat, model);
      for (int round = 0; round < 4; ++round) {
        std::mt19937 random(static_cast<unsigned>(mix64(
            seed * 1000 +
            static_cast<std::uint64_t>(round * 100 + seat.rank))));
        write_shards(*seat.exchange, model, seat.rank, round);
        seat.exchange->publish(static_cast<std::uint64_t>(round) + 1)
            .throw_if_failed();
        std::vector<UnitId> units{0, 1, 2, 3, 4, 5};
        std::shuffle(units.begin(), units.end(), random);
        units.resize(random() % 5);
        for (const auto unit : units) {
          const UnshardOptions options{
              .in_backward = true, .planned = random() % 3 > 0};
          seat.exchange->start_unshard(unit, options).throw_if_failed();
        }
        for (const auto unit : units) {
          expect_values(*seat.exchange, model, unit, round);
        }
        run_backward(*seat.exchange, model, seat.rank, round);
        expect_sums(*seat.exchange, model, seat.rank, ranks(), round);
      }
      expect_whole(*seat.exchange, model, 0, 3);  // Together again.
    });
  }
}

TEST_P(ExchangeBackward, ReducesMayLieBetweenGathersThatDiffer) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 1);
    const UnshardOptions options{.in_backward = true};
    for (const UnitId unit : {2, 1, 0}) {
      if (seat.rank % 2 == 0) {
        expect_whole(*seat.exchange, model, unit, 1, options);
      }
      fill_gradients(*seat.exchange, model, unit, seat.rank);
      seat.exchange->start_reduce(unit, reduce_options(model.unit(unit)))
          .throw_if_failed();
    }
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

// ---- all_reduce ----

std::string bits_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

TEST_P(ExchangeNumbers, SumAndMaxGiveEveryRankTheSameBits) {
  const auto results = with().run([&](Seat& seat) {
    open(seat, plain_model(owners()));
    auto sum = torch::tensor(
        {0.1 * (seat.rank + 1), 1e300, -1.0 * seat.rank}, torch::kDouble);
    auto max = torch::tensor(
        {0.0 + seat.rank, -5.0 - seat.rank,
         -std::numeric_limits<double>::infinity()},
        torch::kDouble);
    seat.exchange->all_reduce(sum, ScalarReduceOp::kSum).throw_if_failed();
    seat.exchange->all_reduce(max, ScalarReduceOp::kMax).throw_if_failed();
    EXPECT_DOUBLE_EQ(sum[0].item<double>(), 0.1 * ranks() * (ranks() + 1) / 2);
    EXPECT_EQ(sum[2].item<double>(), -0.5 * ranks() * (ranks() - 1));
    EXPECT_EQ(max[0].item<double>(), ranks() - 1);
    EXPECT_EQ(max[1].item<double>(), -5);
    EXPECT_TRUE(std::isinf(max[2].item<double>()));
    seat.result = bits_of(sum) + bits_of(max);
  });
  for (const auto& result : results) {
    EXPECT_EQ(result, results[0]);
    EXPECT_EQ(result.size(), 48U);
  }
}

TEST_P(ExchangeNumbers, ManyNumbersAreReducedAlike) {
  with().run([&](Seat& seat) {
    open(seat, plain_model(owners()));
    auto values = torch::arange(3000, torch::kDouble).add(seat.rank);
    seat.exchange->all_reduce(values, ScalarReduceOp::kMax).throw_if_failed();
    EXPECT_TRUE(torch::equal(
        values, torch::arange(3000, torch::kDouble).add(ranks() - 1)));
  });
}

TEST_P(ExchangeNumbers, ANanOfAnyRankReachesAll) {
  const auto results = with().run([&](Seat& seat) {
    open(seat, plain_model(owners()));
    for (int ill = 0; ill < ranks(); ++ill) {
      for (const auto op : {ScalarReduceOp::kSum, ScalarReduceOp::kMax}) {
        auto values = torch::ones({1}, torch::kDouble);
        if (seat.rank == ill) {
          values.fill_(std::numeric_limits<double>::quiet_NaN());
        }
        seat.exchange->all_reduce(values, op).throw_if_failed();
        EXPECT_TRUE(std::isnan(values.item<double>())) << "of rank " << ill;
        seat.result += bits_of(values);
      }
    }
  });
  for (const auto& result : results) {
    EXPECT_EQ(result, results[0]);
  }
}

TEST_P(ExchangeNumbers, SameTellsEveryRankWhichAreEqual) {
  with().run([&](Seat& seat) {
    open(seat, plain_model(owners()));
    for (int other = 0; other < ranks(); ++other) {
      const double odd = seat.rank == other ? 1.0 : 0.0;
      auto values = torch::tensor({7.0, odd, -0.5}, torch::kDouble);
      seat.exchange->all_reduce(values, ScalarReduceOp::kSame)
          .throw_if_failed();
      EXPECT_EQ(values[0].item<double>(), 1);
      EXPECT_EQ(values[1].item<double>(), ranks() == 1 ? 1 : 0);
      EXPECT_EQ(values[2].item<double>(), 1);
    }
  });
}

TEST_P(ExchangeBackward, EveryRankLearnsThatOneDeparted) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    for (int departed = 0; departed <= ranks(); ++departed) {
      reduce_all(*seat.exchange, model, seat.rank);
      auto end = backward_end(model);
      end.departed = seat.rank == departed;
      const auto outcome = seat.exchange->end_backward(end);
      EXPECT_EQ(outcome.value().diverged, departed < ranks());
    }
  });
}

TEST_P(ExchangeBackward, EveryRankLearnsThatOneHasOtherUnitsWhole) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    for (int other = 0; other <= ranks(); ++other) {
      reduce_all(*seat.exchange, model, seat.rank);
      auto end = backward_end(model);
      end.whole_units = seat.rank == other ? 7 : std::uint64_t{1} << 63U;
      const auto outcome = seat.exchange->end_backward(end);
      EXPECT_EQ(outcome.value().diverged, other < ranks() && ranks() > 1);
    }
  });
}

TEST_P(ExchangeBackward, EveryRankLearnsThatOneHasHooks) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    for (int hooked = 0; hooked <= ranks(); ++hooked) {
      reduce_all(*seat.exchange, model, seat.rank);
      auto end = backward_end(model);
      end.has_hooks = seat.rank == hooked;
      const auto outcome = seat.exchange->end_backward(end);
      EXPECT_EQ(outcome.value().has_hooks, hooked < ranks());
      EXPECT_FALSE(outcome.value().diverged);
    }
  });
}

TEST_P(ExchangeBackward, EveryRankLearnsThatGathersDiffered) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    write_shards(*seat.exchange, model, seat.rank, 0);
    // Who is at its end already gets what the others send ahead.
    for (const auto& [differ, planned] :
         {std::pair(true, false),
          {false, false},
          {true, true},
          {false, true}}) {
      if (!differ || seat.rank == 0) {
        expect_whole(
            *seat.exchange, model, 1, 0,
            {.in_backward = true, .planned = planned});
      }
      reduce_all(*seat.exchange, model, seat.rank);
      const auto outcome = seat.exchange->end_backward(backward_end(model));
      EXPECT_EQ(
          outcome.value().diverged, differ && ranks() > 1 && !with().one_sided);
    }
  });
}

TEST_P(ExchangeNumbers, MayLieBetweenBackwards) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    for (int round = 0; round < 3; ++round) {
      run_backward(*seat.exchange, model, seat.rank, round);
      auto values = torch::full({4}, round + seat.rank, torch::kDouble);
      seat.exchange->all_reduce(values, ScalarReduceOp::kMax).throw_if_failed();
      EXPECT_EQ(values[3].item<double>(), round + ranks() - 1);
      expect_sums(*seat.exchange, model, seat.rank, ranks(), round);
    }
  });
}

}  // namespace
}  // namespace sherd::exchange::contract
