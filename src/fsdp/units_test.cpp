// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/units.h>

#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::units {
namespace {

using torch::nn::Linear;
using torch::nn::Module;

bool takes(
    const Policy& policy,
    const std::string& name,
    const Module& module,
    const Module* parent = nullptr,
    std::int64_t numel = 0) {
  return policy({name, module, parent, numel});
}

TEST(Units, ChildrenOfListsAreThoseOfModuleListAndSequential) {
  const Linear leaf(2, 2);
  const torch::nn::ModuleList list(leaf);
  const torch::nn::Sequential sequential(leaf);
  const torch::nn::ModuleDict dict;
  const auto policy = children_of_lists();
  EXPECT_TRUE(takes(policy, "h.0", *leaf, list.get()));
  EXPECT_TRUE(takes(policy, "h.0", *leaf, sequential.get()));
  EXPECT_FALSE(takes(policy, "h.0", *leaf, dict.get()));
  EXPECT_FALSE(takes(policy, "h.0", *leaf, leaf.get()));
  EXPECT_FALSE(takes(policy, "", *list));
}

TEST(Units, EveryNthOfListsCountsPlacesWhateverTheNames) {
  const torch::nn::Sequential named(
      {{"a", torch::nn::AnyModule(Linear(2, 2))},
       {"b", torch::nn::AnyModule(Linear(2, 2))},
       {"c", torch::nn::AnyModule(Linear(2, 2))}});
  const auto children = named->named_children();
  const auto policy = every_nth_of_lists(2);
  EXPECT_TRUE(takes(policy, "x.a", *children["a"], named.get()));
  EXPECT_FALSE(takes(policy, "x.b", *children["b"], named.get()));
  EXPECT_TRUE(takes(policy, "x.c", *children["c"], named.get()));
  EXPECT_FALSE(takes(policy, "x", *named));
  EXPECT_TRUE(takes(every_nth_of_lists(1), "x.b", *children["b"], named.get()));
  EXPECT_THROW((void)every_nth_of_lists(0), Error);
}

TEST(Units, OfTypeLooksAtTheImplClass) {
  const Linear linear(2, 2);
  const torch::nn::Tanh tanh;
  const auto policy = of_type<torch::nn::LinearImpl>();
  EXPECT_TRUE(takes(policy, "a", *linear));
  EXPECT_FALSE(takes(policy, "a", *tanh));
}

TEST(Units, BySizeCountsWhatIsLeftAndLeavesListsAlone) {
  const Linear linear(2, 2);
  const torch::nn::ModuleList list(linear);
  const auto policy = by_size(6);
  EXPECT_TRUE(takes(policy, "a", *linear, nullptr, 6));
  EXPECT_FALSE(takes(policy, "a", *linear, nullptr, 5));
  EXPECT_FALSE(takes(policy, "a", *list, nullptr, 100));
}

TEST(Units, NonePicksNothing) {
  const Linear linear(2, 2);
  EXPECT_FALSE(takes(none(), "a", *linear, linear.get(), 1000));
}

struct Glob {
  std::string pattern;
  std::string name;
  bool matches;
};

TEST(Units, ByNameKnowsStarAndQuestionMarkWithinADot) {
  const Linear linear(2, 2);
  for (const auto& glob : std::vector<Glob>{
           {"h.*", "h.3", true},
           {"h.*", "h.3.attn", false},
           {"h.*", "h", false},
           {"h.*", "hh.3", false},
           {"h.*.attn", "h.12.attn", true},
           {"*", "head", true},
           {"*", "", true},
           {"*", "a.b", false},
           {"*.*", "a.b", true},
           {"encoder.layer?", "encoder.layer4", true},
           {"encoder.layer?", "encoder.layer", false},
           {"encoder.layer?", "encoder.layer12", false},
           {"a?b", "a.b", false},
           {"**x*", "xx", true},
           {"a*b*c", "aXbbXc", true},
           {"a*b*c", "aXbbX", false},
           {"", "", true},
           {"", "a", false}}) {
    EXPECT_EQ(takes(by_name(glob.pattern), glob.name, *linear), glob.matches)
        << "'" << glob.pattern << "' and '" << glob.name << "'";
  }
}

}  // namespace
}  // namespace sherd::units
