// SPDX-License-Identifier: Apache-2.0
//
// Operators outside namespace aten, which may use weights that are not among their arguments.
#include <gmock/gmock.h>
#include <torch/library.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tensor that scale_by_hidden uses without getting it as an argument.
at::Tensor& hidden() {
  static at::Tensor weight;
  return weight;
}

at::Tensor scale_by_hidden(const at::Tensor& x, const at::Tensor& w) {
  return x.mm(w).mm(hidden());
}

at::Tensor sum_of_list(at::TensorList tensors) {
  return at::stack(tensors).sum(0);
}

at::Tensor sum_of_some(const c10::List<std::optional<at::Tensor>>& tensors) {
  at::Tensor sum = at::zeros({2, 2});
  for (const std::optional<at::Tensor> t : tensors) {
    sum = t ? sum + *t : sum;
  }
  return sum;
}

at::Tensor scale_by_entry(
    const at::Tensor& x, const c10::Dict<std::string, at::Tensor>& entries) {
  return x * entries.at("w");
}

void fill_with_ones(at::Tensor w) {
  const torch::NoGradGuard no_grad;
  w.fill_(1);
}

// Reads its argument by pointer; the argument was announced, so the bytes are there.
double read_first(const at::Tensor& w) { return w.const_data_ptr<float>()[0]; }

TORCH_LIBRARY(sherd_test, library) {
  library.def("scale_by_hidden(Tensor x, Tensor w) -> Tensor");
  library.impl("scale_by_hidden", &scale_by_hidden);
  library.def("sum_of_list(Tensor[] tensors) -> Tensor");
  library.impl("sum_of_list", &sum_of_list);
  library.def("sum_of_some(Tensor?[] tensors) -> Tensor");
  library.impl("sum_of_some", &sum_of_some);
  library.def("scale_by_entry(Tensor x, Dict(str, Tensor) entries) -> Tensor");
  library.impl("scale_by_entry", &scale_by_entry);
  library.def("fill_with_ones(Tensor(a!) w) -> ()");
  library.impl("fill_with_ones", &fill_with_ones);
  library.def("read_first(Tensor w) -> float");
  library.impl("read_first", &read_first);
}

template <typename Result, typename... Args>
Result call(const char* name, Args... args) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Result(Args...)>()
      .call(args...);
}

at::Tensor ones() { return at::ones({2, 2}).requires_grad_(); }

class CustomOperator : public ::testing::Test {
 protected:
  CustomOperator() {
    cache.add_unit({a});
    cache.add_unit({b});
  }
  ~CustomOperator() override {
    hidden().reset();
    EXPECT_EQ(cache.pins(), 0);
    EXPECT_EQ(cache.enters(), cache.leaves());
  }
  at::Tensor a = ones();
  at::Tensor b = ones();
  FakeUnitCache cache;
};

TEST_F(CustomOperator, AnnouncesAWeightItHoldsByClosure) {
  hidden() = b;
  const auto x = ones();
  const auto y = call<at::Tensor, const at::Tensor&, const at::Tensor&>(
      "sherd_test::scale_by_hidden", x, a);
  EXPECT_EQ(y.sum().item<float>(), 16.0F);
  y.sum().backward();
  EXPECT_TRUE(at::equal(a.grad(), at::full({2, 2}, 4.0F)));
  EXPECT_TRUE(at::equal(b.grad(), at::full({2, 2}, 4.0F)));
}

TEST_F(CustomOperator, KeepsItsArgumentsWholeWhileItsInnerOperatorsRun) {
  hidden() = b;
  std::vector<bool> whole;
  cache.on_enter = [&](const char*) { whole.push_back(cache.whole(0)); };
  (void)call<at::Tensor, const at::Tensor&, const at::Tensor&>(
      "sherd_test::scale_by_hidden", at::ones({2, 2}), a);
  // Before the operator; before mm(a); before mm(b).
  EXPECT_THAT(whole, ElementsAre(false, true, true));
}

TEST_F(CustomOperator, OnAListAnnouncesAllOfItAtOnce) {
  const std::vector<at::Tensor> list = {a, at::ones({2, 2}), b.t()};
  const auto y = call<at::Tensor, at::TensorList>(
      "sherd_test::sum_of_list", at::TensorList(list));
  EXPECT_EQ(y.sum().item<float>(), 12.0F);
  EXPECT_THAT(cache.take_log()[0].units, ElementsAre(0, 1));
}

TEST_F(CustomOperator, OnAListWithGapsAnnouncesWhatFollowsThem) {
  c10::List<std::optional<at::Tensor>> list;
  list.push_back(std::nullopt);
  list.push_back(a);
  list.push_back(std::nullopt);
  list.push_back(b);
  const auto y = call<at::Tensor, const c10::List<std::optional<at::Tensor>>&>(
      "sherd_test::sum_of_some", list);
  EXPECT_EQ(y.sum().item<float>(), 8.0F);
  EXPECT_THAT(cache.take_log()[0].units, ElementsAre(0, 1));
}

TEST_F(CustomOperator, OnADictionaryAnnouncesItsValues) {
  c10::Dict<std::string, at::Tensor> entries;
  entries.insert("w", b);
  (void)call<
      at::Tensor, const at::Tensor&, const c10::Dict<std::string, at::Tensor>&>(
      "sherd_test::scale_by_entry", a, entries);
  EXPECT_THAT(cache.take_log()[0].units, ElementsAre(0, 1));
}

TEST_F(CustomOperator, OnADictionaryAloneIsSavedByItsInnerOperators) {
  c10::Dict<std::string, at::Tensor> entries;
  entries.insert("w", b);
  const auto y = call<
      at::Tensor, const at::Tensor&, const c10::Dict<std::string, at::Tensor>&>(
      "sherd_test::scale_by_entry", at::ones({2, 2}), entries);
  EXPECT_EQ(y.sum().item<float>(), 4.0F);
}

TEST_F(CustomOperator, ThatWritesIsFlagged) {
  call<void, at::Tensor>("sherd_test::fill_with_ones", a);
  const auto log = cache.take_log();
  EXPECT_EQ(log[0].name, "sherd_test::fill_with_ones");
  EXPECT_TRUE(log[0].written);
}

TEST_F(CustomOperator, MayReadItsArgumentByPointer) {
  EXPECT_EQ(
      (call<double, const at::Tensor&>("sherd_test::read_first", a)), 1.0);
  EXPECT_THAT(
      thrown_by([&] { (void)read_first(a); }),
      HasSubstr(FakeUnitCache::sentence(0)));
}

TEST_F(CustomOperator, ThatThrowsInsideLeavesEveryLevel) {
  hidden() = at::ones({3, 3});
  EXPECT_NE(
      thrown_by([&] {
        (void)call<at::Tensor, const at::Tensor&, const at::Tensor&>(
            "sherd_test::scale_by_hidden", at::ones({2, 2}), a);
      }),
      "");
  hidden() = b;
  cache.refuse_after(2, "inner refusal");
  EXPECT_EQ(
      thrown_by([&] {
        (void)call<at::Tensor, const at::Tensor&, const at::Tensor&>(
            "sherd_test::scale_by_hidden", at::ones({2, 2}), a);
      }),
      "inner refusal");
  cache.refuse_nothing();
}

}  // namespace
}  // namespace sherd::autograd::testing
