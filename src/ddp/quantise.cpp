// SPDX-License-Identifier: Apache-2.0
// Gradients as int8. One message per bucket: the scales of all parameters, then their elements.
#include <map>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <sherd/ddp/comm_hook.h>

#include "base/check.h"
#include "ddp/quantised_rows.h"

namespace sherd {
namespace {

using ddp::QuantisedRows;

constexpr const char* kError = "error.";

class Quantise final : public CommHook {
 public:
  explicit Quantise(const QuantiseOptions& options) : options_(options) {}

  std::string name() const override {
    return options_.scale == QuantisationScale::kTensor
        ? "quantise(per tensor)"
        : "quantise(per channel)";
  }

  void reduce(GradientBucket& bucket, HookGroup& group) override {
    std::vector<QuantisedRows> places;
    const auto message = make_message(bucket, places);
    for (std::size_t p = 0; p < places.size(); ++p) {
      write(bucket.parameters[p], places[p], message);
    }
    const auto all = group.all_gather(message);
    for (std::size_t p = 0; p < places.size(); ++p) {
      auto gradient = bucket.parameters[p].gradient;
      auto sum = at::Tensor();
      for (const auto& theirs : all) {
        const auto values = places[p].values(theirs);
        sum = sum.defined() ? sum.add_(values) : values;
      }
      gradient.copy_(sum.div_(group.size()).view(gradient.sizes()));
    }
  }

  State state() const override {
    State state;
    for (const auto& [name, error] : errors_) {
      state.emplace_back(kError + name, error);
    }
    return state;
  }

  void load(const State& state) override {
    std::map<std::string, at::Tensor> loaded;
    for (const auto& [name, tensor] : state) {
      SHERD_CHECK(
          name.starts_with(kError),
          "[ddp] quantise: expected state named error.*, found '", name, "'");
      // It stays on the CPU until its gradient comes and shows the device.
      loaded[name.substr(std::string(kError).size())] =
          tensor.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    }
    errors_ = std::move(loaded);
  }

 private:
  at::Tensor make_message(
      const GradientBucket& bucket, std::vector<QuantisedRows>& places) const {
    std::int64_t bytes = 0;
    for (const auto& parameter : bucket.parameters) {
      const auto& gradient = parameter.gradient;
      const bool by_channel = options_.scale == QuantisationScale::kChannel &&
          gradient.dim() > 1 && gradient.numel() > 0;
      const auto rows = by_channel ? gradient.size(0) : 1;
      places.push_back(
          {.rows = rows,
           .columns = gradient.numel() / rows,
           .scales_begin = bytes});
      bytes += rows * QuantisedRows::kScaleBytes;
    }
    for (auto& place : places) {
      place.elements_begin = bytes;
      bytes += place.rows * place.columns;
    }
    return at::empty({bytes}, bucket.gradients.options().dtype(at::kByte));
  }

  void write(
      const BucketParameter& parameter,
      const QuantisedRows& place,
      const at::Tensor& message) {
    auto wanted = parameter.gradient.reshape({place.rows, place.columns})
                      .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    const auto known = errors_.find(parameter.name);
    if (known != errors_.end()) {
      wanted.add_(known->second.to(wanted.device()).view(wanted.sizes()));
    }
    const auto scales = place.scales(message);
    if (wanted.numel() == 0) {
      scales.zero_();
      return;
    }
    place.quantise(wanted, message);
    if (options_.error_feedback) {
      errors_[parameter.name] = at::where(
          at::isfinite(scales), wanted.sub_(place.values(message)),
          at::zeros_like(wanted));
    }
  }

  const QuantiseOptions options_;
  std::map<std::string, at::Tensor> errors_;  // By parameter, [rows, columns].
};

}  // namespace

CommHookPtr quantise(const QuantiseOptions& options) {
  return std::make_shared<Quantise>(options);
}

}  // namespace sherd
