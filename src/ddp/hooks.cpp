// SPDX-License-Identifier: Apache-2.0
#include <sherd/ddp/comm_hook.h>

#include <numeric>

#include "base/check.h"
#include "ddp/comm_hook_group.h"
#include "ddp/hook_step_counter.h"

namespace sherd {
namespace {

class AllReduceMean final : public CommHook {
 public:
  std::string name() const override { return "all_reduce_mean"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    if (bucket.cuts.empty()) {
      group.all_reduce_mean(bucket.gradients);
    } else {
      group.reduce_scatter_mean(bucket.gradients, bucket.cuts);
    }
  }
  bool reduces_to_shards() const override { return true; }
};

class Compress final : public CommHook {
 public:
  Compress(at::ScalarType dtype, CommHookPtr inner)
      : dtype_(dtype), inner_(std::move(inner)) {
    SHERD_CHECK(
        dtype == at::kBFloat16 || dtype == at::kHalf,
        "[ddp] compress: expected BFloat16 or Half, found ",
        c10::toString(dtype));
  }

  std::string name() const override {
    return str("compress(", c10::toString(dtype_), ", ", inner_->name(), ")");
  }

  void reduce(GradientBucket& bucket, HookGroup& group) override {
    GradientBucket narrow = bucket;
    narrow.gradients = bucket.gradients.to(dtype_);
    for (auto& parameter : narrow.parameters) {
      const auto& wide = parameter.gradient;
      parameter.gradient = narrow.gradients.as_strided(
          wide.sizes(), wide.strides(),
          wide.storage_offset() - bucket.gradients.storage_offset());
    }
    ddp::reduce_in_place(*inner_, narrow, group);
    bucket.gradients.copy_(narrow.gradients);
  }

  bool reduces_to_shards() const override {
    return inner_->reduces_to_shards();
  }
  bool keeps_models_equal() const override {
    return inner_->keeps_models_equal();
  }

  State state() const override { return inner_->state(); }
  void load(const State& state) override { inner_->load(state); }
  void reset() override { inner_->reset(); }

 private:
  const at::ScalarType dtype_;
  const CommHookPtr inner_;
};

class PostLocalSgd final : public CommHook {
 public:
  explicit PostLocalSgd(const PostLocalSgdOptions& options)
      : options_(options) {
    SHERD_CHECK(
        options.start_step >= 0 && options.group_size >= 1,
        "[ddp] post_local_sgd: expected start_step of at least 0 and "
        "group_size of at least 1, found ",
        options.start_step, " and ", options.group_size);
  }

  std::string name() const override { return "post_local_sgd"; }
  bool keeps_models_equal() const override { return false; }

  void reduce(GradientBucket& bucket, HookGroup& group) override {
    SHERD_CHECK(
        group.size() % options_.group_size == 0,
        "[ddp] post_local_sgd: expected a group_size that divides the ",
        group.size(), " ranks, found ", options_.group_size);
    if (steps_.at(bucket) < options_.start_step) {
      group.all_reduce_mean(bucket.gradients);
      return;
    }
    std::vector<int> ranks(static_cast<std::size_t>(options_.group_size));
    std::iota(
        ranks.begin(), ranks.end(),
        group.rank() / options_.group_size * options_.group_size);
    group.all_reduce_mean(bucket.gradients, ranks);
  }

  State state() const override {
    return {{ddp::HookStepCounter::kName, steps_.state()}};
  }
  void load(const State& state) override {
    SHERD_CHECK(
        state.size() == 1 && state[0].first == ddp::HookStepCounter::kName,
        "[ddp] post_local_sgd: expected state named step alone, found ",
        state.size(), " tensors");
    steps_.load(state[0].second);
  }
  void reset() override { steps_.reset(); }

 private:
  const PostLocalSgdOptions options_;
  ddp::HookStepCounter steps_;
};

}  // namespace

void CommHook::load(const State& state) {
  SHERD_CHECK(
      state.empty(), "[ddp] hook ", name(), " keeps no state, found ",
      state.size(), " tensors of it");
}

CommHookPtr all_reduce_mean() { return std::make_shared<AllReduceMean>(); }

CommHookPtr compress(at::ScalarType dtype, CommHookPtr inner) {
  return std::make_shared<Compress>(
      dtype, inner ? std::move(inner) : all_reduce_mean());
}

CommHookPtr post_local_sgd(const PostLocalSgdOptions& options) {
  return std::make_shared<PostLocalSgd>(options);
}

}  // namespace sherd
