// SPDX-License-Identifier: Apache-2.0
#include <sherd/autograd/checkpoint.h>

#include <cstdint>
#include <mutex>
#include <c10/util/DimVector.h>
#include <torch/csrc/autograd/saved_variable.h>
#include "autograd/backward.h"
#include "autograd/forward_state.h"
#include "autograd/managed_storage.h"
#include "autograd/saved_tensors.h"
#include "base/check.h"

namespace sherd::autograd {
namespace {

// What must be equal in the forward and in its recomputation.
struct TensorMetadata {
  c10::DimVector sizes;
  at::ScalarType dtype;
  at::Device device;

  bool operator==(const TensorMetadata&) const = default;
};

TensorMetadata metadata_of(const at::Tensor& tensor) {
  return {
      c10::DimVector(tensor.sizes()), tensor.scalar_type(), tensor.device()};
}

std::string text_of(const TensorMetadata& kind) {
  return str(
      c10::toString(kind.dtype), " ", at::IntArrayRef(kind.sizes), " on ",
      kind.device.str());
}

// Parameters and their views live anyway: keeping them costs nothing and needs no recomputation.
bool is_parameter_or_view(const at::Tensor& tensor) {
  const at::TensorBase& owner = tensor.is_view() ? tensor._base() : tensor;
  return tag_of(tensor) != nullptr ||
      (owner.is_leaf() && owner.requires_grad());
}

// The elements of a tensor that autograd saved. LibTorch checks that they have not changed since only
// if a tensor has no hooks.
class SavedElements {
 public:
  SavedElements() = default;
  explicit SavedElements(const at::Tensor& tensor)
      : tensor_(tensor.tensor_data()),  // Shares the version with the tensor.
        version_(tensor._version()) {}

  bool defined() const { return tensor_.defined(); }
  // Throws Error if an operator has changed them in place. `what`: "tensor" or "parameter".
  const at::Tensor& unpack(const char* what) const {
    SHERD_CHECK_AS(
        kFailedPrecondition, tensor_._version() == version_,
        "[autograd] checkpoint: a ", what, " of shape ", tensor_.sizes(),
        " was changed between forward and backward: expected version ",
        version_, ", found ", tensor_._version());
    return tensor_;
  }

 private:
  at::Tensor tensor_;
  std::int64_t version_ = 0;
};

// A tensor that the forward saved.
struct SavedTensorSlot {
  TensorMetadata kind;
  bool awaited;  // Some node may still ask for it.
  SavedElements
      elements;  // Defined from a recomputation until a node takes them.
};

// Ends a recomputation early. Not a std::exception, which fn might catch.
struct StopRecomputation {};

// Collects the tensors that fn saves when it is run again, in order.
class Recomputation {
 public:
  enum class ForwardStatus { kComplete, kUnderWay };

  Recomputation(
      std::vector<SavedTensorSlot> slots, ForwardStatus first, bool early_stop)
      : slots_(std::move(slots)), first_(first), early_stop_(early_stop) {
    for (auto& slot : slots_) {
      slot.awaited = slot.awaited && !slot.elements.defined();
      slot.elements = {};
      missing_ += slot.awaited ? 1 : 0;
    }
  }

  void take(const at::Tensor& tensor, const SavedElements& elements) {
    const auto number = taken_++;
    if (number >= slots_.size()) {
      SHERD_CHECK(
          stopped_ || first_ == ForwardStatus::kUnderWay,
          "[autograd] checkpoint: expected that fn saves ", slots_.size(),
          " tensors when it is run again, as at first, found more", kRule);
      return;
    }
    auto& slot = slots_[number];
    const auto kind = metadata_of(tensor);
    SHERD_CHECK(
        kind == slot.kind, "[autograd] checkpoint: expected that fn saves ",
        text_of(slot.kind), " as tensor ", number + 1, " of ", slots_.size(),
        " when it is run again, as at first, found ", text_of(kind), kRule);
    if (!slot.awaited) {
      return;
    }
    slot.elements = elements;
    if (--missing_ == 0 && early_stop_) {
      stopped_ = true;
      throw StopRecomputation();
    }
  }

  // The tensors taken, in the slots that awaited one. REQUIRES: fn has ended.
  std::vector<SavedTensorSlot> finish() {
    SHERD_CHECK(
        missing_ == 0 &&
            (stopped_ || first_ == ForwardStatus::kUnderWay ||
             taken_ == slots_.size()),
        "[autograd] checkpoint: expected that fn saves ", slots_.size(),
        " tensors when it is run again, as at first, found ", taken_, kRule);
    return std::move(slots_);
  }

 private:
  static constexpr const char* kRule =
      "; it must do the same each time, whatever else has changed";

  std::vector<SavedTensorSlot> slots_;
  const ForwardStatus first_;
  const bool early_stop_;
  std::size_t missing_ = 0;
  std::size_t taken_ = 0;
  bool stopped_ = false;
};

// The hooks of a tensor in the graph of a recomputation, which is dropped with it. They keep the
// tensor, because fn may itself run backwards.
class RecomputedTensorHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit RecomputedTensorHooks(Recomputation* run) : run_(run) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    elements_ = SavedElements(tensor);
    run_->take(tensor, elements_);
  }
  at::Tensor call_unpack_hook() override { return elements_.unpack("tensor"); }

 private:
  Recomputation* const run_;  // Packing follows making, within the run.
  SavedElements elements_;
};

// One call of checkpoint(): how to run it again, and slots for the tensors that autograd would have
// kept of the forward. The nodes of its graph own it. Thread rule: any thread.
class CheckpointedRegion {
 public:
  CheckpointedRegion(
      CheckpointedForward::Recompute recompute,
      const std::vector<at::Tensor>& inputs,
      const CheckpointOptions& options)
      : recompute_(std::move(recompute)),
        state_(ForwardState::now(
            options.preserve_rng_state ? ForwardState::Generators::kPreserve
                                       : ForwardState::Generators::kIgnore,
            inputs)),
        early_stop_(options.early_stop) {
    for (const auto& input : inputs) {
      const bool defined = input.defined();
      // Saved as a node would save it, so that an enclosing region takes it. Detached, because an
      // input may become part of this graph, in place.
      inputs_.push_back(
          {torch::autograd::SavedVariable(
               defined ? input.detach() : input, /*is_output=*/false),
           defined && input.requires_grad()});
    }
  }

  // Returns the number of the new slot. kLater: some node will ask for it.
  enum class Unpack { kLater, kNever };
  std::size_t add(const at::Tensor& tensor, Unpack asked) {
    const std::lock_guard lock(mu_);
    slots_.push_back({metadata_of(tensor), asked == Unpack::kLater, {}});
    return slots_.size() - 1;
  }

  // The node was destroyed or will not ask again.
  void forget(std::size_t number) {
    const std::lock_guard lock(mu_);
    slots_[number].awaited = false;
    slots_[number].elements = {};
  }

  void complete() {
    const std::lock_guard lock(mu_);
    first_ = Recomputation::ForwardStatus::kComplete;
  }

  // A tensor is returned once; on a second request (retain_graph) fn runs again.
  at::Tensor take(std::size_t number) {
    {
      const std::lock_guard lock(mu_);
      if (const auto found = std::exchange(slots_[number].elements, {});
          found.defined()) {
        return found.unpack("tensor");
      }
    }
    return run_for(number).unpack("tensor");
  }

 private:
  struct Input {
    torch::autograd::SavedVariable tensor;
    bool requires_grad;
  };

  std::vector<at::Tensor> unpack_inputs() const {
    std::vector<at::Tensor> inputs;
    for (const auto& input : inputs_) {
      const auto tensor = input.tensor.unpack();
      inputs.push_back(
          tensor.defined()
              ? tensor.detach().set_requires_grad(input.requires_grad)
              : tensor);
    }
    return inputs;
  }

  // Another thread's run may have found the tensor since this thread missed it.
  Recomputation begin(std::size_t number) {
    const std::lock_guard lock(mu_);
    auto slots = slots_;
    slots[number].awaited = true;
    slots[number].elements = {};
    return {std::move(slots), first_, early_stop_};
  }

  // fn runs without the lock, because it may wait for other ranks, and other threads may run it at
  // the same time.
  SavedElements run_for(std::size_t number) {
    auto run = begin(number);
    {
      const auto inputs = unpack_inputs();
      const ForwardState::Scope state(state_);
      const SavedTensorHookScope scope(
          [&run] { return std::make_unique<RecomputedTensorHooks>(&run); });
      try {
        recompute_(inputs);
      } catch (
          const StopRecomputation&) {  // NOLINT(bugprone-empty-catch): as wanted.
      }
    }
    auto found = run.finish();
    const std::lock_guard lock(mu_);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i != number && slots_[i].awaited && found[i].elements.defined()) {
        slots_[i].elements = std::move(found[i].elements);
      }
    }
    return std::move(found[number].elements);
  }

  const CheckpointedForward::Recompute recompute_;
  const ForwardState state_;
  const bool early_stop_;
  std::vector<Input> inputs_;
  std::mutex mu_;
  std::vector<SavedTensorSlot> slots_;  // Guarded by mu_.
  // Guarded by mu_.
  Recomputation::ForwardStatus first_ = Recomputation::ForwardStatus::kUnderWay;
};

// The hooks of a tensor in the graph of the forward.
class CheckpointedTensorHooks final
    : public torch::autograd::SavedVariableHooks {
 public:
  explicit CheckpointedTensorHooks(std::shared_ptr<CheckpointedRegion> region)
      : region_(std::move(region)) {}
  ~CheckpointedTensorHooks() override {
    if (packed_) {
      region_->forget(slot_);
    }
  }
  CheckpointedTensorHooks(const CheckpointedTensorHooks&) = delete;
  CheckpointedTensorHooks& operator=(const CheckpointedTensorHooks&) = delete;

  void call_pack_hook(const at::Tensor& tensor) override {
    if (is_parameter_or_view(tensor)) {
      kept_ = SavedElements(tensor);
    }
    slot_ = region_->add(
        tensor,
        kept_.defined() ? CheckpointedRegion::Unpack::kNever
                        : CheckpointedRegion::Unpack::kLater);
    packed_ = true;
  }

  at::Tensor call_unpack_hook() override {
    return kept_.defined() ? kept_.unpack("parameter") : region_->take(slot_);
  }

 private:
  const std::shared_ptr<CheckpointedRegion> region_;
  bool packed_ = false;
  std::size_t slot_ = 0;
  SavedElements kept_;
};

}  // namespace

struct CheckpointedForward::State {
  explicit State(std::shared_ptr<CheckpointedRegion> forward)
      : region(std::move(forward)), scope([this] {
          return std::make_unique<CheckpointedTensorHooks>(region);
        }) {}
  const std::shared_ptr<CheckpointedRegion> region;
  const SavedTensorHookScope scope;
};

CheckpointedForward::CheckpointedForward(
    Recompute recompute,
    const std::vector<at::Tensor>& inputs,
    const CheckpointOptions& options) {
  if (!records_gradients()) {
    return;
  }
  SHERD_CHECK_AS(
      kFailedPrecondition, install_backward_engine(),
      "[autograd] checkpoint: expected sherd's autograd engine or LibTorch's "
      "own, found another (a Python process installs one); there use "
      "torch.utils.checkpoint");
  state_ = std::make_unique<State>(std::make_shared<CheckpointedRegion>(
      std::move(recompute), inputs, options));
}

CheckpointedForward::~CheckpointedForward() {
  if (state_ != nullptr) {
    state_->region->complete();
  }
}

}  // namespace sherd::autograd
