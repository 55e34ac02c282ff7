// SPDX-License-Identifier: Apache-2.0
//
// The contract of gradient slots and their sums.
#include "exchange/contract_testing.h"

#include <algorithm>
#include <numeric>
#include <torch/torch.h>
#include "base/clock.h"

namespace sherd::exchange::contract {
namespace {

// scale * (v_0 + v_1 + ...) by a plain loop, as `to`.
template <typename Sum>
at::Tensor ordered_sum(
    const std::vector<at::Tensor>& values, double scale, c10::ScalarType to) {
  const auto dtype = c10::CppTypeToScalarType<Sum>::value;
  at::Tensor sum = values[0].to(dtype, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t r = 1; r < values.size(); ++r) {
    const at::Tensor next = values[r].to(dtype);
    for (std::int64_t i = 0; i < sum.numel(); ++i) {
      sum.data_ptr<Sum>()[i] += next.data_ptr<Sum>()[i];
    }
  }
  for (std::int64_t i = 0; i < sum.numel(); ++i) {
    sum.data_ptr<Sum>()[i] *= static_cast<Sum>(scale);
  }
  return sum.to(to);
}

// The sums of hosts, in their order.
template <typename Sum>
at::Tensor sum_of_hosts(
    const std::vector<int>& hosts,
    const std::vector<at::Tensor>& sent,
    double scale,
    c10::ScalarType to) {
  std::vector<at::Tensor> sums;
  auto next = sent.begin();
  for (const int ranks : hosts) {
    sums.push_back(ordered_sum<Sum>(
        {next, next + ranks}, 1.0, c10::CppTypeToScalarType<Sum>::value));
    next += ranks;
  }
  return ordered_sum<Sum>(sums, scale, to);
}

// In rank order, then scaled; with several replicas so in each, and then their
// sums, sent as gradients are, in the order of replicas.
template <typename Sum>
at::Tensor expected_sum(
    const ExchangeUnderTest& with,
    const ModelSpec& model,
    UnitId unit,
    int flat,
    double scale) {
  const auto& spec = model.unit(unit).flats[static_cast<std::size_t>(flat)];
  std::vector<at::Tensor> sums;
  for (int replica = 0; replica < with.replicas; ++replica) {
    std::vector<at::Tensor> sent;
    for (int r = 0; r < with.ranks; ++r) {
      if (with.replica_of(r) == replica) {
        sent.push_back(noise(model, unit, flat, r).to(spec.slot_dtype()));
      }
    }
    sums.push_back(
        with.hosts.empty()
            ? ordered_sum<Sum>(sent, scale, spec.dtype)
            : sum_of_hosts<Sum>(with.hosts, sent, scale, spec.dtype));
  }
  if (with.replicas == 1) {
    return sums[0];
  }
  for (auto& sum : sums) {
    sum = sum.to(spec.slot_dtype());
  }
  return ordered_sum<Sum>(sums, 1.0, spec.dtype);
}

TEST_P(ExchangeReduce, SumsSmallIntegersExactly) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank);
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

// Where it can be, and nowhere else; a meeting before reading, and one after.
TEST_P(ExchangeReduce, SharedGradientsAreWholeOnEveryRank) {
  const bool can = with().one_sided && !with().both_axes;
  with().run([&](Seat& seat) {
    auto model = mixed_model(owners());
    model.share_gradients = true;
    open(seat, model);
    auto& exchange = *seat.exchange;
    const auto number = at::zeros({1}, at::kDouble);
    for (int salt = 0; salt < 3; ++salt) {
      run_backward(exchange, model, seat.rank, salt);
      expect_sums(exchange, model, seat.rank, ranks(), salt);
      exchange.all_reduce(number, ScalarReduceOp::kMax).throw_if_failed();
      for (std::size_t u = 0; u < model.units.size(); ++u) {
        for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
          const auto unit = static_cast<UnitId>(u);
          const auto flat = static_cast<int>(f);
          const auto whole = exchange.shard_memory(unit, flat).whole_gradient;
          ASSERT_EQ(whole.defined(), can && model.units[u].flats[f].trainable);
          if (whole.defined()) {
            auto sum = pattern(model, unit, flat, salt);
            for (int r = 1; r < ranks(); ++r) {
              sum.add_(pattern(model, unit, flat, r + salt));
            }
            EXPECT_TRUE(at::equal(whole, sum)) << "unit " << u << " flat " << f;
          }
        }
      }
      exchange.all_reduce(number, ScalarReduceOp::kMax).throw_if_failed();
    }
  });
}

TEST_P(ExchangeReduce, T31NoMoreReductionsAreUnderWayThanAsked) {
  if (!with().limits_reductions) {
    return;
  }
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    const SteadyClock clock;
    bool limit_given_up = false;
    for (int backward = 0; backward < 20; ++backward) {
      const Instant began = clock.now();
      for (const UnitId unit : {2, 1, 0}) {
        const auto& spec = model.unit(unit);
        fill_gradients(*seat.exchange, model, unit, seat.rank);
        auto options = reduce_options(spec);
        options.under_way_max = 1;
        seat.exchange->start_reduce(unit, options).throw_if_failed();
      }
      seat.exchange->end_backward(backward_end(model))
          .status()
          .throw_if_failed();
      // On a machine so busy, this rank may have waited in vain for room.
      const bool may_have_given_up =
          clock.now() - began >= ReduceOptions().room_wait();
      limit_given_up = limit_given_up || may_have_given_up;
      expect_sums(*seat.exchange, model, seat.rank, ranks());
    }
    const auto peak = seat.exchange->counters().reduces_under_way_peak;
    EXPECT_TRUE(limit_given_up || peak == 1) << peak;
  });
}

// Rank 0 may not wait for the others for ever: they wait for what it does next.
TEST_P(ExchangeReduce, T31ALimitIsGivenUpWherePeersDoOtherThingsFirst) {
  Marks marks;
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    if (seat.rank != 0) {
      marks.wait_for(0);
    }
    for (const UnitId unit : {2, 1, 0}) {
      const auto& spec = model.unit(unit);
      fill_gradients(*seat.exchange, model, unit, seat.rank);
      auto options = reduce_options(spec);
      options.under_way_max = 1;
      seat.exchange->start_reduce(unit, options).throw_if_failed();
    }
    if (seat.rank == 0 && ranks() > 1) {
      EXPECT_EQ(seat.exchange->counters().reduces_under_way_peak, 3);
    }
    marks.set(seat.rank);
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

TEST_P(ExchangeReduce, SumsInRankOrderThenScales) {
  if (!with().sums_in_rank_order) {
    return;
  }
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    const double scale = 1.0 / ranks();
    for (const UnitId unit : {5, 2, 0, 1, 3}) {
      const auto& spec = model.unit(unit);
      fill_gradients(*seat.exchange, model, unit, seat.rank, noise);
      seat.exchange->start_reduce(unit, reduce_options(spec, scale))
          .throw_if_failed();
    }
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      const auto unit = static_cast<UnitId>(u);
      for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
        const auto flat = static_cast<int>(f);
        const bool wide = model.units[u].flats[f].dtype == torch::kDouble;
        expect_gradient(
            *seat.exchange, model, unit, flat, seat.rank,
            wide ? expected_sum<double>(with(), model, unit, flat, scale)
                 : expected_sum<float>(with(), model, unit, flat, scale));
      }
    }
  });
}

// Small gradients beside large ones are lost in bf16, not in fp32.
TEST_P(ExchangeReduce, T21LowPrecisionGradientsAddUpInThePrecisionOfShards) {
  with().run([&](Seat& seat) {
    const auto bf16 = make_model(
        owners(), {{{.numels = {70}, .param_dtype = at::kBFloat16}}});
    open(seat, bf16);
    for (int micro = 0; micro < 3; ++micro) {
      auto slot = seat.exchange->gradient_slot(0)[0];
      ASSERT_EQ(slot.scalar_type(), at::kBFloat16);
      slot.fill_(micro == 0 ? 256.0 : 0.5);
      auto options = reduce_options(bf16.units[0]);
      options.accumulate = {micro > 0};
      seat.exchange->start_reduce(0, options).throw_if_failed();
      seat.exchange->end_backward(backward_end(bf16))
          .status()
          .throw_if_failed();
    }
    expect_gradient(
        *seat.exchange, bf16, 0, 0, seat.rank,
        torch::full({bf16.units[0].flats[0].layout.numel}, 257.0 * ranks()));
  });
}

TEST_P(ExchangeReduce, T20SlotsHaveTheReduceDtypeAndGradientsTheShards) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    const auto slot = seat.exchange->gradient_slot(1);
    for (std::size_t f = 0; f < slot.size(); ++f) {
      const auto& flat = model.units[1].flats[f];
      if (!flat.trainable) {
        continue;
      }
      EXPECT_EQ(slot[f].scalar_type(), flat.slot_dtype());
      EXPECT_EQ(slot[f].numel(), flat.layout.numel);
      EXPECT_EQ(
          seat.exchange->shard_memory(1, static_cast<int>(f))
              .gradient.scalar_type(),
          flat.dtype);
    }
    run_backward(*seat.exchange, model, seat.rank);
  });
}

TEST_P(ExchangeReduce, AccumulatesByFlatAndAcrossBackwards) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank, 0);
    for (const UnitId unit : {0, 1, 2, 3, 5}) {
      const auto& spec = model.unit(unit);
      fill_gradients(*seat.exchange, model, unit, seat.rank + 1);
      auto options = reduce_options(spec);
      for (std::size_t f = 0; f < options.accumulate.size(); ++f) {
        options.accumulate[f] = f % 2 == 1;
      }
      seat.exchange->start_reduce(unit, options).throw_if_failed();
    }
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    for (std::size_t u = 0; u < model.units.size(); ++u) {
      for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
        const auto unit = static_cast<UnitId>(u);
        const auto flat = static_cast<int>(f);
        auto sum = torch::zeros_like(pattern(model, unit, flat, 0));
        for (int r = 0; r < ranks(); ++r) {
          if (f % 2 == 1) {
            sum.add_(pattern(model, unit, flat, r));
          }
          sum.add_(pattern(model, unit, flat, r + 1));
        }
        expect_gradient(*seat.exchange, model, unit, flat, seat.rank, sum);
      }
    }
  });
}

TEST_P(ExchangeReduce, RanksMayReduceInDifferentOrders) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    for (int round = 0; round < 3; ++round) {
      std::vector<UnitId> order{0, 1, 2, 3, 5};
      std::rotate(
          order.begin(), order.begin() + (seat.rank + round) % 5, order.end());
      for (const auto unit : order) {
        fill_gradients(*seat.exchange, model, unit, seat.rank + round);
        seat.exchange->start_reduce(unit, reduce_options(model.unit(unit)))
            .throw_if_failed();
      }
      seat.exchange->end_backward(backward_end(model))
          .status()
          .throw_if_failed();
      expect_sums(*seat.exchange, model, seat.rank, ranks(), round);
    }
  });
}

TEST_P(ExchangeReduce, ReplicatedGradientsAreWholeOnEveryRank) {
  if (!with().replicates) {
    return;
  }
  with().run([&](Seat& seat) {
    auto model = mixed_model(owners());
    model.placement = ModelPlacement::kReplicate;
    open(seat, model);
    for (int round = 0; round < 2; ++round) {
      run_backward(*seat.exchange, model, seat.rank, round);
      expect_sums(*seat.exchange, model, seat.rank, ranks(), round);
    }
  });
}

TEST_P(ExchangeReduce, ASlotStaysTheSameUntilItIsReduced) {
  with().run([&](Seat& seat) {
    const auto model = mixed_model(owners());
    open(seat, model);
    const auto first = seat.exchange->gradient_slot(0);
    const auto again = seat.exchange->gradient_slot(0);
    const auto other = seat.exchange->gradient_slot(1);
    ASSERT_EQ(first.size(), 3U);
    EXPECT_FALSE(first[1].defined());  // Frozen.
    EXPECT_EQ(first[0].const_data_ptr(), again[0].const_data_ptr());
    EXPECT_EQ(first[0].numel(), model.units[0].flats[0].layout.numel);
    EXPECT_NE(first[0].const_data_ptr(), other[0].const_data_ptr());
    run_backward(*seat.exchange, model, seat.rank);
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

TEST_P(ExchangeReduce, StartingWaitsForNoPeer) {
  Marks started;
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    const int turn = ranks() - 1 - seat.rank;  // The last rank begins.
    if (turn > 0) {
      started.wait_for(seat.rank + 1);
    }
    reduce_all(*seat.exchange, model, seat.rank);
    (void)seat.exchange->progress();
    started.set(seat.rank);
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
    expect_sums(*seat.exchange, model, seat.rank, ranks());
  });
}

TEST_P(ExchangeReduce, GivesSlotMemoryBack) {
  with().run([&](Seat& seat) {
    const auto model = plain_model(owners());
    open(seat, model);
    run_backward(*seat.exchange, model, seat.rank);
    const auto once = seat.exchange->counters().gradient_bytes_peak;
    for (int round = 0; round < 5; ++round) {
      run_backward(*seat.exchange, model, seat.rank, round);
    }
    EXPECT_GT(once, 0);
    // Ranks may differ in how many slots are open at once, but not add up.
    std::int64_t all = 0;
    for (const auto& unit : model.units) {
      all += unit_bytes(unit);
    }
    EXPECT_LE(
        seat.exchange->counters().gradient_bytes_peak, all * (ranks() + 1));
    EXPECT_EQ(seat.exchange->counters().reduces, 18);
  });
}

// Blocks come in order, of a parameter that some rank has a gradient of; small
// ones keep their sharded gradients.
TEST_P(ExchangeReduce, SinksTakeTheSumsOfWhatTravelsAlone) {
  with().run([&](Seat& seat) {
    const auto model = make_model(
        owners(),
        {{{.numels = {3, 50'001, 5, 60'000, 70'000, 7}},
          {.numels = {40'000, 1}, .dtype = c10::ScalarType::Double}}});
    open(seat, model);
    if (!seat.exchange->takes_sinks()) {
      EXPECT_FALSE(with().one_sided && replicas() == 1);
      return;
    }
    const auto& unit = model.units[0];
    for (int round = 0; round < 3; ++round) {
      fill_gradients(*seat.exchange, model, 0, seat.rank);
      auto options = reduce_options(unit);
      options.used[3] = seat.rank == round % ranks();  // The others give zeros.
      options.used[4] = false;
      std::vector<std::vector<at::Tensor>> blocks(8);
      std::vector<std::int64_t> taken(8, 0);
      for (const std::size_t t : {1, 3, 4, 6}) {
        options.sinks.resize(t + 1);
        options.sinks[t] = [&, t](std::int64_t begin, const at::Tensor& sum) {
          EXPECT_EQ(begin, taken[t]);
          taken[t] += sum.numel();
          blocks[t].push_back(sum.clone());
        };
      }
      seat.exchange->start_reduce(0, options).throw_if_failed();
      seat.exchange->end_backward(backward_end(model))
          .status()
          .throw_if_failed();
      for (const std::size_t t : {0, 1, 2, 3, 4, 5, 6, 7}) {
        const int f = t < 6 ? 0 : 1;
        const auto& layout = unit.flats[static_cast<std::size_t>(f)].layout;
        const auto p = t < 6 ? t : t - 6;
        const auto part = plan::parameter_slice(
            layout, static_cast<int>(p), seat.rank % owners());
        at::Tensor sum;
        for (int rank = 0; rank < ranks(); ++rank) {
          const auto theirs =
              pattern(model, 0, f, rank)
                  .narrow(
                      0, layout.offsets[p] + part.in_parameter.begin,
                      part.in_parameter.numel());
          sum = rank == 0 ? theirs.clone() : sum + theirs;
        }
        const auto gradient = seat.exchange->shard_memory(0, f).gradient.narrow(
            0, part.in_shard.begin, part.in_shard.numel());
        if (t >= options.sinks.size() || !options.sinks[t]) {
          EXPECT_TRUE(gradient.equal(sum)) << t;
        } else if (t == 4 || part.in_shard.empty()) {
          EXPECT_EQ(taken[t], 0) << t;
        } else {
          EXPECT_TRUE(torch::cat(blocks[t]).equal(sum)) << t;
          EXPECT_EQ(gradient.count_nonzero().item<std::int64_t>(), 0) << t;
        }
      }
    }
  });
}

// Each rank gives other large gradients as tensors of their own.
TEST_P(ExchangeReduce, LargeGradientsMayLieOutsideTheSlot) {
  with().run([&](Seat& seat) {
    const auto model = make_model(
        owners(),
        {{{.numels = {3, 20'001, 5, 30'000, 7}},
          {.numels = {40'000, 1}, .dtype = c10::ScalarType::Double}}});
    open(seat, model);
    const auto& unit = model.units[0];
    for (int round = 0; round < 3; ++round) {
      seat.exchange->begin_backward();
      fill_gradients(*seat.exchange, model, 0, seat.rank);
      auto slot = seat.exchange->gradient_slot(0);
      auto options = reduce_options(unit);
      std::size_t first = 0;
      options.gradients.resize(7);
      for (std::size_t f = 0; f < unit.flats.size(); ++f) {
        const auto& layout = unit.flats[f].layout;
        for (int p = 0; p < layout.parameters(); ++p) {
          const auto i = static_cast<std::size_t>(p);
          if (may_bypass_slot(unit.flats[f], p) &&
              (seat.rank + round + p) % 2 == 0) {
            auto part = slot[f].narrow(0, layout.offsets[i], layout.numels[i]);
            options.gradients[first + i] = part.clone();
            part.fill_(999);
          }
        }
        first += static_cast<std::size_t>(layout.parameters());
      }
      seat.exchange->start_reduce(0, options).throw_if_failed();
      seat.exchange->end_backward(backward_end(model))
          .status()
          .throw_if_failed();
      expect_sums(*seat.exchange, model, seat.rank, ranks());
    }
  });
}

// Not only at the end of the backward, when there would be all of a model's.
TEST_P(ExchangeReduce, GradientsOutsideTheSlotGoWhenTheyAreSummed) {
  if (!with().replicates || !with().reduces_meanwhile) {
    return;
  }
  with().run([&](Seat& seat) {
    auto model = make_model(owners(), {{{.numels = {40'000}}}});
    model.placement = ModelPlacement::kReplicate;
    open(seat, model);
    seat.exchange->begin_backward();
    const auto slot = seat.exchange->gradient_slot(0);
    auto gradient = at::ones({40'000});
    const c10::weak_intrusive_ptr<at::TensorImpl> held(
        gradient.getIntrusivePtr());
    {
      auto options = reduce_options(model.units[0]);
      options.gradients = {std::move(gradient)};
      seat.exchange->start_reduce(0, options).throw_if_failed();
    }
    while (seat.exchange->progress().empty()) {
      std::this_thread::yield();
    }
    EXPECT_TRUE(held.expired());
    seat.exchange->end_backward(backward_end(model)).status().throw_if_failed();
  });
}

}  // namespace
}  // namespace sherd::exchange::contract
