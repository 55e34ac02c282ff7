// SPDX-License-Identifier: Apache-2.0
#include <sherd/ddp/comm_hook.h>

#include <limits>

#include <gmock/gmock.h>
#include <torch/torch.h>
#include "ddp/comm_hook_group.h"
#include "support/error_of.h"

namespace sherd::ddp {
namespace {

using sherd::test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

// A group of one rank that remembers its calls.
class AloneGroup : public HookGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void all_reduce_mean(const at::Tensor& tensor) override {
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    dtypes.push_back(tensor.scalar_type());
  }
  void all_reduce_mean(
      const at::Tensor& /*tensor*/, const std::vector<int>& ranks) override {
    among = ranks;
  }
  void reduce_scatter_mean(
      const at::Tensor& tensor,
      const std::vector<std::int64_t>& /*cuts*/) override {
    all_reduce_mean(tensor);
  }
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override {
    bytes += static_cast<std::int64_t>(tensor.nbytes());
    return {tensor.clone()};
  }

  std::int64_t bytes = 0;
  std::vector<at::ScalarType> dtypes;
  std::vector<int> among;
};

GradientBucket bucket_of(
    const std::vector<at::Tensor>& gradients, std::int64_t step) {
  GradientBucket bucket;
  bucket.step = step;
  std::vector<at::Tensor> flat;
  for (const auto& gradient : gradients) {
    flat.push_back(gradient.reshape({-1}));
  }
  bucket.gradients = at::cat(flat);
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    bucket.parameters.push_back(
        {"p" + std::to_string(i),
         bucket.gradients.narrow(0, offset, gradients[i].numel())
             .view(gradients[i].sizes())});
    offset += gradients[i].numel();
  }
  return bucket;
}

at::Tensor matrix(std::int64_t rows, std::int64_t columns, int salt) {
  return torch::sin(torch::arange(rows * columns) * 0.7 + salt)
      .view({rows, columns});
}

// The first parameter's result.
at::Tensor reduced(
    CommHook& hook, const std::vector<at::Tensor>& gradients, int step = 0) {
  AloneGroup group;
  auto bucket = bucket_of(gradients, step);
  hook.reduce(bucket, group);
  return bucket.parameters[0].gradient;
}

TEST(Hooks, CompressedGradientsTravelNarrow) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    AloneGroup group;
    const auto gradient = matrix(5, 7, 1);
    auto bucket = bucket_of({gradient}, 0);
    compress(dtype)->reduce(bucket, group);
    EXPECT_TRUE(at::equal(
        bucket.parameters[0].gradient, gradient.to(dtype).to(at::kFloat)));
    EXPECT_THAT(group.dtypes, ElementsAre(dtype));
    EXPECT_EQ(group.bytes, 5 * 7 * 2);
  }
  EXPECT_THAT(
      error_of([] { compress(at::kDouble); }), HasSubstr("found Double"));
}

TEST(Hooks, CompressionWrapsAnyOther) {
  const auto hook = compress(at::kBFloat16, power_sgd({.start_step = 0}));
  EXPECT_EQ(hook->name(), "compress(BFloat16, power_sgd(rank 1))");
  const auto gradient = at::ones({20, 30});
  EXPECT_TRUE(at::allclose(reduced(*hook, {gradient}), gradient, 0.02));
  EXPECT_EQ(hook->state().size(), 3U);  // The step, Q and the error.
}

TEST(Hooks, CompressionHalvesWhatPowerSgdSends) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool batched : {false, true}) {
      AloneGroup group;
      auto bucket = bucket_of({matrix(20, 30, 1), at::ones({25})}, 0);
      compress(dtype, power_sgd({.start_step = 0, .batched = batched}))
          ->reduce(bucket, group);
      // The batch is a square of 25 x 25.
      EXPECT_EQ(group.bytes, (batched ? 25 + 25 : 20 + 30 + 25) * 2);
      EXPECT_THAT(group.dtypes, ElementsAre(dtype, dtype));
    }
  }
}

// Q keeps the gradient's magnitude, so that without a scale P would have its square.
TEST(Hooks, CompressedPowerSgdStaysInTheRangeOfHalf) {
  for (const bool batched : {false, true}) {
    for (const double scale : {1e-4, 1.0, 1e3}) {
      const auto hook =
          compress(at::kHalf, power_sgd({.start_step = 0, .batched = batched}));
      const auto gradient = matrix(20, 1, 1).mm(matrix(1, 20, 2)) * scale;
      for (int step = 0; step < 4; ++step) {
        EXPECT_TRUE(at::allclose(
            reduced(*hook, {gradient}, step), gradient, 0, 0.01 * scale))
            << scale << " in step " << step;
      }
    }
  }
}

TEST(PowerSgd, T57IsTheMeanBeforeItsStart) {
  const auto hook = power_sgd({.rank = 1, .start_step = 3});
  const auto gradient = matrix(20, 30, 2);
  EXPECT_TRUE(at::equal(reduced(*hook, {gradient}, 2), gradient));
  EXPECT_EQ(hook->state().size(), 1U);
  EXPECT_FALSE(at::allclose(reduced(*hook, {gradient}, 3), gradient));
}

TEST(PowerSgd, T57AMatrixOfItsRankSurvives) {
  // Its rank is 2.
  const auto gradient = matrix(20, 2, 3).mm(matrix(2, 30, 4)) * 5;
  const auto hook = power_sgd({.rank = 2, .start_step = 0});
  EXPECT_TRUE(at::allclose(reduced(*hook, {gradient}), gradient, 1e-4, 1e-4));
}

at::Tensor orthonormal(std::int64_t rows, std::int64_t columns) {
  return std::get<0>(at::linalg_qr(at::randn({rows, columns})));
}

// Singular values that fall fast leave later columns little but rounding, which must not count the
// first ones again.
TEST(PowerSgd, T57ColumnsAreOrthogonalHoweverFastTheSpectrumFalls) {
  for (const double factor : {0.03, 0.01}) {
    const auto spectrum = at::pow(factor, torch::arange(64).to(at::kDouble));
    for (int seed = 0; seed < 100; ++seed) {
      torch::manual_seed(seed);
      const auto gradient = (orthonormal(64, 64) * spectrum.to(at::kFloat))
                                .mm(orthonormal(64, 64).t());
      const auto hook = power_sgd(
          {.rank = 8,
           .start_step = 0,
           .compression_min = 1e-9,
           .error_feedback = false});
      const auto error = (reduced(*hook, {gradient}) - gradient).norm();
      EXPECT_LE(error.item<double>(), 0.01 * gradient.norm().item<double>())
          << factor << " with seed " << seed;
    }
  }
}

// The columns that such a matrix leaves to rounding must not count its first ones again.
TEST(PowerSgd, T57AMatrixOfALowerRankSurvives) {
  for (const int rank : {2, 3, 4}) {
    const auto hook = power_sgd({.rank = rank, .start_step = 0});
    for (int step = 0; step < 5; ++step) {
      const auto gradient = matrix(20, 1, step).mm(matrix(1, 30, 2 * step)) * 5;
      EXPECT_TRUE(
          at::allclose(reduced(*hook, {gradient}, step), gradient, 1e-3, 1e-3))
          << rank << " " << step;
    }
  }
}

TEST(PowerSgd, T57AGradientOfZerosDoesNotStopLaterOnes) {
  for (const bool batched : {false, true}) {
    const auto hook =
        power_sgd({.rank = 2, .start_step = 0, .batched = batched});
    EXPECT_EQ(
        reduced(*hook, {at::zeros({20, 30})}, 0).norm().item<double>(), 0.0);
    const auto gradient = matrix(20, 2, 1).mm(matrix(2, 30, 2));
    EXPECT_GT(reduced(*hook, {gradient}, 1).norm().item<double>(), 0.1);
  }
}

// What a gradient of a lower rank leaves free is used again by the next one that needs it.
TEST(PowerSgd, T57AGradientOfALowerRankDoesNotStopLaterColumns) {
  const auto hook =
      power_sgd({.rank = 2, .start_step = 0, .error_feedback = false});
  const auto low = at::zeros({20, 30});
  low.select(0, 3).fill_(1);
  (void)reduced(*hook, {low}, 0);
  const auto gradient = matrix(20, 2, 3).mm(matrix(2, 30, 4)) * 5;
  EXPECT_TRUE(
      at::allclose(reduced(*hook, {gradient}, 1), gradient, 1e-3, 1e-3));
}

TEST(PowerSgd, T57SendsFewBytes) {
  AloneGroup group;
  auto bucket = bucket_of({matrix(64, 96, 1), at::ones({10})}, 0);
  power_sgd({.rank = 2, .start_step = 0})->reduce(bucket, group);
  EXPECT_EQ(group.bytes, ((64 + 96) * 2 + 10) * 4);
  EXPECT_EQ(group.dtypes.size(), 2U);
}

TEST(PowerSgd, T57LeavesVectorsAndSmallMatricesAlone) {
  const auto hook = power_sgd({.rank = 1, .start_step = 0});
  const auto vector = torch::arange(40).to(at::kFloat);
  EXPECT_TRUE(at::equal(reduced(*hook, {vector, matrix(20, 30, 1)}), vector));
  const auto small = matrix(3, 4, 1);  // 12 numbers; 7 if compressed.
  EXPECT_TRUE(at::equal(reduced(*hook, {small}), small));
}

// What was not sent is in the error, so nothing is lost over several steps.
TEST(PowerSgd, T57ErrorsAreFedBack) {
  const auto hook = power_sgd({.rank = 1, .start_step = 0});
  auto given = at::zeros({20, 30});
  auto sent = at::zeros({20, 30});
  for (int step = 0; step < 6; ++step) {
    const auto gradient = matrix(20, 30, step);
    given += gradient;
    sent += reduced(*hook, {gradient}, step);
  }
  at::Tensor error;
  for (const auto& [name, tensor] : hook->state()) {
    if (name == "error.p0") {
      error = tensor;
    }
  }
  ASSERT_TRUE(error.defined());
  EXPECT_TRUE(at::allclose(sent + error, given, 1e-4, 1e-4));
  EXPECT_GT(error.norm().item<double>(), 0.1);

  const auto without =
      power_sgd({.rank = 1, .start_step = 0, .error_feedback = false});
  (void)reduced(*without, {matrix(20, 30, 1)});
  EXPECT_EQ(without->state().size(), 2U);
}

// This happens when a scaled loss overflows: later steps must be as if it had not.
TEST(PowerSgd, T57KeepsNothingOfAStepThatIsNotFinite) {
  for (const bool batched : {false, true}) {
    const auto after = [&](bool overflow) {
      const auto hook =
          power_sgd({.rank = 1, .start_step = 0, .batched = batched});
      (void)reduced(*hook, {matrix(20, 30, 1)}, 0);
      if (overflow) {
        const auto gradient = matrix(20, 30, 2);
        gradient[3][4] = std::numeric_limits<float>::infinity();
        EXPECT_FALSE(
            at::isfinite(reduced(*hook, {gradient}, 1)).all().item<bool>());
      }
      return reduced(*hook, {matrix(20, 30, 3)}, 2);
    };
    EXPECT_TRUE(at::equal(after(true), after(false))) << batched;
  }
}

// A constant gradient is approximated better and better.
TEST(PowerSgd, T57WarmStartGoesOnFromTheLastQ) {
  const auto gradient =
      matrix(20, 1, 1).mm(matrix(1, 30, 5)) * 3 + matrix(20, 30, 2) * 0.3;
  const auto after = [&](bool warm) {
    const auto hook = power_sgd(
        {.rank = 1,
         .start_step = 0,
         .error_feedback = false,
         .warm_start = warm});
    at::Tensor last;
    for (int step = 0; step < 8; ++step) {
      last = reduced(*hook, {gradient}, step);
    }
    return (last - gradient).norm().item<double>();
  };
  EXPECT_LT(after(true), after(false) + 1e-9);
  const auto best = gradient.norm().square().item<double>() -
      std::get<1>(at::linalg_svd(gradient))[0].square().item<double>();
  EXPECT_NEAR(after(true), std::sqrt(best), 1e-2);
}

TEST(PowerSgd, T57GoesOnFromItsState) {
  const auto one = power_sgd({.start_step = 0});
  (void)reduced(*one, {matrix(20, 30, 1)}, 0);
  const auto two = power_sgd({.start_step = 0});
  two->load(one->state());
  EXPECT_TRUE(at::equal(
      reduced(*one, {matrix(20, 30, 2)}, 1),
      reduced(*two, {matrix(20, 30, 2)}, 1)));
  EXPECT_THAT(
      error_of([&] { two->load({{"momentum.p0", at::ones({1})}}); }),
      HasSubstr("'momentum.p0'"));
  EXPECT_THAT(
      error_of([] { all_reduce_mean()->load({{"q.p0", at::ones({1})}}); }),
      AllOf(HasSubstr("all_reduce_mean"), HasSubstr("no state")));
}

// The result of the hook's rounding of one row.
at::Tensor rounded(const at::Tensor& row) {
  const auto scale = row.abs().max().item<float>() / 127;
  return (row / scale).round() * scale;
}

at::Tensor error_in(const CommHook& hook, const std::string& parameter) {
  for (const auto& [name, tensor] : hook.state()) {
    if (name == "error." + parameter) {
      return tensor;
    }
  }
  return {};
}

TEST(Quantise, T57RoundsByTensorOrByChannel) {
  auto gradient = matrix(5, 70, 1);
  gradient[2].mul_(0.01);
  const auto vector = matrix(1, 9, 2).view({9});
  const auto by_tensor = quantise({.scale = QuantisationScale::kTensor});
  EXPECT_EQ(by_tensor->name(), "quantise(per tensor)");
  EXPECT_TRUE(at::allclose(
      reduced(*by_tensor, {gradient, vector}),
      rounded(gradient.view({-1})).view({5, 70}), 1e-6, 0));
  AloneGroup group;
  auto bucket = bucket_of({gradient, vector}, 0);
  quantise()->reduce(bucket, group);
  for (int row = 0; row < 5; ++row) {
    EXPECT_TRUE(at::allclose(
        bucket.parameters[0].gradient[row], rounded(gradient[row]), 1e-6, 0));
  }
  EXPECT_TRUE(
      at::allclose(bucket.parameters[1].gradient, rounded(vector), 1e-6, 0));
}

TEST(Quantise, T57SendsAByteForEachElementAndItsScales) {
  AloneGroup group;
  auto bucket = bucket_of({matrix(5, 70, 1), at::ones({9})}, 0);
  quantise()->reduce(bucket, group);
  EXPECT_EQ(group.bytes, 5 * 70 + 9 + 4 * (5 + 1));
  bucket = bucket_of({matrix(5, 70, 1), at::ones({9})}, 0);
  quantise({.scale = QuantisationScale::kTensor})->reduce(bucket, group);
  EXPECT_EQ(group.bytes, 2 * (5 * 70 + 9) + 4 * (5 + 1) + 4 * 2);
}

TEST(Quantise, T57ErrorsAreFedBackAndKept) {
  const auto hook = quantise();
  auto given = at::zeros({20, 30}), sent = at::zeros({20, 30});
  for (int step = 0; step < 6; ++step) {
    given += matrix(20, 30, step);
    sent += reduced(*hook, {matrix(20, 30, step)}, step);
  }
  EXPECT_TRUE(at::allclose(sent + error_in(*hook, "p0"), given, 1e-5, 1e-5));
  EXPECT_GT(error_in(*hook, "p0").norm().item<double>(), 0.01);
  const auto other = quantise();
  other->load(hook->state());
  const auto next = matrix(20, 30, 9);
  EXPECT_TRUE(at::equal(reduced(*other, {next}), reduced(*hook, {next})));
  EXPECT_THAT(
      error_of([&] { other->load({{"q.p0", at::ones({1})}}); }),
      HasSubstr("error.*, found 'q.p0'"));
  const auto without = quantise({.error_feedback = false});
  (void)reduced(*without, {matrix(20, 30, 1)});
  EXPECT_THAT(without->state(), IsEmpty());
}

TEST(Quantise, T57ZerosStayAndWhatIsNotFiniteIsSeenByAllAndForgotten) {
  const auto hook = quantise();
  auto gradient = matrix(3, 8, 1);
  gradient[0].zero_();
  gradient[1][5] = std::numeric_limits<float>::infinity();
  const auto result = reduced(*hook, {gradient});
  EXPECT_TRUE(at::equal(result[0], at::zeros({8})));
  EXPECT_TRUE(result[1].isnan().all().item<bool>());
  EXPECT_TRUE(at::allclose(result[2], rounded(gradient[2]), 1e-6, 0));
  EXPECT_TRUE(at::equal(error_in(*hook, "p0")[1], at::zeros({8})));
  EXPECT_TRUE(reduced(*hook, {matrix(3, 8, 2)}).isfinite().all().item<bool>());
  EXPECT_EQ(reduced(*quantise(), {at::zeros({0, 4})}).numel(), 0);
}

TEST(Quantise, CompressionMayWrapIt) {
  const auto hook = compress(at::kBFloat16, quantise());
  const auto gradient = matrix(20, 30, 1);
  EXPECT_TRUE(at::allclose(reduced(*hook, {gradient}), gradient, 0.02, 0.02));
}

// PyTorch's batched_powerSGD_hook for one rank, computed by hand.
TEST(PowerSgdBatched, T57IsTheBestOfItsRankOfTheWholeBucket) {
  const auto hook = power_sgd(
      {.rank = 2, .start_step = 0, .error_feedback = false, .batched = true});
  EXPECT_EQ(hook->name(), "power_sgd(rank 2, batched)");
  const auto square = matrix(20, 2, 3).mm(matrix(2, 20, 4));  // Its rank is 2.
  const auto flat = square.view({-1});
  AloneGroup group;
  auto bucket = bucket_of(
      {flat.narrow(0, 0, 150).view({15, 10}), flat.narrow(0, 150, 250)}, 0);
  hook->reduce(bucket, group);
  EXPECT_TRUE(at::allclose(bucket.gradients, flat, 1e-4, 1e-4));
  EXPECT_EQ(group.bytes, (20 + 20) * 2 * 4);
  EXPECT_THAT(hook->state(), ElementsAre(Key("step"), Key("q.batch.p0")));
  // 390 numbers leave 10 places of the square unused.
  auto ragged = bucket_of({matrix(13, 30, 1)}, 1);
  hook->reduce(ragged, group);
  EXPECT_TRUE(ragged.gradients.isfinite().all().item<bool>());
  auto small = bucket_of({matrix(2, 3, 1)}, 2);
  hook->reduce(small, group);
  EXPECT_TRUE(at::equal(small.parameters[0].gradient, matrix(2, 3, 1)));
}

// Buckets change in between, so errors must belong to parameters.
TEST(PowerSgdBatched, T57ErrorsAreFedBackAndKept) {
  const PowerSgdOptions options{.start_step = 0, .batched = true};
  auto hook = power_sgd(options);
  auto given = at::zeros({20, 30}), sent = at::zeros({20, 30});
  for (int step = 0; step < 6; ++step) {
    auto gradients = std::vector<at::Tensor>{matrix(20, 30, step)};
    given += gradients[0];
    if (step % 2 == 1) {
      gradients.push_back(at::ones({7}));
    }
    sent += reduced(*hook, gradients, step);
    auto next = power_sgd(options);
    next->load(hook->state());
    hook = next;
  }
  EXPECT_TRUE(at::allclose(sent + error_in(*hook, "p0"), given, 1e-4, 1e-4));
  EXPECT_GT(error_in(*hook, "p0").norm().item<double>(), 0.1);
}

TEST(PostLocalSgd, T57LeavesOthersAloneAfterItsStart) {
  AloneGroup group;
  auto bucket = bucket_of({at::ones({4})}, 1);
  const auto hook = post_local_sgd({.start_step = 2, .group_size = 1});
  hook->reduce(bucket, group);
  EXPECT_EQ(group.bytes, 16);
  bucket.step = 2;
  hook->reduce(bucket, group);
  EXPECT_EQ(group.bytes, 16);
  EXPECT_THAT(group.among, ElementsAre(0));
  EXPECT_THAT(
      error_of([&] {
        post_local_sgd({.start_step = 0, .group_size = 2})
            ->reduce(bucket, group);
      }),
      HasSubstr("divides the 1 ranks, found 2"));
}

class LastOfSixGroup final : public AloneGroup {
 public:
  int rank() const override { return 5; }
  int size() const override { return 6; }
};

TEST(PostLocalSgd, T57AveragesWithItsNeighbours) {
  LastOfSixGroup group;
  auto bucket = bucket_of({at::ones({4})}, 1);
  post_local_sgd({.start_step = 0, .group_size = 3})->reduce(bucket, group);
  EXPECT_THAT(group.among, ElementsAre(3, 4, 5));
}

}  // namespace
}  // namespace sherd::ddp
