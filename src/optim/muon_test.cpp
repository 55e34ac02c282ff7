// SPDX-License-Identifier: Apache-2.0
//
// Muon on whole matrices; on slices: tests/numerics/muon_test.cpp.
#include <sherd/optim/muon.h>

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>
#include "base/check.h"
#include "optim/newton_schulz.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kSteps = 3;
const std::vector<std::vector<std::int64_t>> kShapes = {
    {6, 10}, {12, 5}, {8, 8}, {1, 7}};

// The same values as in muon_reference.py.
torch::Tensor value_at(std::size_t number) {
  const auto& shape = kShapes[number];
  const auto i = torch::arange(shape[0] * shape[1], torch::kDouble);
  return ((0.7 * i + static_cast<double>(number)).sin() * 0.3)
      .to(torch::kFloat)
      .view(shape);
}

torch::Tensor gradient_at(std::size_t number, int step) {
  const auto& shape = kShapes[number];
  const auto i = torch::arange(shape[0] * shape[1], torch::kDouble);
  const auto wave =
      0.9 * i + 0.013 * i * i + 1.7 * step + static_cast<double>(number);
  return wave.sin().to(torch::kFloat).view(shape);
}

NamedParameters matrices() {
  NamedParameters parameters;
  for (std::size_t n = 0; n < kShapes.size(); ++n) {
    parameters.items.push_back({str("m", n), value_at(n).requires_grad_(true)});
  }
  return parameters;
}

void set_gradients(NamedParameters& parameters, int step) {
  for (std::size_t n = 0; n < kShapes.size(); ++n) {
    parameters.items[n].slice.mutable_grad() = gradient_at(n, step);
  }
}

MuonOptions options_named(const std::string& name) {
  if (name == "plain") {
    return {
        .learning_rate = 0.02,
        .momentum = 0.5,
        .nesterov = false,
        .weight_decay = 0.0};
  }
  if (name == "rms") {
    return {
        .learning_rate = 0.02,
        .weight_decay = 0.3,
        .scale = MuonScale::kMatchRmsAdamW};
  }
  if (name == "cubic") {
    return {
        .learning_rate = 0.02,
        .coefficients = {1.5, -0.5, 0.0},
        .iterations = 7};
  }
  return {.learning_rate = 0.02};
}

struct Golden {
  const char* name;
  at::ScalarType dtype;
  // For each matrix: the first element, the middle one, the last one, and the norm.
  std::vector<float> numbers;
};

// Printed by muon_reference.py.
const Golden kGolden[] = {
    {"defaults",
     at::kFloat,
     {-0.014200F, 0.248566F, -0.129055F, 1.621985F, 0.240422F, 0.001319F,
      -0.307728F, 1.652592F, 0.278765F, -0.208648F, 0.261857F, 1.701503F,
      0.050979F, -0.283173F, 0.243120F, 0.519099F}},
    {"plain",
     at::kFloat,
     {-0.013620F, 0.249613F, -0.129651F, 1.631492F, 0.241602F, 0.000858F,
      -0.308855F, 1.662214F, 0.280126F, -0.209742F, 0.262880F, 1.711764F,
      0.050917F, -0.284497F, 0.244207F, 0.521658F}},
    {"rms",
     at::kFloat,
     {-0.008935F, 0.245936F, -0.128666F, 1.600113F, 0.243294F, -0.000811F,
      -0.297911F, 1.629943F, 0.272214F, -0.202236F, 0.255657F, 1.678170F,
      0.046277F, -0.276531F, 0.237258F, 0.509878F}},
    {"cubic",
     at::kFloat,
     {-0.012967F, 0.247356F, -0.128949F, 1.623134F, 0.245831F, 0.002568F,
      -0.307154F, 1.654956F, 0.280608F, -0.210475F, 0.264002F, 1.703602F,
      0.054857F, -0.286264F, 0.245929F, 0.522097F}},
    {"defaults",
     at::kBFloat16,
     {-0.013927F, 0.248638F, -0.129046F, 1.621849F, 0.240053F, 0.001248F,
      -0.307571F, 1.652611F, 0.278794F, -0.208910F, 0.262186F, 1.701549F,
      0.050804F, -0.283077F, 0.243068F, 0.519036F}},
    {"plain",
     at::kBFloat16,
     {-0.013496F, 0.249376F, -0.129597F, 1.631496F, 0.241851F, 0.000809F,
      -0.309060F, 1.662472F, 0.280270F, -0.209892F, 0.262608F, 1.711779F,
      0.050759F, -0.284268F, 0.243960F, 0.521162F}},
    {"rms",
     at::kBFloat16,
     {-0.008763F, 0.245981F, -0.128661F, 1.600029F, 0.243129F, -0.000842F,
      -0.297841F, 1.629947F, 0.272230F, -0.202384F, 0.255842F, 1.678198F,
      0.046185F, -0.276481F, 0.237231F, 0.509847F}},
    {"cubic",
     at::kBFloat16,
     {-0.012911F, 0.247306F, -0.129083F, 1.623199F, 0.245818F, 0.002579F,
      -0.307215F, 1.655032F, 0.280628F, -0.210546F, 0.264048F, 1.703602F,
      0.054902F, -0.286301F, 0.245982F, 0.522150F}},
};

class MuonGolden : public ::testing::TestWithParam<Golden> {};

TEST_P(MuonGolden, EqualsTorch) {
  auto parameters = matrices();
  auto options = options_named(GetParam().name);
  options.iteration_dtype = GetParam().dtype;
  Muon muon(parameters, options);
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(parameters, step);
    muon.step();
  }
  // Processors add bf16 products in different orders, and iterations amplify the difference; a
  // matrix moves by up to 0.06.
  const float tolerance = GetParam().dtype == at::kFloat ? 1e-5F : 2e-3F;
  const auto& numbers = GetParam().numbers;
  ASSERT_EQ(numbers.size(), 4 * kShapes.size());
  for (std::size_t n = 0; n < kShapes.size(); ++n) {
    const auto flat = parameters.items[n].slice.detach().view({-1});
    const auto at = [&](std::int64_t i) { return flat[i].item<float>(); };
    const auto* expected = &numbers[4 * n];
    EXPECT_NEAR(at(0), expected[0], tolerance) << n;
    EXPECT_NEAR(at(flat.numel() / 2), expected[1], tolerance) << n;
    EXPECT_NEAR(at(-1), expected[2], tolerance) << n;
    EXPECT_NEAR(flat.norm().item<float>(), expected[3], tolerance) << n;
  }
}

std::string name_of(const ::testing::TestParamInfo<Golden>& info) {
  return str(info.param.name, "In", info.param.dtype);
}

INSTANTIATE_TEST_SUITE_P(
    Options, MuonGolden, ::testing::ValuesIn(kGolden), name_of);

TEST(NewtonSchulz, BringsSingularValuesNearOne) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& shape : kShapes) {
      torch::manual_seed(1);
      const auto matrix = torch::randn(shape) * 100;
      const auto found =
          optim::orthogonalised(matrix, {.iteration_dtype = dtype});
      EXPECT_EQ(found.sizes(), matrix.sizes());
      EXPECT_EQ(found.scalar_type(), dtype);
      const auto singular = torch::linalg_svdvals(found.to(torch::kFloat));
      EXPECT_LT(singular.max().item<float>(), 1.3F);
      EXPECT_GT(singular.max().item<float>(), 0.6F);
    }
  }
}

TEST(NewtonSchulz, OfZerosIsZeros) {
  EXPECT_TRUE(torch::equal(
      optim::orthogonalised(
          torch::zeros({3, 4}), {.iteration_dtype = at::kFloat}),
      torch::zeros({3, 4})));
}

TEST(Muon, LeavesMatricesWithoutGradientAndTheirMomentum) {
  auto parameters = matrices();
  Muon muon(parameters);
  set_gradients(parameters, 0);
  muon.step();
  const auto value = parameters.items[1].slice.detach().clone();
  const auto momentum = muon.momentum_buffer("m1").clone();
  set_gradients(parameters, 1);
  parameters.items[1].slice.mutable_grad().reset();
  muon.step();
  EXPECT_TRUE(torch::equal(parameters.items[1].slice, value));
  EXPECT_TRUE(torch::equal(muon.momentum_buffer("m1"), momentum));
  EXPECT_FALSE(torch::equal(parameters.items[0].slice, value_at(0)));
}

TEST(Muon, UsesGradientsUpAndPublishesOnce) {
  int published = 0;
  auto parameters = matrices();
  parameters.publish = [&] { ++published; };
  Muon muon(parameters);
  set_gradients(parameters, 0);
  muon.step();
  EXPECT_EQ(published, 1);
  for (const auto& item : parameters.items) {
    EXPECT_FALSE(item.slice.grad().defined()) << item.name;
  }
}

TEST(Muon, MomentumWrittenFromACheckpointGoesOnAsBefore) {
  auto one = matrices();
  Muon before(one);
  set_gradients(one, 0);
  before.step();
  auto two = matrices();
  Muon after(two);
  for (std::size_t n = 0; n < kShapes.size(); ++n) {
    const torch::NoGradGuard no_grad;
    two.items[n].slice.copy_(one.items[n].slice);
    after.momentum_buffer(one.items[n].name)
        .copy_(before.momentum_buffer(one.items[n].name));
  }
  set_gradients(one, 1);
  set_gradients(two, 1);
  before.step();
  after.step();
  for (std::size_t n = 0; n < kShapes.size(); ++n) {
    EXPECT_TRUE(torch::equal(one.items[n].slice, two.items[n].slice)) << n;
  }
}

TEST(Muon, TheLearningRateHoldsFromTheNextStepOn) {
  auto parameters = matrices();
  Muon muon(parameters, {.learning_rate = 0.5});
  EXPECT_EQ(muon.learning_rate(), 0.5);
  muon.set_learning_rate(0.0);
  set_gradients(parameters, 0);
  muon.step();
  EXPECT_TRUE(torch::equal(parameters.items[0].slice, value_at(0)));
  EXPECT_THAT(
      [&] { muon.set_learning_rate(-1.0); },
      ThrowsMessage<Error>(HasSubstr("learning_rate")));
  EXPECT_EQ(muon.learning_rate(), 0.0);
}

TEST(Muon, AGradientThatIsATransposedViewCountsAsWhatItShows) {
  auto one = matrices();
  auto two = matrices();
  Muon plain(one);
  Muon viewed(two);
  set_gradients(one, 0);
  set_gradients(two, 0);
  auto& gradient = two.items[0].slice.mutable_grad();
  gradient = gradient.t().contiguous().t();
  plain.step();
  viewed.step();
  EXPECT_TRUE(torch::equal(one.items[0].slice, two.items[0].slice));
}

TEST(Muon, RefusesWhatIsNoMatrixByName) {
  NamedParameters parameters = matrices();
  parameters.items.push_back({"a.bias", torch::zeros({3})});
  EXPECT_THAT(
      [&] { Muon muon(parameters); },
      ThrowsMessage<Error>(AllOf(
          HasSubstr("[optim] Muon"), HasSubstr("2 dimensions"),
          HasSubstr("\"a.bias\" of shape [3]"))));
  EXPECT_THAT(
      [] { Muon muon(NamedParameters{}); },
      ThrowsMessage<Error>(HasSubstr("at least one parameter")));
}

TEST(Muon, LeavesOutFrozenIntegers) {
  NamedParameters parameters = matrices();
  parameters.items.push_back({"codes", torch::zeros({3, 4}, torch::kChar)});
  set_gradients(parameters, 0);
  for (const bool of_a_model : {false, true}) {
    for (const auto& item : parameters.items) {
      if (of_a_model) {
        parameters.whole.items.push_back(
            {.name = item.name,
             .shape = item.slice.sizes().vec(),
             .options = item.slice.options()});
      }
    }
    Muon muon(parameters);
    muon.step();
    EXPECT_EQ(parameters.items.back().slice.sum().item<int>(), 0);
    EXPECT_THROW((void)muon.momentum_buffer("codes"), Error);
  }
}

TEST(Muon, RefusesCutMatricesWhoseGradientsNobodyShares) {
  NamedParameters parameters;
  parameters.whole.items.push_back({.name = "a.weight", .shape = {4, 4}});
  parameters.whole.ranks = 3;
  EXPECT_THAT(
      [&] { Muon muon(parameters); },
      ThrowsMessage<Error>(AllOf(
          HasSubstr("FullyShardOptions::share_gradients"),
          HasSubstr("without cpu_offload"),
          HasSubstr("\"a.weight\" cut among 3 ranks"))));
}

TEST(Muon, RefusesOptionsOutOfRange) {
  const auto refusal = [](const MuonOptions& options, const char* what) {
    EXPECT_THAT(
        [&] { Muon muon(matrices(), options); },
        ThrowsMessage<Error>(
            AllOf(HasSubstr("[optim] Muon"), HasSubstr(what))));
  };
  refusal({.learning_rate = -1}, "learning_rate");
  refusal({.momentum = 1.0}, "momentum");
  refusal({.weight_decay = std::nan("")}, "weight_decay");
  refusal({.iterations = 0}, "iterations");
  refusal({.epsilon = 0.0}, "epsilon");
  refusal({.iteration_dtype = at::kHalf}, "iteration_dtype");
}

TEST(Muon, RefusesUnknownNames) {
  Muon muon(matrices());
  EXPECT_THAT(muon.names(), ElementsAre("m0", "m1", "m2", "m3"));
  EXPECT_THAT(
      [&] { muon.momentum_buffer("m9"); },
      ThrowsMessage<Error>(HasSubstr("\"m9\"")));
}

TEST(Muon, RefusesCallsAfterItWasMovedFrom) {
  Muon first(matrices());
  const Muon second(std::move(first));
  EXPECT_THAT(
      // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
      [&] { first.step(); },
      ThrowsMessage<Error>(HasSubstr("[optim] Muon was moved from")));
}

}  // namespace
}  // namespace sherd
