// SPDX-License-Identifier: Apache-2.0
#include "fsdp/model_units.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include "base/check.h"
#include "fsdp/unit_modules.h"

namespace sherd::fsdp {
namespace {

using torch::nn::Module;

constexpr const char* kRootUnit = "(root)";

// BatchNorm, InstanceNorm: their CPU kernels refuse fp32 statistics beside
// narrower weights.
bool has_running_statistics(const Module& module) {
  return module.named_buffers(/*recurse=*/false).contains("running_mean");
}

using Dtype = std::optional<c10::ScalarType>;

// Null: its forward is called directly.
const CastingModule* casting_module(const Module& module) {
  return dynamic_cast<const CastingModule*>(&module);
}

void check_precision_dtype(const char* what, Dtype dtype) {
  SHERD_CHECK(
      !dtype || *dtype == c10::ScalarType::Float ||
          *dtype == c10::ScalarType::BFloat16 ||
          *dtype == c10::ScalarType::Half,
      "[fsdp] mixed_precision.", what, " is ",
      c10::toString(dtype.value_or(c10::ScalarType::Undefined)),
      "; expected Float, BFloat16 or Half");
}

// The options of the parameters of a module, from those of the policy and of the model.
struct EffectiveOptions {
  const MixedPrecision* precision;
  const Granularity* granularity;
  // That of UnitCollector::output_dtypes_: of this module and of none inside it.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;

  EffectiveOptions overridden_by(const units::UnitOptions& options) const {
    auto own = *this;
    if (options.mixed_precision) {
      own.precision = &*options.mixed_precision;
    }
    if (options.granularity) {
      own.granularity = &options.granularity;
    }
    return own;
  }
};

// Walks the modules once and groups parameters by the unit that owns them. Names of tied parameters
// and what is cast besides parameters go into the model.
class UnitCollector {
 public:
  // Both must outlive it.
  UnitCollector(const FullyShardOptions& options, ModelUnits& model)
      : ignored_(options.ignored),
        of_model_{&options.mixed_precision, &options.granularity},
        model_(model) {}

  void collect(const Module& root, const std::vector<UnitModule>& taken) {
    for (const auto& module : taken) {
      check_unit_options(module);
      taken_.emplace(module.module, &module.options);
      if (module.options.output_dtype) {
        // Parents come after children, and cast what those return.
        output_dtypes_[&layer_at_end(module)] = module.options.output_dtype;
      }
    }
    assign(root, "", 0, of_model_);
    for (const auto& item : root.named_parameters()) {
      const auto first =
          first_entries_.find(item.value().unsafeGetTensorImpl());
      if (first != first_entries_.end() &&
          entries_[first->second].name != item.key()) {
        model_.tied_names.emplace(item.key(), entries_[first->second].name);
      }
    }
  }

  struct Entry {
    std::string name;
    at::Tensor tensor;
    int unit;
    EffectiveOptions options;
    bool keeps_dtype;  // Its module's kernels take no other.
  };
  const std::vector<Entry>& entries() const { return entries_; }
  // Parameters that are one of entries() under another name, as the module there wants them.
  struct Tied {
    std::size_t entry;
    Entry again;
  };
  const std::vector<Tied>& tied() const { return tied_; }

  struct Unit {
    std::string name;
    std::string first_module;
    bool keep_whole;
  };
  const Unit& unit(int number) const {
    return units_[static_cast<std::size_t>(number)];
  }

 private:
  static void check_unit_options(const UnitModule& module) {
    SHERD_CHECK(
        module.options.own_unit ||
            (module.options.name.empty() && !module.options.keep_whole),
        "[fsdp] options.units: module ", module.name,
        " is no unit of its own (own_unit = false); expected neither a name "
        "nor keep_whole, which are those of a unit");
    check_precision_dtype("output_dtype", module.options.output_dtype);
  }

  // The module whose result is what the module returns, and is seen to be cast.
  static const Module& layer_at_end(const UnitModule& taken) {
    const Module* last = taken.module;
    std::string name = taken.name;
    while (casting_module(*last) == nullptr &&
           last->as<torch::nn::SequentialImpl>() != nullptr &&
           !last->children().empty()) {
      const auto children = last->named_children();
      name = join_names(name, children.back().key());
      last = children.back().value().get();
    }
    const auto own = last->named_parameters(/*recurse=*/false).size();
    const auto all = last->named_parameters().size();
    SHERD_CHECK(
        casting_module(*last) != nullptr || (own > 0 && own == all),
        "[fsdp] options.units: module ", taken.name, " has an output_dtype",
        last == taken.module ? "" : " and ends with " + name + ", which has",
        last == taken.module ? " and " : " ", own, " of ", all,
        " parameters of its own; expected a single layer or a Sequential that "
        "ends with one, since sherd does not see where the forward of others "
        "ends: declare it as a sherd::CastForward, name the layer that it ends "
        "with, or call .to() on what it returns (in a Sequential by "
        "torch::nn::Functional)");
    return *last;
  }

  // The number of the unit that the module belongs to.
  int unit_of(const std::string& module, const units::UnitOptions& options) {
    const auto& name = options.name.empty() ? module : options.name;
    const auto [found, is_new] =
        numbers_.emplace(name, static_cast<int>(units_.size()));
    if (is_new) {
      units_.push_back({name, module, options.keep_whole});
    }
    const auto& unit = this->unit(found->second);
    SHERD_CHECK(
        unit.keep_whole == options.keep_whole, "[fsdp] options.units: modules ",
        unit.first_module, " and ", module, " are one unit, ", name,
        ", but only ", options.keep_whole ? module : unit.first_module,
        " has keep_whole; expected the same for both");
    return found->second;
  }

  // Parents first, in module order.
  void assign(
      const Module& module,
      const std::string& name,
      int unit,
      EffectiveOptions options) {
    if (is_ignored(ignored_, name) || !assigned_.insert(&module).second) {
      return;
    }
    if (const auto taken = taken_.find(&module); taken != taken_.end()) {
      if (taken->second->own_unit) {
        unit = unit_of(name, *taken->second);
        options = of_model_;
      }
      options = options.overridden_by(*taken->second);
    }
    const auto output = output_dtypes_.find(&module);
    options.output_dtype =
        output == output_dtypes_.end() ? std::nullopt : output->second;
    if (const auto* casting = casting_module(module)) {
      model_.forward_casts.push_back(
          {casting->forward_dtypes(),
           {.inputs = input_dtype(module, name, *options.precision),
            .outputs = std::exchange(options.output_dtype, std::nullopt)}});
    }
    for (const auto& own : module.named_parameters(/*recurse=*/false)) {
      const auto full_name = join_names(name, own.key());
      if (is_ignored(ignored_, full_name)) {
        continue;
      }
      Entry entry{
          full_name, own.value(), unit, options,
          has_running_statistics(module)};
      const auto [first, is_new] = first_entries_.emplace(
          own.value().unsafeGetTensorImpl(), entries_.size());
      if (is_new) {
        entries_.push_back(std::move(entry));
      } else {
        tied_.push_back({first->second, std::move(entry)});
      }
    }
    collect_buffers(module, name, *options.precision);
    for (const auto& child : module.named_children()) {
      assign(*child.value(), join_names(name, child.key()), unit, options);
    }
  }

  // That of the inputs of a CastForward: units cast theirs, and what has a precision of its own.
  Dtype input_dtype(
      const Module& module,
      const std::string& name,
      const MixedPrecision& precision) const {
    const auto taken = taken_.find(&module);
    const bool casts = name.empty() ||
        (taken != taken_.end() &&
         (taken->second->own_unit || taken->second->mixed_precision));
    return casts && precision.cast_forward_inputs &&
            !has_running_statistics(module)
        ? precision.param_dtype
        : std::nullopt;
  }

  void collect_buffers(
      const Module& module,
      const std::string& name,
      const MixedPrecision& precision) {
    check_precision_dtype("buffer_dtype", precision.buffer_dtype);
    if (!precision.buffer_dtype || has_running_statistics(module)) {
      return;
    }
    for (const auto& own : module.named_buffers(/*recurse=*/false)) {
      const auto full_name = join_names(name, own.key());
      if (own.value().defined() &&
          at::isFloatingType(own.value().scalar_type()) &&
          !is_ignored(ignored_, full_name) &&
          buffers_.insert(own.value().unsafeGetTensorImpl()).second) {
        model_.cast_buffers.push_back(
            {full_name, own.value(), *precision.buffer_dtype});
      }
    }
  }

  const std::vector<std::string>& ignored_;
  const EffectiveOptions of_model_;
  ModelUnits& model_;
  std::set<const Module*> assigned_;
  std::map<const Module*, const units::UnitOptions*> taken_;
  std::map<const Module*, Dtype> output_dtypes_;
  std::map<const c10::TensorImpl*, std::size_t> first_entries_;
  std::set<const c10::TensorImpl*> buffers_;
  std::map<std::string, int> numbers_ = {{kRootUnit, 0}};
  std::vector<Unit> units_ = {{kRootUnit, "", false}};
  std::vector<Entry> entries_;
  std::vector<Tied> tied_;
};

// Each name must be there, and nothing may be ignored under one name only.
void check_ignored(
    const Module& module, const std::vector<std::string>& ignored) {
  std::vector<std::string> names;
  struct Place {
    std::string name;
    bool ignored;
  };
  std::map<const c10::TensorImpl*, Place> first;
  for (const auto& item : module.named_parameters()) {
    const Place here{item.key(), is_ignored(ignored, item.key())};
    names.push_back(item.key());
    const auto& there =
        first.emplace(item.value().unsafeGetTensorImpl(), here).first->second;
    SHERD_CHECK(
        there.ignored == here.ignored, "[fsdp] parameter ", here.name,
        " is the same as ", there.name, ", but only ",
        here.ignored ? here.name : there.name,
        " is in options.ignored; expected both or neither");
  }
  for (const auto& item : module.named_buffers()) {
    names.push_back(item.key());
  }
  for (const auto& pattern : ignored) {
    SHERD_CHECK(
        std::ranges::any_of(
            names,
            [&](const std::string& name) {
              return is_ignored({pattern}, name);
            }),
        "[fsdp] options.ignored: \"", pattern,
        "\" names no parameter or buffer, and no module that has any; the "
        "first parameter is '",
        names.empty() ? "" : names.front(), "'");
  }
}

void check_can_be_sharded(const std::string& name, const at::Tensor& tensor) {
  SHERD_CHECK(
      tensor.defined(), "[fsdp] parameter ", name,
      " is undefined; expected a tensor");
  SHERD_CHECK(
      !tensor.is_sparse(), "[fsdp] parameter ", name, " is on ",
      tensor.device().str(), ", sparse; expected a dense tensor");
  SHERD_CHECK(
      !tensor.requires_grad() || at::isFloatingType(tensor.scalar_type()),
      "[fsdp] parameter ", name, " is trainable and of type ",
      c10::toString(tensor.scalar_type()),
      "; expected a real floating-point type, or requires_grad(false)");
  SHERD_CHECK(
      tensor.is_leaf(), "[fsdp] parameter ", name,
      " is the result of an operation; expected a leaf");
}

// With the index of the current one of its type, where `device` names none.
c10::Device with_index(c10::Device device) {
  if (device.is_cpu() || device.has_index()) {
    return device;
  }
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

// Where those parameters lie that have memory; `wanted` if none has, or else the CPU.
c10::Device common_device(
    const UnitCollector& collector, std::optional<c10::Device> wanted) {
  const UnitCollector::Entry* first = nullptr;
  for (const auto& entry : collector.entries()) {
    if (!entry.tensor.defined() || entry.tensor.is_meta()) {
      continue;
    }
    first = first == nullptr ? &entry : first;
    SHERD_CHECK(
        entry.tensor.device() == first->tensor.device(), "[fsdp] parameter ",
        entry.name, " of unit ", collector.unit(entry.unit).name, " is on ",
        entry.tensor.device().str(), ", and parameter ", first->name,
        " of unit ", collector.unit(first->unit).name, " on ",
        first->tensor.device().str(),
        "; expected all parameters on one device");
  }
  if (first == nullptr) {
    return with_index(wanted.value_or(c10::kCPU));
  }
  const auto device = first->tensor.device();
  SHERD_CHECK(
      !wanted || device == with_index(*wanted), "[fsdp] parameter ",
      first->name, " of unit ", collector.unit(first->unit).name, " is on ",
      device.str(), "; expected it on the meta device or on options.device, ",
      wanted->str());
  return device;
}

// Now, or once it is thawed.
bool may_train(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) && !tensor.is_inference();
}

bool takes_precision(const UnitCollector::Entry& entry) {
  return !entry.keeps_dtype && at::isFloatingType(entry.tensor.scalar_type());
}

// What parameters of one flat have in common, and the parameters.
struct FlatProperties {
  exchange::FlatSpec spec;
  autograd::ActivationCasts casts = {};
  std::vector<plan::FlatParameter> parameters = {};

  bool same_flat(const FlatProperties& other) const {
    return spec.dtype == other.spec.dtype &&
        spec.param_dtype == other.spec.param_dtype &&
        spec.reduce_dtype == other.spec.reduce_dtype &&
        spec.narrow_gradients == other.spec.narrow_gradients &&
        spec.trainable == other.spec.trainable &&
        spec.starts_frozen == other.spec.starts_frozen && casts == other.casts;
  }
};

// The properties of the flat that a parameter belongs to. `mixed`: activations of the model have
// other dtypes than some of its parameters, so that all parameters cast what they meet.
FlatProperties flat_for(const UnitCollector::Entry& entry, bool mixed) {
  const auto& precision = *entry.options.precision;
  FlatProperties flat;
  auto& spec = flat.spec;
  spec.dtype = entry.tensor.scalar_type();
  spec.starts_frozen = !entry.tensor.requires_grad();
  spec.trainable = may_train(entry.tensor);
  flat.casts.outputs = entry.options.output_dtype;
  if (!takes_precision(entry)) {
    return flat;
  }
  check_precision_dtype("param_dtype", precision.param_dtype);
  check_precision_dtype("reduce_dtype", precision.reduce_dtype);
  spec.param_dtype = precision.param_dtype;
  if (spec.trainable) {
    spec.reduce_dtype = precision.reduce_dtype;
    spec.narrow_gradients = precision.keep_low_precision_grads;
  }
  flat.casts.inputs = mixed && precision.cast_forward_inputs;
  SHERD_CHECK(
      spec.dtype != c10::ScalarType::Double ||
          (!spec.param_dtype && !spec.reduce_dtype),
      "[fsdp] parameter ", entry.name,
      " is of type Double, which mixed_precision would narrow; expected Float, "
      "BFloat16 or Half (module->to(torch::kFloat) before fully_shard)");
  return flat;
}

std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? kRootUnit : parameter.substr(0, dot);
}

std::string text_of(const FlatProperties& flat) {
  const auto name = [](Dtype dtype) {
    return dtype ? c10::toString(*dtype) : "none";
  };
  return str(
      "param_dtype ", name(flat.spec.param_dtype), ", reduce_dtype ",
      name(flat.spec.reduce_dtype), ", output_dtype ", name(flat.casts.outputs),
      ", inputs ", flat.casts.inputs ? "cast" : "left",
      flat.spec.narrow_gradients ? ", gradients kept narrow" : "");
}

// One tensor cannot follow the options of two modules.
void check_tied(const UnitCollector& collector, bool mixed) {
  for (const auto& [first, again] : collector.tied()) {
    const auto& entry = collector.entries()[first];
    const auto here = flat_for(entry, mixed);
    const auto there = flat_for(again, mixed);
    SHERD_CHECK(
        here.same_flat(there), "[fsdp] parameter ", entry.name,
        " is the same as ", again.name, ", but module ", module_of(entry.name),
        " has ", text_of(here), ", and module ", module_of(again.name), " has ",
        text_of(there),
        "; expected the same options for both, since it is one tensor");
  }
}

// The narrowest element that the layout must align.
std::int64_t element_bytes(const exchange::FlatSpec& spec) {
  return static_cast<std::int64_t>(std::min(
      {c10::elementSize(spec.dtype), c10::elementSize(spec.unsharded_dtype()),
       c10::elementSize(spec.slot_dtype())}));
}

// The flats of one unit, in the order of their first parameters.
FlatProperties& find_or_add(
    std::vector<FlatProperties>& flats, const FlatProperties& wanted) {
  const auto found = std::ranges::find_if(
      flats, [&](const auto& flat) { return flat.same_flat(wanted); });
  return found == flats.end() ? flats.emplace_back(wanted) : *found;
}

// By the policy's unit, and whether it is its frozen part; those without parameters get none.
using UnitNumbers = std::map<std::pair<int, bool>, UnitId>;

// Both parts of a unit would have one name.
void name_frozen_units(const UnitNumbers& numbers, ModelUnits& model) {
  for (const auto& [key, unit] : numbers) {
    if (key.second && numbers.contains({key.first, false})) {
      model.units[static_cast<std::size_t>(unit)].name += " (frozen)";
    }
  }
}

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

std::vector<std::int64_t> bytes_by_unit(const ModelUnits& model) {
  std::vector<std::int64_t> bytes;
  for (const auto& unit : model.units) {
    bytes.push_back(exchange::unit_bytes(unit));
  }
  return bytes;
}

plan::UnitSizes policy_unit_sizes(const ModelUnits& model) {
  plan::UnitSizes sizes;
  std::map<int, std::size_t> numbers;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto& traits = model.traits[u];
    const auto [found, is_new] =
        numbers.emplace(traits.policy_unit, sizes.bytes.size());
    if (is_new) {
      sizes.bytes.push_back(0);
      sizes.kept.push_back(traits.keep_whole);
    }
    sizes.bytes[found->second] += exchange::unit_bytes(model.units[u]);
    if (model.root == static_cast<UnitId>(u)) {
      sizes.root = static_cast<UnitId>(found->second);
    }
  }
  return sizes;
}

bool uses_fp16(const ModelUnits& model) {
  const auto has_fp16 = [](const exchange::FlatSpec& flat) {
    return flat.unsharded_dtype() == at::kHalf ||
        (flat.trainable && flat.slot_dtype() == at::kHalf);
  };
  return std::ranges::any_of(model.units, [&](const auto& unit) {
    return std::ranges::any_of(unit.flats, has_fp16);
  });
}

const ManagedParameter& find_parameter(
    const ModelUnits& model, const std::string& name) {
  const auto tied = model.tied_names.find(name);
  const auto& first = tied == model.tied_names.end() ? name : tied->second;
  for (const auto& parameter : model.parameters) {
    if (parameter.name == first) {
      return parameter;
    }
  }
  throw Error(
      str("[fsdp] no parameter is named '", name, "'; the first is '",
          model.parameters.front().name, "'"));
}

std::vector<UnitId> units_of(const ModelUnits& model, const std::string& name) {
  std::set<UnitId> found;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (name.empty() || model.units[u].name == name) {
      found.insert(static_cast<UnitId>(u));
    }
  }
  for (const auto& parameter : model.parameters) {
    if (parameter.name.starts_with(name + ".")) {
      found.insert(parameter.unit);
    }
  }
  // The frozen part of a unit has a name of its own.
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    if (model.units[u].name == name && u < model.traits.size()) {
      for (std::size_t v = 0; v < model.units.size(); ++v) {
        if (model.traits[v].policy_unit == model.traits[u].policy_unit) {
          found.insert(static_cast<UnitId>(v));
        }
      }
    }
  }
  SHERD_CHECK(
      !found.empty(),
      "[fsdp] expected the name of a module with parameters or "
      "of a unit, e.g. '",
      model.units.front().name, "', found '", name, "'");
  return {found.begin(), found.end()};
}

bool is_mixed(const ModelUnits& model) {
  const autograd::ActivationCasts none;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto& flat = model.units[u].flats[f];
      if (flat.param_dtype || flat.reduce_dtype ||
          model.traits[u].casts[f] != none) {
        return true;
      }
    }
  }
  return false;
}

std::vector<UnitReport> list_units(const ModelUnits& model) {
  std::vector<UnitReport> list;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto& unit = model.units[u];
    auto& report = list.emplace_back();
    report.name = unit.name;
    report.bytes = exchange::unit_bytes(unit);
    report.keep_whole = model.traits[u].keep_whole;
    for (const auto& flat : unit.flats) {
      report.flats.push_back(
          {.parameters = flat.names,
           .numel = flat.layout.numel,
           .dtype = flat.dtype,
           .param_dtype = flat.unsharded_dtype(),
           .reduce_dtype = flat.slot_dtype(),
           .gradient_dtype = flat.gradient_dtype(),
           .trainable = !flat.starts_frozen});
    }
  }
  return list;
}

ModelUnits build_units(
    const Module& module, int ranks, const FullyShardOptions& options) {
  check_ignored(module, options.ignored);
  check_takes_modules(module, options.units, options.ignored);
  const auto taken = unit_modules(module, options.units, options.ignored);
  ModelUnits model;
  UnitCollector collector(options, model);
  collector.collect(module, taken);
  const auto& entries = collector.entries();
  SHERD_CHECK(
      !entries.empty(),
      "[fsdp] the module has no parameters; expected at least one",
      options.ignored.empty() ? "" : " that options.ignored leaves");
  const bool mixed = std::ranges::any_of(entries, [](const auto& entry) {
    return takes_precision(entry) && entry.options.precision->param_dtype;
  });
  check_tied(collector, mixed);

  model.device = common_device(collector, options.device);
  UnitNumbers numbers;
  std::vector<std::vector<FlatProperties>> flats_of;  // By unit.
  for (const auto& entry : entries) {
    check_can_be_sharded(entry.name, entry.tensor);
    const auto next = static_cast<UnitId>(numbers.size());
    const bool frozen = !entry.tensor.requires_grad();
    const auto [found, is_new] =
        numbers.emplace(std::pair(entry.unit, frozen), next);
    if (is_new) {
      const auto& unit = collector.unit(entry.unit);
      flats_of.emplace_back();
      model.units.push_back({unit.name, {}});
      model.traits.push_back(
          {.keep_whole = unit.keep_whole,
           .policy_unit = entry.unit,
           .casts = {}});
      if (entry.unit == 0 && !model.root) {
        model.root = found->second;
      }
    }
    auto& flats = flats_of[static_cast<std::size_t>(found->second)];
    auto& flat = find_or_add(flats, flat_for(entry, mixed));
    flat.spec.names.push_back(entry.name);
    flat.spec.shapes.push_back(str(entry.tensor.sizes()));
    const auto& granularity = *entry.options.granularity;
    model.parameters.push_back(
        {entry.name, entry.tensor, found->second,
         static_cast<int>(&flat - flats.data()),
         static_cast<int>(flat.parameters.size()), -1});
    flat.parameters.push_back(
        {entry.name, entry.tensor.numel(),
         granularity ? granularity(entry.name, entry.tensor) : 1});
  }
  name_frozen_units(numbers, model);
  for (std::size_t u = 0; u < flats_of.size(); ++u) {
    for (auto& flat : flats_of[u]) {
      flat.spec.layout = plan::plan_flat_layout(
          flat.parameters,
          {.ranks = ranks, .element_bytes = element_bytes(flat.spec)});
      model.units[u].flats.push_back(std::move(flat.spec));
      model.traits[u].casts.push_back(flat.casts);
    }
  }
  number_trainable(model);
  return model;
}

}  // namespace sherd::fsdp
