// SPDX-License-Identifier: Apache-2.0
#include "ddp/replicated_model.h"

#include <gmock/gmock.h>
#include <torch/torch.h>
#include "support/error_of.h"

namespace sherd::ddp {
namespace {

using sherd::test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TiedImpl : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  TiedImpl() {
    a = register_module("a", torch::nn::Linear(3, 3));
    b = register_module("b", torch::nn::Linear(3, 3));
    norm = register_module(
        "norm",
        torch::nn::BatchNorm1d(torch::nn::BatchNormOptions(3).affine(false)));
    register_parameter("table", a->weight);
    a->bias.requires_grad_(false);
  }
};
TORCH_MODULE(Tied);

std::vector<std::string> names(const std::vector<ModuleTensor>& items) {
  std::vector<std::string> result;
  for (const auto& item : items) {
    result.push_back(item.name);
  }
  return result;
}

TEST(ReplicaModel, TakesWhatIsTiedOnceAndTellsFrozenFromTrainable) {
  const Tied module;
  const auto model = collect_model(*module, {});
  EXPECT_THAT(
      names(model.trainable), ElementsAre("table", "b.weight", "b.bias"));
  EXPECT_THAT(names(model.frozen), ElementsAre("a.bias"));
  EXPECT_THAT(
      names(model.buffers),
      ElementsAre(
          "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
  EXPECT_THAT(
      describe(model),
      ElementsAre(
          HasSubstr("table [3, 3]"), HasSubstr("b.weight"), HasSubstr("b.bias"),
          HasSubstr("a.bias [3]"), HasSubstr("norm.running_mean [3] Float"),
          HasSubstr("running_var"), HasSubstr("num_batches_tracked [] Long")));
}

TEST(ReplicaModel, KnowsTheFurtherNamesOfTiedParameters) {
  const Tied module;
  EXPECT_THAT(
      collect_model(*module, {}).tied_names,
      ElementsAre(std::pair("a.weight", "table")));
  EXPECT_THAT(
      error_of([&] { (void)collect_model(*module, {"a.weight"}); }),
      HasSubstr("names 'a.weight', which is the same parameter as table; "
                "expected all of its names or none"));
  EXPECT_THAT(
      error_of([&] { (void)collect_model(*module, {"table"}); }),
      HasSubstr("names 'table', which is the same parameter as a.weight"));
  EXPECT_THAT(
      names(collect_model(*module, {"table", "a.weight"}).trainable),
      ElementsAre("b.weight", "b.bias"));
}

TEST(ReplicaModel, TellsOfStridesWhereElementsLie) {
  const auto line = [](const at::Tensor& tensor) {
    ReplicatedModel model;
    model.frozen.push_back({"w", tensor});
    return describe(model).front();
  };
  const auto matrix = torch::zeros({2, 3});
  EXPECT_EQ(
      line(matrix), "frozen parameter w [2, 3] Float with strides [3, 1]");
  EXPECT_THAT(line(matrix.t()), HasSubstr("[3, 2] Float with strides [1, 3]"));
  const auto image = torch::zeros({4, 3, 2, 2});
  EXPECT_NE(line(image), line(image.to(at::MemoryFormat::ChannelsLast)));
  const auto pixel = torch::zeros({4, 3, 1, 1});
  EXPECT_EQ(line(pixel), line(pixel.as_strided({4, 3, 1, 1}, {3, 1, 9, 7})));
  const auto row = torch::zeros({1, 3});
  EXPECT_EQ(line(row), line(row.as_strided({1, 3}, {7, 1})));
  const auto none = torch::zeros({0, 3});
  EXPECT_EQ(line(none), line(torch::zeros({3, 0}).t()));
}

TEST(ReplicaModel, LeavesOutWhatIsIgnored) {
  const Tied module;
  const auto model = collect_model(*module, {"b.bias", "norm.running_var"});
  EXPECT_THAT(names(model.trainable), ElementsAre("table", "b.weight"));
  EXPECT_EQ(model.buffers.size(), 2U);
}

TEST(ReplicaModel, RefusesWhatItCannotTrain) {
  const Tied module;
  module->b->bias.set_data(torch::zeros({3}, torch::kComplexFloat));
  EXPECT_THAT(
      error_of([&] { collect_model(*module, {}); }),
      AllOf(HasSubstr("b.bias"), HasSubstr("ComplexFloat")));
  torch::nn::Linear gaps(2, 2);
  gaps->weight.set_data(torch::zeros({2, 4}).slice(1, 0, 4, 2));
  EXPECT_THAT(
      error_of([&] { collect_model(*gaps, {}); }),
      AllOf(HasSubstr("weight"), HasSubstr("without gaps")));
}

TEST(ReplicaModel, RefusesStateThatIsLessMemoryThanItsShape) {
  torch::nn::BatchNorm1d norm(3);
  norm->running_var.set_data(torch::ones({1}).expand({3}));
  EXPECT_THAT(
      error_of([&] { collect_model(*norm, {}); }),
      AllOf(HasSubstr("buffer running_var"), HasSubstr("without gaps")));
  torch::nn::Linear frozen(2, 2);
  frozen->weight.requires_grad_(false);
  frozen->weight.set_data(torch::zeros({2, 4}).slice(1, 0, 4, 2));
  EXPECT_THAT(
      error_of([&] { collect_model(*frozen, {}); }),
      AllOf(HasSubstr("parameter weight"), HasSubstr("without gaps")));
}

TEST(Buckets, T65DelayedParametersHaveTheLastOnes) {
  const std::vector<ModuleTensor> trainable = {
      {"a", torch::zeros({4})},
      {"b", torch::zeros({4})},
      {"c", torch::zeros({4})},
      {"d", torch::zeros({4})}};
  ReplicateOptions options;
  options.first_bucket_bytes = 16;
  options.bucket_bytes = 1000;
  options.delayed = {"d", "b"};
  const auto buckets = make_buckets(trainable, {3, 2, 1, 0}, options, 2);
  EXPECT_THAT(
      buckets.members,
      ElementsAre(
          ElementsAre(2), ElementsAre(0), ElementsAre(3), ElementsAre(1)));
  ReplicatedModel model;
  model.trainable = trainable;
  check_delayed(model, {"a"});
  EXPECT_THAT(
      error_of([&] { check_delayed(model, {"a", "e"}); }),
      HasSubstr("options.delayed names 'e'"));
}

TEST(Buckets, T52EachIsAUnitOfOneDtypeInTheOrderGiven) {
  const std::vector<ModuleTensor> trainable = {
      {"w", torch::zeros({4, 4})},
      {"half", torch::zeros({3}, torch::kHalf)},
      {"b", torch::zeros({2})}};
  ReplicateOptions options;
  options.first_bucket_bytes = 8;
  options.bucket_bytes = 1000;
  const auto buckets = make_buckets(trainable, {2, 1, 0}, options, 2);
  ASSERT_EQ(buckets.units.size(), 3U);
  EXPECT_THAT(buckets.units[0].flats[0].names, ElementsAre("b"));
  EXPECT_THAT(buckets.units[1].flats[0].names, ElementsAre("half"));
  EXPECT_THAT(buckets.units[2].flats[0].names, ElementsAre("w"));
  EXPECT_THAT(buckets.units[2].flats[0].shapes, ElementsAre("[4, 4]"));
  EXPECT_EQ(buckets.units[1].flats[0].dtype, at::kHalf);
  EXPECT_EQ(buckets.units[2].flats[0].layout.ranks(), 2);
  EXPECT_THAT(
      buckets.members,
      ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  for (std::size_t p = 0; p < trainable.size(); ++p) {
    const auto& place = buckets.parameters[p];
    EXPECT_EQ(place.name, trainable[p].name);
    EXPECT_EQ(place.unit, 2 - static_cast<int>(p));
    EXPECT_EQ(place.trainable, 0);
  }
}

}  // namespace
}  // namespace sherd::ddp
