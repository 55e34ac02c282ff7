// SPDX-License-Identifier: Apache-2.0
#include "fsdp/model_units.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <torch/nn/module.h>

#include "base/check.h"
#include "fsdp/unit_modules.h"

namespace sherd::fsdp {
namespace {

using torch::nn::Module;

// BatchNorm, InstanceNorm: their CPU kernels refuse fp32 statistics beside
// narrower weights.
bool has_running_statistics(const Module& module) {
  return module.named_buffers(/*recurse=*/false).contains("running_mean");
}

// Walks the modules once and groups parameters by the unit that owns them.
class UnitCollector {
 public:
  explicit UnitCollector(const units::Policy& policy) : policy_(policy) {}

  void collect(const Module& root) {
    for (const auto& taken : unit_modules(root, policy_)) {
      taken_.insert(taken.module);
    }
    assign(root, "", 0);
  }

  struct Entry {
    std::string name;
    at::Tensor tensor;
    int unit;
    bool keeps_dtype;  // Its module's kernels take no other.
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<std::string>& unit_names() const { return unit_names_; }

 private:
  // Parents first, in module order.
  void assign(const Module& module, const std::string& name, int unit) {
    if (!assigned_.insert(&module).second) {
      return;
    }
    if (taken_.contains(&module)) {
      unit = static_cast<int>(unit_names_.size());
      unit_names_.push_back(name);
    }
    for (const auto& own : module.named_parameters(/*recurse=*/false)) {
      if (owned_.insert(own.value().unsafeGetTensorImpl()).second) {
        entries_.push_back(
            {join_names(name, own.key()), own.value(), unit,
             has_running_statistics(module)});
      }
    }
    for (const auto& child : module.named_children()) {
      assign(*child.value(), join_names(name, child.key()), unit);
    }
  }

  const units::Policy& policy_;
  std::set<const Module*> assigned_;
  std::set<const Module*> taken_;
  std::set<const c10::TensorImpl*> owned_;
  std::vector<std::string> unit_names_ = {"(root)"};
  std::vector<Entry> entries_;
};

void check_can_be_sharded(const std::string& name, const at::Tensor& tensor) {
  SHERD_CHECK(
      tensor.defined(), "[fsdp] parameter ", name,
      " is undefined; expected a tensor");
  SHERD_CHECK(
      (tensor.device().is_cpu() || tensor.is_meta()) && !tensor.is_sparse(),
      "[fsdp] parameter ", name, " is on ", tensor.device().str(),
      tensor.is_sparse() ? ", sparse" : "",
      "; expected a dense tensor on the CPU");
  SHERD_CHECK(
      !tensor.requires_grad() || at::isFloatingType(tensor.scalar_type()),
      "[fsdp] parameter ", name, " is trainable and of type ",
      c10::toString(tensor.scalar_type()),
      "; expected a real floating-point type, or requires_grad(false)");
  SHERD_CHECK(
      tensor.is_leaf(), "[fsdp] parameter ", name,
      " is the result of an operation; expected a leaf");
}

using Dtype = std::optional<c10::ScalarType>;

void check_precision_dtype(const char* what, Dtype dtype) {
  SHERD_CHECK(
      !dtype || *dtype == c10::ScalarType::Float ||
          *dtype == c10::ScalarType::BFloat16 ||
          *dtype == c10::ScalarType::Half,
      "[fsdp] mixed_precision.", what, " is ",
      c10::toString(dtype.value_or(c10::ScalarType::Undefined)),
      "; expected Float, BFloat16 or Half");
}

// The properties of the flat that a parameter belongs to.
exchange::FlatSpec flat_for(
    const UnitCollector::Entry& entry, const MixedPrecision& precision) {
  exchange::FlatSpec spec;
  spec.dtype = entry.tensor.scalar_type();
  spec.trainable = entry.tensor.requires_grad();
  if (entry.keeps_dtype || !at::isFloatingType(spec.dtype)) {
    return spec;
  }
  spec.param_dtype = precision.param_dtype;
  if (spec.trainable) {
    spec.reduce_dtype = precision.reduce_dtype;
  }
  SHERD_CHECK(
      spec.dtype != c10::ScalarType::Double ||
          (!spec.param_dtype && !spec.reduce_dtype),
      "[fsdp] parameter ", entry.name,
      " is of type Double, which mixed_precision would narrow; expected Float, "
      "BFloat16 or Half (module->to(torch::kFloat) before fully_shard)");
  return spec;
}

// The narrowest element that the layout must align.
std::int64_t element_bytes(const exchange::FlatSpec& spec) {
  return static_cast<std::int64_t>(std::min(
      {c10::elementSize(spec.dtype), c10::elementSize(spec.unsharded_dtype()),
       c10::elementSize(spec.slot_dtype())}));
}

// Collects the flats of one unit, in the order of their first parameters.
struct FlatBuilder {
  std::vector<std::vector<plan::FlatParameter>> parameters;
  std::vector<exchange::FlatSpec> specs;

  // `spec` says what parameters of a flat have in common.
  int find_or_add(const exchange::FlatSpec& spec) {
    for (std::size_t f = 0; f < specs.size(); ++f) {
      if (specs[f].dtype == spec.dtype &&
          specs[f].param_dtype == spec.param_dtype &&
          specs[f].reduce_dtype == spec.reduce_dtype &&
          specs[f].trainable == spec.trainable) {
        return static_cast<int>(f);
      }
    }
    specs.push_back(spec);
    parameters.emplace_back();
    return static_cast<int>(specs.size()) - 1;
  }
};

// Numbers trainable parameters of a unit flat after flat, as reductions do.
void number_trainable(ModelUnits& model) {
  std::vector<std::vector<int>> first(model.units.size());
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    int count = 0;
    for (const auto& flat : model.units[u].flats) {
      first[u].push_back(flat.trainable ? count : -1);
      count += flat.trainable ? static_cast<int>(flat.names.size()) : 0;
    }
  }
  for (auto& parameter : model.parameters) {
    const int begin = first[static_cast<std::size_t>(parameter.unit)]
                           [static_cast<std::size_t>(parameter.flat)];
    parameter.trainable = begin < 0 ? -1 : begin + parameter.position;
  }
}

}  // namespace

const ManagedParameter& find_parameter(
    const ModelUnits& model, const std::string& name) {
  for (const auto& parameter : model.parameters) {
    if (parameter.name == name) {
      return parameter;
    }
  }
  throw Error(
      str("[fsdp] no parameter is named '", name, "'; the first is '",
          model.parameters.front().name, "'"));
}

ModelUnits build_units(
    const Module& module,
    const units::Policy& policy,
    int ranks,
    const Granularity& granularity,
    const MixedPrecision& precision) {
  check_precision_dtype("param_dtype", precision.param_dtype);
  check_precision_dtype("reduce_dtype", precision.reduce_dtype);
  UnitCollector collector(policy);
  collector.collect(module);
  SHERD_CHECK(
      !collector.entries().empty(),
      "[fsdp] the module has no parameters; expected at least one");

  ModelUnits model;
  std::map<int, UnitId> numbers;  // Units without parameters get none.
  std::vector<FlatBuilder> flats;
  for (const auto& entry : collector.entries()) {
    check_can_be_sharded(entry.name, entry.tensor);
    const auto next = static_cast<UnitId>(numbers.size());
    const auto [found, is_new] = numbers.emplace(entry.unit, next);
    const auto unit = static_cast<std::size_t>(found->second);
    if (is_new) {
      flats.emplace_back();
      model.units.push_back(
          {collector.unit_names()[static_cast<std::size_t>(entry.unit)], {}});
      if (entry.unit == 0) {
        model.root = found->second;
      }
    }
    const int f = flats[unit].find_or_add(flat_for(entry, precision));
    const auto flat = static_cast<std::size_t>(f);
    flats[unit].specs[flat].names.push_back(entry.name);
    flats[unit].specs[flat].shapes.push_back(str(entry.tensor.sizes()));
    flats[unit].parameters[flat].push_back(
        {entry.name, entry.tensor.numel(),
         granularity ? granularity(entry.name, entry.tensor) : 1});
    model.parameters.push_back(
        {entry.name, entry.tensor, found->second, f,
         static_cast<int>(flats[unit].parameters[flat].size()) - 1, -1});
  }
  for (std::size_t u = 0; u < flats.size(); ++u) {
    for (std::size_t f = 0; f < flats[u].specs.size(); ++f) {
      auto& spec = flats[u].specs[f];
      plan::FlatLayoutOptions options;
      options.ranks = ranks;
      options.element_bytes = element_bytes(spec);
      spec.layout = plan::plan_flat_layout(flats[u].parameters[f], options);
    }
    model.units[u].flats = std::move(flats[u].specs);
  }
  number_trainable(model);
  return model;
}

}  // namespace sherd::fsdp
