// SPDX-License-Identifier: Apache-2.0
#include "ddp/replicated_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <c10/util/strides.h>
#include <torch/nn/modules/embedding.h>

#include "autograd/gradient_hook.h"
#include "autograd/managed_storage.h"
#include "base/check.h"
#include "plan/buckets.h"

namespace sherd::ddp {
namespace {

void check_replicable(const std::string& name, const at::Tensor& tensor) {
  SHERD_CHECK(
      !tensor.is_meta() && tensor.layout() == c10::kStrided, "[ddp] ", name,
      " is on ", tensor.device().str(),
      tensor.layout() == c10::kStrided ? "" : ", sparse",
      "; expected a dense tensor with memory");
  SHERD_CHECK(
      tensor.is_non_overlapping_and_dense(), "[ddp] ", name, " has strides ",
      tensor.strides(), " for shape ", tensor.sizes(),
      "; expected memory without gaps");
}

void check_trainable(const std::string& name, const at::Tensor& tensor) {
  SHERD_CHECK(
      at::isFloatingType(tensor.scalar_type()), "[ddp] parameter ", name,
      " is trainable and of type ", c10::toString(tensor.scalar_type()),
      "; expected a real floating-point type, or requires_grad(false)");
  SHERD_CHECK(
      tensor.is_leaf(), "[ddp] parameter ", name,
      " is the result of an operation; expected a leaf");
  autograd::check_has_values("ddp", name, tensor);
  SHERD_CHECK_AS(
      kFailedPrecondition,
      autograd::tag_of(tensor) == nullptr &&
          !autograd::has_gradient_hook(tensor),
      "[ddp] parameter ", name,
      " belongs to another handle; expected a module that none manages");
}

// Strides that are equal if elements have the same order in memory: the stride of a dimension of
// size one is arbitrary.
std::vector<std::int64_t> memory_strides(const at::Tensor& tensor) {
  auto strides = tensor.strides().vec();
  const auto contiguous = c10::contiguous_strides(tensor.sizes());
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (tensor.numel() == 0 || tensor.sizes()[d] == 1) {
      strides[d] = contiguous[d];
    }
  }
  return strides;
}

// The device of all tensors, taken from the first one.
c10::Device common_device(const ReplicatedModel& model) {
  const ModuleTensor* first = nullptr;
  for (const auto* items :
       {&model.trainable, &model.sparse, &model.frozen, &model.buffers}) {
    for (const auto& item : *items) {
      first = first == nullptr ? &item : first;
      SHERD_CHECK(
          item.tensor.device() == first->tensor.device(), "[ddp] ", item.name,
          " is on ", item.tensor.device().str(), ", and ", first->name, " on ",
          first->tensor.device().str(),
          "; expected all parameters and buffers on one device");
    }
  }
  return first == nullptr ? c10::Device(c10::kCPU) : first->tensor.device();
}

std::set<const c10::TensorImpl*> with_sparse_gradients(
    const torch::nn::Module& module) {
  std::set<const c10::TensorImpl*> found;
  const auto look = [&](const torch::nn::Module& part) {
    if (const auto* one = part.as<torch::nn::EmbeddingImpl>();
        one != nullptr && one->options.sparse()) {
      found.insert(one->weight.unsafeGetTensorImpl());
    }
    if (const auto* bag = part.as<torch::nn::EmbeddingBagImpl>();
        bag != nullptr && bag->options.sparse()) {
      found.insert(bag->weight.unsafeGetTensorImpl());
    }
  };
  look(module);  // LibTorch lists it only if a shared_ptr holds it.
  for (const auto& part : module.modules(/*include_self=*/false)) {
    look(*part);
  }
  return found;
}

// Whether its module has running statistics.
bool is_beside_statistics(
    const std::string& parameter,
    const torch::OrderedDict<std::string, at::Tensor>& buffers) {
  const auto name = parameter.substr(0, parameter.rfind('.') + 1);
  return buffers.contains(name + "running_mean");
}

// The dtype in which gradients of a parameter are sent, if it differs from the parameter's.
std::optional<at::ScalarType> reduce_dtype(
    const ModuleTensor& parameter, const ReplicateOptions& options) {
  const auto dtype =
      options.reduce_dtype ? options.reduce_dtype : options.param_dtype;
  const auto own = parameter.tensor.scalar_type();
  return at::isFloatingType(own) && dtype != own && !parameter.keeps_dtype
      ? dtype
      : std::nullopt;
}

}  // namespace

ReplicatedModel collect_model(
    const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  std::set<std::string> left(ignored.begin(), ignored.end());
  std::map<const c10::TensorImpl*, std::string> first_names;
  const auto taken = [&](const std::string& name, const at::Tensor& tensor) {
    const bool wanted = std::ranges::find(ignored, name) == ignored.end();
    left.erase(name);
    return wanted && tensor.defined() &&
        first_names.emplace(tensor.unsafeGetTensorImpl(), name).second;
  };
  const auto sparse = with_sparse_gradients(module);
  const auto buffers = module.named_buffers();
  const auto parameters = module.named_parameters();
  ReplicatedModel model;
  for (const auto& item : parameters) {
    const auto& tensor = item.value();
    if (!taken(item.key(), tensor)) {
      const auto first = first_names.find(tensor.unsafeGetTensorImpl());
      if (first != first_names.end()) {
        model.tied_names.emplace(item.key(), first->second);
      }
      continue;
    }
    check_replicable("parameter " + item.key(), tensor);
    if (tensor.requires_grad()) {
      check_trainable(item.key(), tensor);
      auto& items = sparse.contains(tensor.unsafeGetTensorImpl())
          ? model.sparse
          : model.trainable;
      items.push_back(
          {item.key(), tensor, is_beside_statistics(item.key(), buffers)});
    } else {
      model.frozen.push_back({item.key(), tensor});
    }
  }
  for (const auto& name : ignored) {
    const auto* tensor = parameters.find(name);
    const auto first = tensor == nullptr
        ? first_names.end()
        : first_names.find(tensor->unsafeGetTensorImpl());
    SHERD_CHECK(
        first == first_names.end(), "[ddp] options.ignored names '", name,
        "', which is the same parameter as ", first->second,
        "; expected all of its names or none");
  }
  for (const auto& item : buffers) {
    if (taken(item.key(), item.value())) {
      check_replicable("buffer " + item.key(), item.value());
      model.buffers.push_back({item.key(), item.value()});
    }
  }
  model.device = common_device(model);
  SHERD_CHECK(
      left.empty(), "[ddp] options.ignored names '", *left.begin(),
      "'; expected a parameter or buffer of the module");
  SHERD_CHECK(
      !model.trainable.empty() || !model.sparse.empty(),
      "[ddp] expected a module with at least one parameter that requires "
      "grad, found none");
  return model;
}

void check_delayed(
    const ReplicatedModel& model, const std::vector<std::string>& delayed) {
  for (const auto& name : delayed) {
    SHERD_CHECK(
        std::ranges::any_of(
            model.trainable,
            [&](const auto& item) { return item.name == name; }),
        "[ddp] options.delayed names '", name,
        "'; expected a trainable parameter of the module with dense gradients");
  }
}

std::vector<std::string> describe(const ReplicatedModel& model) {
  std::vector<std::string> lines;
  const auto add = [&](const char* what,
                       const std::vector<ModuleTensor>& items) {
    for (const auto& item : items) {
      lines.push_back(
          str(what, " ", item.name, " ", item.tensor.sizes(), " ",
              c10::toString(item.tensor.scalar_type()), " with strides ",
              at::IntArrayRef(memory_strides(item.tensor))));
    }
  };
  add("parameter", model.trainable);
  add("parameter with sparse gradient", model.sparse);
  add("frozen parameter", model.frozen);
  add("buffer", model.buffers);
  return lines;
}

Buckets make_buckets(
    const std::vector<ModuleTensor>& trainable,
    const std::vector<int>& order,
    const ReplicateOptions& options,
    int ranks) {
  std::vector<plan::BucketItem> items;
  const auto is_delayed = [&](int index) {
    const auto& name = trainable[static_cast<std::size_t>(index)].name;
    return std::ranges::find(options.delayed, name) != options.delayed.end();
  };
  for (const auto& parameter : trainable) {
    const auto index = static_cast<int>(items.size());
    items.push_back(
        {.bytes = static_cast<std::int64_t>(parameter.tensor.nbytes()),
         .kind = 4 * static_cast<int>(parameter.tensor.scalar_type()) +
             (parameter.keeps_dtype ? 2 : 0) + (is_delayed(index) ? 1 : 0)});
  }
  const std::vector<std::int64_t> limits = {
      options.first_bucket_bytes, options.bucket_bytes};
  auto assigned = plan::assign_buckets(items, limits, order);
  std::stable_partition(
      assigned.begin(), assigned.end(),
      [&](const auto& bucket) { return !is_delayed(bucket.front()); });
  Buckets buckets;
  buckets.parameters.resize(trainable.size());
  for (const auto& bucket : assigned) {
    const auto unit = static_cast<plan::UnitId>(buckets.units.size());
    exchange::FlatSpec flat;
    std::vector<plan::FlatParameter> places;
    for (const int index : bucket) {
      const auto& parameter = trainable[static_cast<std::size_t>(index)];
      const auto position = static_cast<int>(flat.names.size());
      buckets.parameters[static_cast<std::size_t>(index)] = {
          .name = parameter.name,
          .tensor = parameter.tensor,
          .unit = unit,
          .flat = 0,
          .position = position,
          .trainable = position};
      places.push_back(
          {.name = parameter.name, .numel = parameter.tensor.numel()});
      flat.names.push_back(parameter.name);
      flat.shapes.push_back(str(parameter.tensor.sizes()));
      flat.dtype = parameter.tensor.scalar_type();
      flat.reduce_dtype = reduce_dtype(parameter, options);
    }
    flat.layout = plan::plan_flat_layout(
        places,
        {.ranks = ranks,
         .element_bytes = static_cast<std::int64_t>(std::min(
             c10::elementSize(flat.dtype),
             c10::elementSize(flat.slot_dtype())))});
    buckets.units.push_back({.name = str("bucket ", unit), .flats = {flat}});
    buckets.members.push_back(bucket);
  }
  return buckets;
}

}  // namespace sherd::ddp
