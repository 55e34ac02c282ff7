// SPDX-License-Identifier: Apache-2.0
#include "autograd/testing.h"

#include <algorithm>
#include <cstring>
#include <set>
#include "autograd/param_key.h"
#include "base/copy_bytes.h"

namespace sherd::autograd::testing {

FakeUnitCache::FakeUnitCache(int whole_max) : whole_max_(whole_max) {
  install_param_key();
}

int FakeUnitCache::add_unit(
    const std::vector<at::Tensor>& parameters,
    std::optional<at::ScalarType> dtype,
    std::optional<at::ScalarType> outputs) {
  const auto type = dtype.value_or(parameters.front().scalar_type());
  const auto item = static_cast<std::int64_t>(at::elementSize(type));
  const std::int64_t align = 64 / item;
  std::int64_t numel = 0;
  for (const auto& p : parameters) {
    numel += (p.numel() + align - 1) / align * align;
  }
  const int number = static_cast<int>(units_.size());
  Unit unit;
  unit.storage = std::make_unique<ManagedStorage>(
      this, number, /*flat=*/0, numel * item, c10::Device(at::kCPU),
      ActivationCasts{.inputs = dtype.has_value(), .outputs = outputs});
  unit.backup = at::zeros({numel * item}, at::kByte);
  std::int64_t offset = 0;
  for (const auto& p : parameters) {
    const auto values = p.detach().clone().to(type).contiguous();
    copy_bytes(
        unit.backup.mutable_data_ptr<std::uint8_t>() + offset * item,
        values.const_data_ptr(), values.nbytes());
    adopt(p, *unit.storage, offset, type);
    offset += (p.numel() + align - 1) / align * align;
  }
  unit.storage->empty(sentence(number));
  const std::lock_guard lock(mu_);
  units_.push_back(std::move(unit));
  return number;
}

void FakeUnitCache::begin_use(
    std::span<const ParameterUse> uses, const char* name) {
  if (on_enter) {
    on_enter(name);
  }
  const std::lock_guard lock(mu_);
  if (refuse_after_ == 0) {
    throw std::runtime_error(refusal_);
  }
  refuse_after_ -= refuse_after_ > 0 ? 1 : 0;
  ++enters_;
  Announcement announcement{.name = name, .units = {}};
  for (const ParameterUse& use : uses) {
    auto& unit = units_.at(static_cast<std::size_t>(use.tag->unit));
    fill(unit);
    ++unit.pins;
    unit.dirty = unit.dirty || use.written;
    announcement.units.push_back(use.tag->unit);
    announcement.written = announcement.written || use.written;
  }
  log_.push_back(std::move(announcement));
  evict_down_to(whole_max_);
}

void FakeUnitCache::end_use(std::span<const ParameterUse> uses) noexcept {
  const std::lock_guard lock(mu_);
  ++leaves_;
  for (const ParameterUse& use : uses) {
    --units_.at(static_cast<std::size_t>(use.tag->unit)).pins;
  }
  evict_down_to(whole_max_);
}

void FakeUnitCache::fill(Unit& unit) {
  if (unit.bytes.defined()) {
    return;
  }
  unit.bytes = at::empty_like(unit.backup);
  copy_bytes(
      unit.bytes.mutable_data_ptr(), unit.backup.const_data_ptr(),
      unit.backup.nbytes());
  unit.storage->fill(unit.bytes.mutable_data_ptr());
  ++unit.fills;
}

void FakeUnitCache::evict(int number) {
  auto& unit = units_.at(static_cast<std::size_t>(number));
  if (unit.dirty) {
    copy_bytes(
        unit.backup.mutable_data_ptr(), unit.bytes.const_data_ptr(),
        unit.backup.nbytes());
    unit.dirty = false;
  }
  constexpr int kPoison = 0xff;  // NaN in every floating-point type.
  if (unit.bytes.numel() > 0) {
    std::memset(unit.bytes.mutable_data_ptr(), kPoison, unit.bytes.nbytes());
  }
  unit.storage->empty(sentence(number));
  unit.bytes.reset();
}

void FakeUnitCache::evict_down_to(int whole_max) {
  auto count = std::count_if(
      units_.begin(), units_.end(),
      [](const Unit& unit) { return unit.bytes.defined(); });
  for (std::size_t i = 0; i < units_.size() && count > whole_max; ++i) {
    if (units_[i].bytes.defined() && units_[i].pins == 0) {
      evict(static_cast<int>(i));
      --count;
    }
  }
}

void FakeUnitCache::set_whole_max(int whole_max) {
  const std::lock_guard lock(mu_);
  whole_max_ = whole_max;
  evict_down_to(whole_max);
}

void FakeUnitCache::evict_all() {
  const std::lock_guard lock(mu_);
  evict_down_to(0);
}

void FakeUnitCache::refuse_after(int calls, std::string text) {
  const std::lock_guard lock(mu_);
  refuse_after_ = calls;
  refusal_ = std::move(text);
}

void FakeUnitCache::refuse_nothing() { refuse_after(-1, ""); }

std::vector<Announcement> FakeUnitCache::take_log() {
  const std::lock_guard lock(mu_);
  return std::exchange(log_, {});
}

int FakeUnitCache::announced() const {
  const std::lock_guard lock(mu_);
  return static_cast<int>(log_.size());
}

int FakeUnitCache::enters() const {
  const std::lock_guard lock(mu_);
  return enters_;
}

int FakeUnitCache::leaves() const {
  const std::lock_guard lock(mu_);
  return leaves_;
}

int FakeUnitCache::fills(int unit) const {
  const std::lock_guard lock(mu_);
  return units_.at(static_cast<std::size_t>(unit)).fills;
}

bool FakeUnitCache::whole(int unit) const {
  const std::lock_guard lock(mu_);
  return units_.at(static_cast<std::size_t>(unit)).bytes.defined();
}

int FakeUnitCache::pins() const {
  const std::lock_guard lock(mu_);
  int sum = 0;
  for (const Unit& unit : units_) {
    sum += unit.pins;
  }
  return sum;
}

const ManagedStorage& FakeUnitCache::storage(int unit) const {
  return *units_.at(static_cast<std::size_t>(unit)).storage;
}

std::string FakeUnitCache::sentence(int unit) {
  return "sherd test: unit " + std::to_string(unit) +
      " is not here; read it within sherd::touch()";
}

void FakeUnitCache::destroy_unit(int unit) {
  const std::lock_guard lock(mu_);
  units_.at(static_cast<std::size_t>(unit)).storage.reset();
}

void adopt_module(
    torch::nn::Module& module, FakeUnitCache& cache, UnitGrouping grouping) {
  std::set<at::TensorImpl*> seen;
  const auto fresh = [&seen](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> found;
    for (const auto& p : parameters) {
      if (seen.insert(p.unsafeGetTensorImpl()).second) {
        found.push_back(p);
      }
    }
    return found;
  };
  std::vector<std::vector<at::Tensor>> groups;
  if (grouping == UnitGrouping::kPerChild) {
    for (const auto& child : module.children()) {
      groups.push_back(fresh(child->parameters()));
    }
  }
  if (grouping == UnitGrouping::kPerParameter) {
    for (const auto& p : fresh(module.parameters())) {
      groups.push_back({p});
    }
  } else {
    groups.push_back(fresh(module.parameters()));
  }
  for (const auto& group : groups) {
    if (!group.empty()) {
      cache.add_unit(group);
    }
  }
}

TrainingResult train_once(const Trainable& trainable) {
  torch::manual_seed(kSeed);
  for (const auto& p : trainable.module->parameters()) {
    p.mutable_grad().reset();
  }
  const auto loss = trainable.loss();
  loss.backward();
  TrainingResult outcome{loss.detach().clone()};
  for (const auto& p : trainable.module->parameters()) {
    outcome.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
  }
  return outcome;
}

::testing::AssertionResult bit_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) {
    return ::testing::AssertionFailure() << "only one is defined";
  }
  if (!a.defined()) {
    return ::testing::AssertionSuccess();
  }
  if (a.is_sparse() != b.is_sparse() || a.dtype() != b.dtype()) {
    return ::testing::AssertionFailure()
        << a.toString() << " against " << b.toString();
  }
  if (a.is_sparse()) {
    const auto x = a.coalesce();
    const auto y = b.coalesce();
    if (!at::equal(x.indices(), y.indices())) {
      return ::testing::AssertionFailure() << "other rows";
    }
    return bit_equal(x.values(), y.values());
  }
  if (!at::equal(a, b)) {
    return ::testing::AssertionFailure()
        << "largest difference "
        << (a.sizes() == b.sizes() ? (a - b).abs().max().item<double>() : -1);
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult bit_equal(
    const TrainingResult& a, const TrainingResult& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " and " << b.size();
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (auto equal = bit_equal(a[i], b[i]); !equal) {
      return equal << " at " << (i == 0 ? "the loss" : "gradient ") << i;
    }
  }
  return ::testing::AssertionSuccess();
}

void expect_unchanged_when_sharded(const std::function<Trainable()>& make) {
  const auto made = [&make] {
    torch::manual_seed(kSeed);
    return make();
  };
  const OneThread one_thread;
  const TrainingResult expected = train_once(made());
  for (const UnitGrouping grouping :
       {UnitGrouping::kOneUnit, UnitGrouping::kPerChild,
        UnitGrouping::kPerParameter}) {
    FakeUnitCache cache;
    const Trainable sharded = made();
    adopt_module(*sharded.module, cache, grouping);
    for (const int whole_max : {0, 1}) {
      SCOPED_TRACE(
          ::testing::Message()
          << "seed " << kSeed << ", grouping " << static_cast<int>(grouping)
          << ", units whole " << whole_max);
      cache.set_whole_max(whole_max);
      EXPECT_TRUE(bit_equal(train_once(sharded), expected));
      EXPECT_TRUE(bit_equal(train_once(sharded), expected)) << "second step";
    }
    EXPECT_GT(cache.fills(0), 1);  // The units really came and went.
    EXPECT_EQ(cache.pins(), 0);
    EXPECT_EQ(cache.enters(), cache.leaves());
  }
}

std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace sherd::autograd::testing
