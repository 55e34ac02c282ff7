// SPDX-License-Identifier: Apache-2.0
//
// A small engine for the tests of this folder: units of parameters whose bytes lie in a private
// copy and are put into the storages only while an operator needs them. Freed bytes are poisoned
// first, so that a stale pointer reads NaN, and each filling has another address. Thread rule:
// FakeUnitCache any thread; the rest one thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "autograd/managed_storage.h"

namespace sherd::autograd::testing {

// The calls of begin_use(), in order.
struct Announcement {
  std::string name;
  std::vector<int> units;  // One entry per argument used.
  bool written = false;    // Whether any of them is written.
};

class FakeUnitCache final : public ParameterUseListener {
 public:
  // After an operator, at most `whole_max` units keep their bytes: 1 is "one unit whole at a time";
  // with 0, units lose their bytes as soon as the operator ends.
  explicit FakeUnitCache(int whole_max = 0);
  ~FakeUnitCache() override = default;

  // Adopts the parameters into a new unit, empty at first; returns its number. With a dtype,
  // activations are cast to it.
  int add_unit(
      const std::vector<at::Tensor>& parameters,
      std::optional<at::ScalarType> dtype = std::nullopt,
      std::optional<at::ScalarType> outputs = std::nullopt);

  void begin_use(std::span<const ParameterUse> uses, const char* name) override;
  void end_use(std::span<const ParameterUse> uses) noexcept override;

  void set_whole_max(int whole_max);
  void evict_all();
  // begin_use() throws this text from the n-th next call on (0: the next call).
  void refuse_after(int calls, std::string text);
  void refuse_nothing();
  // Called with each operator's name within begin_use(), without the lock.
  std::function<void(const char*)> on_enter;

  std::vector<Announcement> take_log();
  // The log's length since the last take_log().
  int announced() const;
  int enters() const;
  int leaves() const;
  int fills(int unit) const;
  bool whole(int unit) const;
  int pins() const;  // The sum over the units.
  const ManagedStorage& storage(int unit) const;
  static std::string sentence(int unit);
  // Ends the unit, as the destruction of a handle does.
  void destroy_unit(int unit);

 private:
  struct Unit {
    std::unique_ptr<ManagedStorage> storage;
    at::Tensor backup;  // Bytes; stands for the shards of all ranks.
    at::Tensor bytes;   // Defined while whole.
    int pins = 0;
    int fills = 0;
    bool dirty = false;
  };
  void fill(Unit& unit);
  void evict(int number);
  void evict_down_to(int whole_max);

  mutable std::mutex mu_;
  std::vector<Unit> units_;  // This and the following are guarded by mu_.
  std::vector<Announcement> log_;
  int whole_max_;
  int enters_ = 0;
  int leaves_ = 0;
  int refuse_after_ = -1;
  std::string refusal_;
};

enum class UnitGrouping {
  kOneUnit,       // All parameters together.
  kPerChild,      // One per child module, and one for the module's own.
  kPerParameter,  // Each parameter by itself: the hardest case.
};

// Puts the module's parameters into units; tied ones belong to the first.
void adopt_module(
    torch::nn::Module& module, FakeUnitCache& cache, UnitGrouping grouping);

// Runs operators on one thread for its lifetime: tiny layers gain nothing from more threads, and on
// a busy machine their barriers cost seconds.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

// A module and the loss it is trained with; `loss` keeps its inputs.
struct Trainable {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor()> loss;
};

constexpr std::uint64_t kSeed = 20251;

// The loss first, then the gradient of each parameter, undefined if there was none.
using TrainingResult = std::vector<at::Tensor>;

// Seeds the generator, clears gradients, and runs forward and backward.
TrainingResult train_once(const Trainable& trainable);

// Compares bit for bit, including sparse layouts; says what differs.
::testing::AssertionResult bit_equal(
    const TrainingResult& a, const TrainingResult& b);
::testing::AssertionResult bit_equal(const at::Tensor& a, const at::Tensor& b);

// Claims that sharding changes no bit of the loss and gradients of `make()`, for each grouping,
// with no and with one unit whole between operators.
void expect_unchanged_when_sharded(const std::function<Trainable()>& make);

// The message of the exception that `call` throws, without LibTorch's backtrace; "" if it throws
// none.
std::string thrown_by(const std::function<void()>& call);

}  // namespace sherd::autograd::testing
