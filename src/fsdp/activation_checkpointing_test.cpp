// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/activation_checkpointing.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{nullptr};
  NetImpl() {
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(torch::nn::Linear(4, 4));
    }
    head = register_module("head", torch::nn::Linear(4, 1));
  }
};
TORCH_MODULE(Net);

TEST(ActivationCheckpointing, T08ThePolicyDecides) {
  const Net net;
  EXPECT_THAT(
      ActivationCheckpointing(*net).names(),
      ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(
      ActivationCheckpointing(*net, units::every_nth_of_lists(2)).names(),
      ElementsAre("blocks.0", "blocks.2"));
  EXPECT_THAT(
      ActivationCheckpointing(*net, units::by_name("head")).names(),
      ElementsAre("head"));
  EXPECT_THAT(ActivationCheckpointing(*net, units::none()).names(), IsEmpty());
}

TEST(ActivationCheckpointing, T08OnlyWhatIsTakenRunsAgain) {
  Net net;
  const ActivationCheckpointing run(*net, units::every_nth_of_lists(2));
  EXPECT_TRUE(run.takes(*net->blocks[2]));
  EXPECT_FALSE(run.takes(*net->blocks[1]));
  EXPECT_FALSE(run.takes(*net));
  std::vector<std::size_t> order;
  auto x = torch::ones({2, 4});
  for (std::size_t i = 0; i < net->blocks->size(); ++i) {
    const auto block = net->blocks->ptr<torch::nn::LinearImpl>(i);
    const auto copy = run;  // A value.
    x = copy(
        *block,
        [block, i, &order](const torch::Tensor& in) {
          order.push_back(i);
          return torch::tanh(block->forward(in));
        },
        x);
  }
  x.sum().backward();
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 2, 0));
}

}  // namespace
}  // namespace sherd
