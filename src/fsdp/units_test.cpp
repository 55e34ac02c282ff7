// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/units.h>

#include <gmock/gmock.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::units {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::nn::Linear;
using torch::nn::Module;

bool takes(
    const Policy& policy,
    const std::string& name,
    const Module& module,
    const Module* parent = nullptr,
    std::int64_t numel = 0) {
  return static_cast<bool>(policy({name, module, parent, numel}));
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

TEST(Units, OfTypeTakesSeveralClasses) {
  const Linear linear(2, 2);
  const torch::nn::Tanh tanh;
  const torch::nn::ReLU relu;
  const auto policy = of_type<torch::nn::LinearImpl, torch::nn::TanhImpl>();
  EXPECT_TRUE(takes(policy, "a", *linear));
  EXPECT_TRUE(takes(policy, "a", *tanh));
  EXPECT_FALSE(takes(policy, "a", *relu));
}

TEST(Units, AnAnswerIsMadeFromBoolAndFromOptions) {
  const Linear linear(2, 2);
  const Policy yes = [](const Candidate&) { return true; };
  const Policy kept = [](const Candidate&) {
    return UnitOptions{.keep_whole = true};
  };
  const Policy perhaps = [](const Candidate& candidate) -> Answer {
    return candidate.name == "a" ? Answer(UnitOptions{.name = "b"}) : false;
  };
  EXPECT_FALSE(yes({"a", *linear}).options().keep_whole);
  EXPECT_TRUE(kept({"a", *linear}).options().keep_whole);
  EXPECT_EQ(perhaps({"a", *linear}).options().name, "b");
  EXPECT_FALSE(perhaps({"c", *linear}));
}

TEST(Units, AnyOfTakesTheFirstAnswer) {
  const Linear linear(2, 2);
  const auto policy = any_of(
      {with_options(by_name("a"), {.name = "first"}),
       with_options(by_name("?"), {.name = "second"})});
  EXPECT_EQ(policy({"a", *linear}).options().name, "first");
  EXPECT_EQ(policy({"b", *linear}).options().name, "second");
  EXPECT_FALSE(policy({"head", *linear}));
}

TEST(Units, TogetherNamesTheUnitAfterItsModules) {
  const Linear linear(2, 2);
  const auto policy = together({"norm", "head"}, {.keep_whole = true});
  for (const auto* name : {"norm", "head"}) {
    EXPECT_EQ(policy({name, *linear}).options().name, "norm+head");
    EXPECT_TRUE(policy({name, *linear}).options().keep_whole);
  }
  EXPECT_FALSE(policy({"body", *linear}));
  EXPECT_THROW((void)together({}), Error);
  EXPECT_THROW((void)together({"a", "b"}, {.name = "c"}), Error);
}

TEST(Units, InsideMakesNoUnit) {
  const Linear linear(2, 2);
  const auto policy =
      inside(by_name("norm"), {.mixed_precision = MixedPrecision()});
  EXPECT_FALSE(policy({"norm", *linear}).options().own_unit);
  EXPECT_TRUE(policy({"norm", *linear}).options().mixed_precision);
  EXPECT_FALSE(policy({"head", *linear}));
}

std::vector<std::string> required_of(const Policy& policy) {
  std::vector<std::string> texts;
  for (const auto& required : policy.required()) {
    texts.push_back(required.text());
  }
  return texts;
}

TEST(Units, EachPartHasToTakeAModuleUnlessItIsOptional) {
  EXPECT_THAT(required_of(by_size(6)), ElementsAre("by_size(6)"));
  EXPECT_THAT(
      required_of(any_of(
          {children_of_lists(), optional(by_size(6)),
           inside(together({"norm", "head"}), {})})),
      ElementsAre(
          "children_of_lists()", "by_name(\"norm\")", "by_name(\"head\")"));
  EXPECT_THAT(required_of(none()), IsEmpty());
  EXPECT_THAT(
      required_of([](const Candidate&) { return true; }),
      ElementsAre("the policy"));
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
