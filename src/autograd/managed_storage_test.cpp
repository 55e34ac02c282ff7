// SPDX-License-Identifier: Apache-2.0
#include "autograd/managed_storage.h"

#include <thread>
#include <gmock/gmock.h>
#include <sherd/autograd/touch.h>
#include "autograd/param_key.h"
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

using ::testing::HasSubstr;

at::Tensor parameter(at::IntArrayRef sizes) {
  return at::randn(sizes).requires_grad_();
}

// ---- Raw access ----

TEST(RawAccess, OfAnEmptyStorageThrowsTheGivenSentence) {
  FakeUnitCache cache;
  const auto w = parameter({4, 4});
  cache.add_unit({w});
  const std::vector<std::function<void()>> accesses = {
      [&] { (void)w.data_ptr(); },
      [&] { (void)w.const_data_ptr<float>(); },
      [&] { (void)w.mutable_data_ptr<float>(); },
      [&] { (void)w.accessor<float, 2>(); },
      [&] { (void)w.storage().data(); },
      [&] { (void)w.storage().mutable_data(); },
      [&] { (void)w.t().const_data_ptr<float>(); },
      [&] { (void)w.contiguous().const_data_ptr<float>(); },
  };
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    cache.evict_all();
    EXPECT_THAT(thrown_by(accesses[i]), HasSubstr(FakeUnitCache::sentence(0)))
        << i;
  }
}

// As share_memory() of Python does.
TEST(ManagedStorage, FollowsBytesThatWereReplacedInPlace) {
  ManagedStorage managed(nullptr, 0, 0, 8, at::kCPU);
  const auto first = at::tensor({1.0F, 2.0F});
  managed.fill(first.mutable_data_ptr());
  const auto w = at::empty({0}).set_(managed.storage(), 0, {2}, {1});
  EXPECT_FALSE(managed.follow_replaced_bytes());
  const auto second = at::tensor({3.0F, 4.0F});
  auto* bytes = second.mutable_data_ptr();
  w.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
      at::DataPtr(bytes, at::kCPU));
  EXPECT_EQ(tag_of(w), nullptr);
  const auto owner = managed.follow_replaced_bytes();
  ASSERT_TRUE(owner);
  EXPECT_EQ(owner->get(), bytes);
  EXPECT_EQ(w.const_data_ptr(), bytes);
  EXPECT_NE(tag_of(w), nullptr);
}

TEST(RawAccess, WorksWithinTouchAndNotAfterIt) {
  FakeUnitCache cache;
  const auto w = at::tensor({1.0F, 2.0F}).requires_grad_();
  cache.add_unit({w});
  {
    const auto whole = sherd::touch(w);
    EXPECT_EQ(w.const_data_ptr<float>()[1], 2.0F);
    EXPECT_EQ(cache.pins(), 1);
  }
  EXPECT_EQ(cache.pins(), 0);
  EXPECT_FALSE(cache.whole(0));
  EXPECT_NE(thrown_by([&] { (void)w.const_data_ptr<float>(); }), "");
}

TEST(Touch, KeepsTheUnitThroughOperatorsOnOtherUnits) {
  FakeUnitCache cache(1);
  const auto a = at::tensor({1.0F, 2.0F}).requires_grad_();
  const auto b = at::tensor({3.0F, 4.0F}).requires_grad_();
  cache.add_unit({a});
  cache.add_unit({b});

  const auto whole = sherd::touch(a.narrow(0, 1, 1));
  const auto sum = b.sum();

  EXPECT_EQ(sum.item<float>(), 7.0F);
  EXPECT_TRUE(cache.whole(0));
  EXPECT_EQ(a.const_data_ptr<float>()[0], 1.0F);
}

TEST(Touch, DoesNothingOnPlainAndUndefinedTensors) {
  const auto plain = at::ones({2});
  const auto scope = sherd::touch(plain);
  const auto nothing = sherd::touch(at::Tensor());
  EXPECT_EQ(plain.const_data_ptr<float>()[0], 1.0F);
}

TEST(Touch, ThrowsWhatTheListenerThrowsAndLeavesNothingPinned) {
  FakeUnitCache cache;
  const auto w = parameter({2});
  cache.add_unit({w});
  cache.refuse_after(0, "no peer");
  EXPECT_EQ(thrown_by([&] { (void)sherd::touch(w); }), "no peer");
  EXPECT_EQ(cache.pins(), 0);
  EXPECT_EQ(cache.leaves(), 0);
}

// ---- Filling ----

TEST(Filling, MovesNoVersionCounter) {
  FakeUnitCache cache;
  const auto w = parameter({4});
  cache.add_unit({w});
  const auto before = w._version();
  for (int i = 0; i < 3; ++i) {
    (void)w.sum();
  }
  EXPECT_EQ(cache.fills(0), 3);
  EXPECT_EQ(w._version(), before);
}

TEST(Filling, LeavesTheSavedTensorCheckToRealWrites) {
  FakeUnitCache cache;
  const auto w = parameter({4});
  cache.add_unit({w});
  auto loss = (w * w).sum();
  EXPECT_EQ(thrown_by([&] { loss.backward(); }), "");

  loss = (w * w).sum();
  {
    const torch::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_THAT(
      thrown_by([&] { loss.backward(); }), HasSubstr("inplace operation"));
}

TEST(Filling, ShowsTheBytesAtTheirNewAddressToEveryView) {
  std::vector<float> here = {1, 2, 3, 4};
  std::vector<float> there = {5, 6, 7, 8};
  FakeUnitCache listener;  // Only needed for its key.
  ManagedStorage storage(nullptr, 0, 0, 16, at::kCPU);
  const auto w = parameter({2, 2});
  adopt(w, storage, 0, at::kFloat);
  const auto view = w.t();
  storage.fill(here.data());
  EXPECT_EQ(view.const_data_ptr<float>(), here.data());
  storage.fill(there.data());
  EXPECT_EQ(view.const_data_ptr<float>(), there.data());
  storage.empty("gone");
  EXPECT_THAT(
      thrown_by([&] { (void)view.const_data_ptr<float>(); }),
      HasSubstr("gone"));
}

TEST(Storage, IsRefusedToResizeAndKeepsItsUnit) {
  for (const bool trainable : {true, false}) {
    FakeUnitCache cache;
    const auto w = at::ones({4}).requires_grad_(trainable);
    cache.add_unit({w});
    const torch::NoGradGuard no_grad;
    EXPECT_NE(thrown_by([&] { w.resize_({400}); }), "") << trainable;
    EXPECT_TRUE(is_adopted(w, cache.storage(0)));
  }
}

TEST(Storage, BeforeItsFirstFillingThrowsInsteadOfCrashing) {
  FakeUnitCache listener;
  ManagedStorage storage(nullptr, 0, 0, 64, at::kCPU);
  const auto w = parameter({16});
  adopt(w, storage, 0, at::kFloat);
  EXPECT_THAT(
      thrown_by([&] { (void)w.const_data_ptr<float>(); }),
      HasSubstr("before its unit was filled"));
}

// A listener that forgets to fill is a bug, but never a read of address 0.
TEST(Storage, LeftEmptyByItsListenerThrowsFromTheKernel) {
  class Forgetful final : public ParameterUseListener {
   public:
    void begin_use(std::span<const ParameterUse>, const char*) override {}
    void end_use(std::span<const ParameterUse>) noexcept override {}
  } forgetful;
  install_param_key();
  ManagedStorage storage(&forgetful, 0, 0, 64, at::kCPU);
  storage.empty("still empty");
  const auto w = parameter({4, 4});
  adopt(w, storage, 0, at::kFloat);
  const std::vector<std::function<void()>> kernels = {
      [&] { (void)w.sum(); },
      [&] { (void)at::linear(at::ones({2, 4}), w); },
      [&] { (void)w.index({at::tensor({1})}); },
      [&] { (void)at::cat({w, w}); },
      [&] { (void)at::embedding(w, at::tensor({1, 2})); },
      [&] { (void)at::layer_norm(at::ones({4, 4}), {4, 4}, w, w); },
      [&] { (void)w.clone(); },
      [&] { (void)w.to(at::kDouble); },
      [&] { (void)w.item(); },
      [&] { w.detach().zero_(); },
  };
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    EXPECT_NE(thrown_by(kernels[i]), "") << "kernel " << i;
  }
}

// ---- The handle is gone ----

TEST(Orphan, IsAClearErrorFromOperatorsAndFromRawAccess) {
  FakeUnitCache cache;
  const auto w = parameter({4});
  cache.add_unit({w});
  const auto view = w.view({2, 2});
  cache.destroy_unit(0);
  EXPECT_THAT(
      thrown_by([&] { (void)w.sum(); }), HasSubstr("handle was destroyed"));
  EXPECT_THAT(
      thrown_by([&] { (void)view.mm(view); }),
      HasSubstr("handle was destroyed"));
  EXPECT_THAT(
      thrown_by([&] { (void)w.data_ptr(); }),
      HasSubstr("handle of this model was destroyed"));
  EXPECT_THAT(
      thrown_by([&] { (void)sherd::touch(w); }),
      HasSubstr("handle was destroyed"));
}

TEST(Orphan, IsFoundBeforeAnyOtherUnitIsEntered) {
  FakeUnitCache dead;
  FakeUnitCache alive;
  const auto a = parameter({4});
  const auto b = parameter({4});
  dead.add_unit({a});
  alive.add_unit({b});
  dead.destroy_unit(0);
  const auto error = thrown_by([&] { (void)at::add(b, a); });
  EXPECT_THAT(error, HasSubstr("handle was destroyed"));
  EXPECT_EQ(alive.enters(), alive.leaves());
  EXPECT_EQ(alive.pins(), 0);
}

TEST(Orphan, IsAnErrorInTheBackwardOfAnOlderGraph) {
  FakeUnitCache cache;
  const auto w = parameter({4, 4});
  cache.add_unit({w});
  const auto x = at::ones({2, 4}).requires_grad_();
  const auto loss = at::linear(x, w).sum();
  cache.destroy_unit(0);
  EXPECT_THAT(
      thrown_by([&] { loss.backward(); }), HasSubstr("handle was destroyed"));
}

TEST(Orphan, CanBeGivenBackToPlainLibTorch) {
  FakeUnitCache cache;
  const auto w = parameter({4});
  cache.add_unit({w});
  EXPECT_FALSE(is_disconnected(w));
  cache.destroy_unit(0);
  EXPECT_TRUE(is_disconnected(w));
  release(w, at::ones({4}));
  EXPECT_FALSE(is_disconnected(w));
  EXPECT_EQ(w.sum().item<float>(), 4.0F);
}

// ---- The tag's memory ----

TEST(Tag, NamesUnitFlatAndListenerOfAnyView) {
  FakeUnitCache listener;
  ManagedStorage storage(&listener, 7, 3, 64, at::kCPU);
  const auto w = parameter({4, 4});
  EXPECT_EQ(tag_of(w), nullptr);
  adopt(w, storage, 0, at::kFloat);
  for (const auto& t : {w, w.t(), w.detach(), w.narrow(0, 1, 1)}) {
    const auto* tag = tag_of(t);
    ASSERT_NE(tag, nullptr);
    EXPECT_EQ(tag->unit, 7);
    EXPECT_EQ(tag->flat, 3);
    EXPECT_EQ(tag->listener.load(), &listener);
  }
}

TEST(Tag, IsAbsentWithoutAStorage) {
  const auto sparse = at::ones({2, 2}).to_sparse();
  EXPECT_EQ(tag_of(sparse), nullptr);
}

TEST(Tag, LivesOnInTheStorageWhenTheHandleGoesFirst) {
  at::Tensor w = parameter({4});
  install_param_key();
  auto storage = std::make_unique<ManagedStorage>(nullptr, 5, 0, 16, at::kCPU);
  adopt(w, *storage, 0, at::kFloat);
  const auto* tag = tag_of(w);
  EXPECT_EQ(tag->references.load(), 2);
  storage.reset();
  ASSERT_EQ(tag_of(w), tag);
  EXPECT_EQ(tag->references.load(), 1);  // Freed with the last tensor.
  EXPECT_EQ(tag->unit, 5);
}

TEST(Tag, KeepsItsTwoReferencesThroughAnyNumberOfFillings) {
  std::vector<float> bytes(4);
  FakeUnitCache listener;
  ManagedStorage storage(nullptr, 0, 0, 16, at::kCPU);
  const auto w = parameter({4});
  adopt(w, storage, 0, at::kFloat);
  for (int i = 0; i < 10; ++i) {
    storage.fill(bytes.data());
    storage.fill(bytes.data());
    storage.empty("x");
    storage.empty("y");
  }
  EXPECT_EQ(tag_of(w)->references.load(), 2);
}

TEST(Tag, IsThereWhileAnotherThreadFillsTheStorage) {
  std::vector<float> bytes(4);
  FakeUnitCache listener;
  ManagedStorage storage(nullptr, 0, 0, 16, at::kCPU);
  const auto w = parameter({4});
  adopt(w, storage, 0, at::kFloat);
  std::atomic<bool> done = false;
  std::jthread other([&] {
    for (int i = 0; i < 1'000'000; ++i) {
      storage.fill(bytes.data());
    }
    done = true;
  });
  std::int64_t missing = 0;
  while (!done) {
    missing += tag_of(w) == nullptr ? 1 : 0;
  }
  EXPECT_EQ(missing, 0);
}

TEST(Tag, OutlivesTheTensorsAsLongAsTheHandle) {
  install_param_key();
  ManagedStorage storage(nullptr, 0, 0, 16, at::kCPU);
  at::Tensor w = parameter({4});
  adopt(w, storage, 0, at::kFloat);
  w.reset();
  std::vector<float> bytes(4);
  storage.fill(bytes.data());
  storage.empty("x");
  EXPECT_EQ(storage.storage().use_count(), 1U);
}

}  // namespace
}  // namespace sherd::autograd::testing
