// SPDX-License-Identifier: Apache-2.0
#include <sherd/ddp/sync_batch_norm.h>

#include <algorithm>
#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>

#include "base/check.h"
#include "world/collectives.h"
#include "world/transport.h"

namespace sherd {
namespace ddp {

// The ranks that normalise together, and their connections, which nothing else uses. Every message
// names its layer and has room for the largest layer, so that ranks that run different layers
// notice it.
class BatchNormGroup {
 public:
  enum class Pass { kForward, kBackward };

  BatchNormGroup(
      const World& world,
      std::vector<std::string> layers,
      std::int64_t channels_max)
      : layers_(std::move(layers)),
        numel_(kHead + 1 + 2 * channels_max),
        transport_(world::make_c10d_transport(
            world,
            str("batch_norm/", world.next_number()),
            Mesh(world).shard_ranks())) {}

  // Collective: returns the values of every rank, by rank. Throws Error.
  std::vector<std::vector<double>> all_gather(
      int layer, Pass pass, const std::vector<double>& values) {
    failure_.throw_if_failed();
    const auto row = at::zeros({numel_}, at::kDouble);
    auto* mine = row.mutable_data_ptr<double>();
    mine[0] = layer;
    mine[1] = static_cast<double>(pass);
    std::ranges::copy(values, mine + kHead);
    auto rows = world::Collectives(*transport_, "the " + text_of(mine), kTag)
                    .all_gather(row);
    if (!rows.ok()) {
      failure_ = rows.status();
      transport_->abandon(failure_);
      failure_.throw_if_failed();
    }
    std::vector<std::vector<double>> all;
    for (const auto& theirs : rows.value()) {
      const auto* first = theirs.const_data_ptr<double>();
      all.emplace_back(first + kHead, first + kHead + values.size());
    }
    check_same_layer(rows.value());
    return all;
  }

 private:
  static constexpr std::int64_t kHead = 2;  // Layer and pass.
  static constexpr int kTag = 0;

  std::string text_of(const double* row) const {
    return str(
        static_cast<Pass>(row[1]) == Pass::kForward ? "forward" : "backward",
        " of batch norm '", layers_.at(static_cast<std::size_t>(row[0])), "'");
  }

  // All ranks find the same, so either all continue or none.
  void check_same_layer(const std::vector<at::Tensor>& rows) {
    const auto* first = rows[0].const_data_ptr<double>();
    for (std::size_t rank = 1; rank < rows.size(); ++rank) {
      const auto* row = rows[rank].const_data_ptr<double>();
      if (!std::equal(first, first + 2, row)) {
        failure_ = {
            ErrorCode::kPeerMismatch,
            str("[ddp] rank 0 is in the ", text_of(first), ", rank ", rank,
                " in the ", text_of(row),
                "; expected the same layers in the same order on every rank")};
      }
      failure_.throw_if_failed();
    }
  }

  const std::vector<std::string> layers_;
  const std::int64_t numel_;  // The size of a message.
  const std::shared_ptr<world::Transport> transport_;
  Status failure_;  // The first one.
};

}  // namespace ddp

namespace {

using ddp::BatchNormGroup;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using GroupPtr = std::shared_ptr<BatchNormGroup>;

// The moments of each channel over all ranks, 1-D.
struct Moments {
  at::Tensor mean;
  at::Tensor variance;  // With the divisor `count`.
  double count = 0;     // The number of values.
};

// The options of statistics, which are never narrower than fp32.
at::TensorOptions statistics_options(const at::Tensor& input) {
  return at::device(input.device())
      .dtype(input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

at::Tensor tensor_of(
    const std::vector<double>& numbers, const at::TensorOptions& options) {
  const auto tensor =
      at::empty({static_cast<std::int64_t>(numbers.size())}, at::kDouble);
  std::ranges::copy(numbers, tensor.mutable_data_ptr<double>());
  return tensor.to(options);
}

// Appends two tensors of the same device in one copy; the host waits for it unless the device is
// the CPU.
void append(
    std::vector<double>& numbers,
    const at::Tensor& first,
    const at::Tensor& second) {
  const auto wide = at::cat({first, second}).cpu().to(at::kDouble);
  const auto* begin = wide.const_data_ptr<double>();
  numbers.insert(numbers.end(), begin, begin + wide.numel());
}

// The values shaped as a factor of [batch, channels, ...].
at::Tensor by_channel(const at::Tensor& values, std::int64_t dimensions) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(dimensions), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

std::vector<std::int64_t> all_but_channels(std::int64_t dimensions) {
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t d = 2; d < dimensions; ++d) {
    dims.push_back(d);
  }
  return dims;
}

// Collective. Sums are made in fp64, in rank order.
Moments moments_of_all(
    const at::Tensor& input, BatchNormGroup& group, int layer) {
  const auto channels = input.size(1);
  const auto options = statistics_options(input);
  std::vector<double> mine = {static_cast<double>(input.numel() / channels)};
  if (input.numel() > 0) {
    // Empty running statistics make it compute in their dtype.
    const auto [mean, variance] = at::batch_norm_update_stats(
        input, at::zeros({channels}, options), at::ones({channels}, options),
        /*momentum=*/0.0);
    append(mine, mean, variance);
  }
  const auto width = static_cast<std::size_t>(channels);
  mine.resize(1 + 2 * width);
  const auto all =
      group.all_gather(layer, BatchNormGroup::Pass::kForward, mine);
  Moments moments;
  std::vector<double> mean(width), variance(width);
  for (const auto& rank : all) {
    moments.count += rank[0];
  }
  SHERD_CHECK(
      moments.count > 1,
      "[ddp] batch norm in training: expected more than 1 value of each "
      "channel on all ranks together, found ",
      moments.count);
  for (const auto& rank : all) {
    for (std::size_t c = 0; c < width; ++c) {
      mean[c] += rank[0] / moments.count * rank[1 + c];
    }
  }
  for (const auto& rank : all) {
    for (std::size_t c = 0; c < width; ++c) {
      const double apart = rank[1 + c] - mean[c];
      variance[c] +=
          rank[0] / moments.count * (rank[1 + width + c] + apart * apart);
    }
  }
  moments.mean = tensor_of(mean, options);
  moments.variance = tensor_of(variance, options);
  return moments;
}

// What a backward needs besides tensors.
struct Normalised final : torch::CustomClassHolder {
  GroupPtr group;
  int layer = 0;
  double count = 0;
};

// Each channel minus its mean, divided by its standard deviation. Its gradient needs only the
// result: with y = (x - mean) / s, dx = (dy - mean(dy) - y mean(dy y)) / s, where means are over
// all ranks.
class Normalise : public torch::autograd::Function<Normalise> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const GroupPtr& group,
      int layer,
      double eps,
      Moments* moments) {
    *moments = moments_of_all(input, *group, layer);
    auto output = at::batch_norm(
        input, {}, {}, moments->mean, moments->variance, /*training=*/false,
        /*momentum=*/0.0, eps, /*cudnn_enabled=*/false);
    auto rest = c10::make_intrusive<Normalised>();
    rest->group = group;
    rest->layer = layer;
    rest->count = moments->count;
    context->saved_data["rest"] = c10::IValue::make_capsule(std::move(rest));
    context->save_for_backward({output, (moments->variance + eps).rsqrt()});
    return output;
  }

  static variable_list backward(
      AutogradContext* context, const variable_list& gradients) {
    SHERD_CHECK_AS(
        kFailedPrecondition, !at::GradMode::is_enabled(),
        "[ddp] a backward through SyncBatchNorm with create_graph; its "
        "gradient has no graph, as other ranks have a part in it");
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["rest"].toCapsule();
    const auto& rest = static_cast<const Normalised&>(*capsule);
    const auto& output = saved[0];
    const auto dimensions = output.dim();
    const auto options = statistics_options(output);
    // Its product with the result may be too large for a narrower dtype.
    const auto gradient = gradients[0].to(options);
    const auto dims = all_but_channels(dimensions);
    const auto sum = [&](const at::Tensor& values) {
      return values.sum(
          dims, /*keepdim=*/false, c10::typeMetaToScalarType(options.dtype()));
    };
    std::vector<double> mine;
    append(mine, sum(gradient), sum(gradient * output));
    std::vector<double> mean(mine.size());
    for (const auto& rank : rest.group->all_gather(
             rest.layer, BatchNormGroup::Pass::kBackward, mine)) {
      for (std::size_t i = 0; i < mean.size(); ++i) {
        mean[i] += rank[i] / rest.count;
      }
    }
    const auto means = tensor_of(mean, options).view({2, output.size(1)});
    const auto factor = [&](const at::Tensor& values) {
      return by_channel(values, dimensions);
    };
    auto result = gradient.sub(factor(means[0]))
                      .sub_(output * factor(means[1]))
                      .mul_(factor(saved[1]))
                      .to(output.scalar_type());
    return {std::move(result), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (group_ == nullptr || !is_training()) {
    return BatchNormImplBase::forward(input);
  }
  _check_input_dim(input);
  Moments moments;
  const auto output =
      Normalise::apply(input, group_, layer_, options.eps(), &moments);
  if (options.track_running_stats()) {
    const at::NoGradGuard no_grad;
    num_batches_tracked += 1;
    const double factor =
        options.momentum().value_or(1.0 / num_batches_tracked.item<double>());
    running_mean.mul_(1 - factor).add_(moments.mean, factor);
    running_var.mul_(1 - factor)
        .add_(moments.variance, factor * moments.count / (moments.count - 1));
  }
  if (!options.affine()) {
    // Backward needs what it saved, and what follows may write the result in place.
    return output.clone();
  }
  return at::addcmul(
             by_channel(bias, input.dim()), output,
             by_channel(weight, input.dim()))
      .to(input.scalar_type());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "sherd::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ")";
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  SHERD_CHECK(
      input.dim() >= 2 && input.size(1) == options.num_features() &&
          at::isFloatingType(input.scalar_type()),
      "[ddp] SyncBatchNorm: expected floating-point input of shape [batch, ",
      options.num_features(), ", ...], found ",
      c10::toString(input.scalar_type()), " of shape ", input.sizes());
}

std::shared_ptr<SyncBatchNormImpl> SyncBatchNormImpl::converted(
    const torch::nn::Module& norm) {
  const auto from = [](const auto* old) {
    auto sync = std::make_shared<SyncBatchNormImpl>(old->options);
    sync->weight = sync->parameters_["weight"] = old->weight;
    sync->bias = sync->parameters_["bias"] = old->bias;
    if (old->options.track_running_stats()) {
      sync->running_mean.set_data(old->running_mean);
      sync->running_var.set_data(old->running_var);
      sync->num_batches_tracked.set_data(old->num_batches_tracked);
    }
    sync->train(old->is_training());
    return sync;
  };
  if (const auto* one = norm.as<torch::nn::BatchNorm1dImpl>()) {
    return from(one);
  }
  if (const auto* two = norm.as<torch::nn::BatchNorm2dImpl>()) {
    return from(two);
  }
  const auto* three = norm.as<torch::nn::BatchNorm3dImpl>();
  return three == nullptr ? nullptr : from(three);
}

namespace {

using torch::nn::SequentialImpl;

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr ||
      module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
      module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

struct BatchNormHolders {
  std::set<SequentialImpl*> sequentials;
  std::string others;  // The names of layers outside any Sequential.
};

// Visits the module and all below it. LibTorch lists the module itself only if a shared_ptr holds it.
void for_each_module(
    torch::nn::Module& root,
    const std::function<void(const std::string&, torch::nn::Module&)>& visit) {
  visit("", root);
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    visit(item.key(), *item.value());
  }
}

BatchNormHolders holders_of_batch_norms(torch::nn::Module& root) {
  BatchNormHolders holders;
  const auto note_other = [&](const std::string& name) {
    holders.others += (holders.others.empty() ? "" : ", ") + name;
  };
  if (is_batch_norm(root)) {
    note_other("the module itself");
  }
  for_each_module(
      root, [&](const std::string& name, torch::nn::Module& parent) {
        auto* sequential = parent.as<SequentialImpl>();
        for (const auto& child : parent.named_children()) {
          if (!is_batch_norm(*child.value())) {
            continue;
          }
          if (sequential != nullptr) {
            holders.sequentials.insert(sequential);
          } else {
            note_other((name.empty() ? "" : name + ".") + child.key());
          }
        }
      });
  return holders;
}

}  // namespace

int convert_sync_batch_norm(torch::nn::Module& module) {
  const auto holders = holders_of_batch_norms(module);
  SHERD_CHECK(
      holders.others.empty(),
      "[ddp] convert_sync_batch_norm: expected layers of type BatchNorm in a "
      "Sequential, which takes a layer of another type in their place; found ",
      holders.others,
      ", which C++ code calls as the type that it names; let that code name "
      "sherd::SyncBatchNorm");
  // A layer that several Sequentials hold is converted once.
  std::map<const torch::nn::Module*, std::shared_ptr<SyncBatchNormImpl>> made;
  for (auto* sequential : holders.sequentials) {
    const auto children = sequential->named_children();
    std::size_t index = 0;
    for (auto& layer : *sequential) {
      const auto& child = children[index++];
      if (!is_batch_norm(*child.value())) {
        continue;
      }
      auto& sync = made[child.value().get()];
      if (sync == nullptr) {
        sync = SyncBatchNormImpl::converted(*child.value());
      }
      layer = torch::nn::AnyModule(sync);
      sequential->replace_module(child.key(), sync);
    }
  }
  return static_cast<int>(made.size());
}

void synchronise_batch_norm(torch::nn::Module& module, const World& world) {
  std::vector<SyncBatchNormImpl*> layers;
  std::vector<std::string> names;
  std::int64_t channels_max = 0;
  std::string mine;
  for_each_module(
      module, [&](const std::string& name, torch::nn::Module& part) {
        auto* layer = part.as<SyncBatchNormImpl>();
        if (layer != nullptr &&
            std::ranges::find(layers, layer) == layers.end()) {
          const auto channels = layer->options.num_features();
          layers.push_back(layer);
          names.push_back(name.empty() ? "(root)" : name);
          channels_max = std::max(channels_max, channels);
          mine += str(mine.empty() ? "" : ", ", names.back(), " of ", channels);
        }
      });
  const auto all = world.all_gather_texts(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    SHERD_CHECK_AS(
        kPeerMismatch, all[rank] == all[0],
        "[ddp] ranks disagree on layers of type SyncBatchNorm: rank 0 has ",
        all[0].empty() ? "none" : all[0], "; rank ", rank, " has ",
        all[rank].empty() ? "none" : all[rank]);
  }
  SHERD_CHECK(
      !layers.empty(),
      "[ddp] synchronise_batch_norm: expected a module with "
      "sherd::SyncBatchNorm in it (BatchNorm1d, 2d and 3d cannot be "
      "synchronised; sherd::convert_sync_batch_norm() replaces those of a "
      "Sequential), found none");
  const auto group = world.size() == 1
      ? nullptr
      : std::make_shared<BatchNormGroup>(world, std::move(names), channels_max);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i]->group_ = group;
    layers[i]->layer_ = static_cast<int>(i);
  }
}

}  // namespace sherd
