// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <optional>
#include <ATen/ops/empty.h>
#include <sherd/fsdp/fully_shard.h>
#include <torch/nn/module.h>
#include "bindings.h"
#include "scope.h"

namespace sherd::python {
namespace {

// Empty where nothing is gathered: one rank alone.
std::shared_ptr<void> claim_of(const NamedParameters& parameters) {
  return parameters.claim ? parameters.claim() : nullptr;
}

// Every optimizer of Python publishes, so that what is used after a backward has not changed before
// one has done so: a pass that began earlier may still run backward.
struct ShardedModule : FullyShardedDataParallel {
  std::shared_ptr<void> publishes = claim_of(named_parameters());
};

using NamedUnits = std::map<std::string, units::UnitOptions>;

// The modules of these names. Python's policies are asked before, since modules are Python's.
units::Policy policy_of(NamedUnits units) {
  return units::optional(
      [units = std::move(units)](
          const units::Candidate& candidate) -> units::Answer {
        const auto found = units.find(candidate.name);
        return found == units.end() ? units::Answer(false)
                                    : units::Answer(found->second);
      });
}

ShardedModule shard(
    const ModuleTree& tree,
    const Mesh& mesh,
    FullyShardOptions options,
    NamedUnits units) {
  options.units = policy_of(std::move(units));
  return ShardedModule{fully_shard(*tree.root, mesh, options)};
}

void bind_options(py::module_& module) {
  py::enum_<Strategy>(module, "Strategy")
      .value("full_shard", Strategy::kFullShard)
      .value("shard_grad_op", Strategy::kShardGradOp)
      .value("no_shard", Strategy::kNoShard);
  py::enum_<OptimizerAxes>(module, "OptimizerAxes")
      .value("shard", OptimizerAxes::kShard)
      .value("both", OptimizerAxes::kBoth);
  py::enum_<ExchangeKind>(module, "ExchangeKind")
      .value("auto", ExchangeKind::kAuto)
      .value("collective", ExchangeKind::kCollective)
      .value("shm", ExchangeKind::kSharedMemory)
      .value("hierarchical", ExchangeKind::kHierarchical)
      // The words of reports.
      .value("messages", ExchangeKind::kCollective)
      .value("shared_memory", ExchangeKind::kSharedMemory);
  py::class_<MixedPrecision>(module, "MixedPrecision")
      .def(py::init())
      .def_readwrite("param_dtype", &MixedPrecision::param_dtype)
      .def_readwrite("reduce_dtype", &MixedPrecision::reduce_dtype)
      .def_readwrite(
          "cast_forward_inputs", &MixedPrecision::cast_forward_inputs)
      .def_readwrite("buffer_dtype", &MixedPrecision::buffer_dtype)
      .def_readwrite(
          "keep_low_precision_grads",
          &MixedPrecision::keep_low_precision_grads);
  py::class_<units::UnitOptions>(module, "UnitOptions")
      .def(py::init())
      .def_readwrite("name", &units::UnitOptions::name)
      .def_readwrite("own_unit", &units::UnitOptions::own_unit)
      .def_readwrite("mixed_precision", &units::UnitOptions::mixed_precision)
      .def_readwrite("output_dtype", &units::UnitOptions::output_dtype)
      .def_readwrite("keep_whole", &units::UnitOptions::keep_whole);
  using Options = FullyShardOptions;
  py::class_<Options>(module, "FullyShardOptions")
      .def(py::init())
      .def_readwrite("strategy", &Options::strategy)
      .def_readwrite("budget_bytes", &Options::budget_bytes)
      .def_readwrite("memory_bytes", &Options::memory_bytes)
      .def_readwrite("prefetch_visits", &Options::prefetch_visits)
      .def_readwrite("secondary_ranks", &Options::secondary_ranks)
      .def_readwrite("exchange", &Options::exchange)
      .def_readwrite(
          "reductions_under_way_max", &Options::reductions_under_way_max)
      .def_readwrite("optimizer_axes", &Options::optimizer_axes)
      .def_readwrite("sync_module_states", &Options::sync_module_states)
      .def_readwrite("compare_initial_values", &Options::compare_initial_values)
      .def_readwrite("share_gradients", &Options::share_gradients)
      .def_readwrite("device", &Options::device)
      .def_readwrite("initialise", &Options::initialise)
      .def_readwrite("mixed_precision", &Options::mixed_precision)
      .def_readwrite("gradient_divide_factor", &Options::gradient_divide_factor)
      .def_readwrite("hook", &Options::hook)
      .def_readwrite("gather_hook", &Options::gather_hook)
      .def_readwrite("cpu_offload", &Options::cpu_offload)
      .def_readwrite("memory_from_backend", &Options::memory_from_backend)
      .def_readwrite("ignored", &Options::ignored);
}

std::vector<std::string> parameters_of(const UnitReport& unit) {
  std::vector<std::string> names;
  for (const auto& flat : unit.flats) {
    names.insert(names.end(), flat.parameters.begin(), flat.parameters.end());
  }
  return names;
}

void bind_memory_report(py::module_& module) {
  using Choice = MemoryChoice;
  py::class_<Choice>(module, "MemoryChoice")
      .def_readonly("limit_bytes", &Choice::limit_bytes)
      .def_readonly("peak_bytes", &Choice::peak_bytes)
      .def_readonly("budget_bytes", &Choice::budget_bytes)
      .def_readonly("recomputed", &Choice::recomputed)
      .def_readonly("step_s", &Choice::step_s)
      .def_readonly("lower_bound_s", &Choice::lower_bound_s);
  using Report = MemoryReport;
  py::class_<Report>(module, "MemoryReport")
      .def_readonly("decided", &Report::decided)
      .def_readonly("limit_bytes", &Report::limit_bytes)
      .def_readonly("floor_bytes", &Report::floor_bytes)
      .def_readonly("peak_bytes", &Report::peak_bytes)
      .def_readonly("budget_bytes", &Report::budget_bytes)
      .def_readonly("regions", &Report::regions)
      .def_readonly("recomputed", &Report::recomputed)
      .def_readonly("step_s", &Report::step_s)
      .def_readonly("lower_bound_s", &Report::lower_bound_s)
      .def_readonly("last_step_s", &Report::last_step_s)
      .def_readonly("choices", &Report::choices);
}

void bind_plan_report(py::module_& module) {
  using Report = PlanReport;
  py::class_<Report>(module, "PlanReport")
      .def_readonly("steps", &Report::steps)
      .def_readonly("steps_planned", &Report::steps_planned)
      .def_readonly("plans_made", &Report::plans_made)
      .def_readonly("deviations", &Report::deviations)
      .def_readonly("gathers", &Report::gathers)
      .def_readonly("gathered_bytes", &Report::gathered_bytes)
      .def_readonly("lower_bound_bytes", &Report::lower_bound_bytes)
      .def_readonly("tenth_more_saves_bytes", &Report::tenth_more_saves_bytes);
}

void bind_reports(py::module_& module) {
  bind_memory_report(module);
  bind_plan_report(module);
  py::class_<UnitReport>(module, "UnitReport")
      .def_readonly("name", &UnitReport::name)
      .def_readonly("bytes", &UnitReport::bytes)
      .def_readonly("keep_whole", &UnitReport::keep_whole)
      .def_property_readonly("parameters", &parameters_of)
      .def_readonly("visits", &UnitReport::visits)
      .def_readonly("gathers", &UnitReport::gathers)
      .def_readonly("gather_s", &UnitReport::gather_s)
      .def_readonly("waited_s", &UnitReport::waited_s)
      .def_readonly("overlap", &UnitReport::overlap);
  using Report = ShardReport;
  py::class_<Report>(module, "ShardReport")
      .def_readonly("units", &Report::units)
      .def_readonly("budget_bytes", &Report::budget_bytes)
      .def_readonly("unsharded_bytes_peak", &Report::unsharded_bytes_peak)
      .def_readonly("shard_bytes", &Report::shard_bytes)
      .def_readonly("unshards", &Report::unshards)
      .def_readonly("unsharded_bytes", &Report::unsharded_bytes)
      .def_readonly(
          "gradient_slot_bytes_peak", &Report::gradient_slot_bytes_peak)
      .def_readonly("reduces", &Report::reduces)
      .def_readonly("reduces_under_way_peak", &Report::reduces_under_way_peak)
      .def_readonly("backwards", &Report::backwards)
      .def_readonly("gather_sent_bytes", &Report::gather_sent_bytes)
      .def_readonly("memory_from_backend", &Report::memory_from_backend)
      .def_readonly("hook", &Report::hook)
      .def_readonly("hook_bytes", &Report::hook_bytes)
      .def_readonly("plan", &Report::plan)
      .def_readonly("by_unit", &Report::by_unit)
      .def_readonly("memory", &Report::memory)
      .def("to_text", [](const Report& report) { return to_text(report); })
      .def("to_json", [](const Report& report) { return to_json(report); });
}

void bind_summon(py::module_& module) {
  py::class_<SummonScope>(module, "SummonScope", DestroyedWithoutGil())
      .def("tensor", &SummonScope::tensor, py::arg("name"), WithoutGil())
      .def("gradient", &SummonScope::gradient, py::arg("name"), WithoutGil())
      .def("close", &SummonScope::close, WithoutGil())
      .def("__enter__", [](py::object scope) { return scope; })
      .def("__exit__", [](SummonScope& scope, const py::args&) {
        const py::gil_scoped_release released;
        scope.close();
      });
  py::class_<UnshardHandle>(module, "UnshardHandle")
      .def("wait", &UnshardHandle::wait, WithoutGil());
}

SummonScope summon(
    ShardedModule& module,
    bool read_only,
    bool full_precision,
    bool rank0_only,
    bool with_gradients,
    const std::string& of_module) {
  return module.summon_full_parameters(
      {.read_only = read_only,
       .full_precision = full_precision,
       .rank0_only = rank0_only,
       .with_gradients = with_gradients,
       .module = of_module});
}

// The slice of each parameter, empty where this rank owns nothing of it.
NamedTensors slices_of(const NamedParameters& parameters) {
  std::map<std::string, at::Tensor> owned;
  for (const auto& item : parameters.items) {
    owned.emplace(item.name, item.slice);
  }
  NamedTensors slices;
  for (const auto& item : parameters.whole.items) {
    const auto found = owned.find(item.name);
    slices.emplace_back(
        item.name,
        found != owned.end() ? found->second : at::empty({0}, item.options));
  }
  return slices;
}

// Calls a function of parameters, if they have it.
template <auto function, typename... Arguments>
void call(const NamedParameters& parameters, Arguments... arguments) {
  if (parameters.*function) {
    (parameters.*function)(arguments...);
  }
}

void bind_named_parameters(py::module_& module) {
  using Self = NamedParameters;
  py::class_<Self>(module, "NamedParameters")
      .def(
          "items",
          [](const Self& parameters) {
            NamedTensors items;
            for (const auto& item : parameters.items) {
              items.emplace_back(item.name, item.slice);
            }
            return items;
          })
      .def("slices", &slices_of)
      .def(
          "split",
          [](const Self& parameters, const std::vector<std::string>& patterns) {
            auto parts = split(parameters, patterns);
            return std::make_pair(
                std::move(parts.matching), std::move(parts.rest));
          })
      // What an optimizer calls; frozen slices count as unchanged.
      .def("publish", &call<&Self::publish>, WithoutGil())
      .def(
          "all_reduce_max", &call<&Self::all_reduce_max, const at::Tensor&>,
          WithoutGil())
      .def(
          "drop_kept", &call<&Self::drop_kept, const std::vector<std::string>&>,
          WithoutGil());
}

}  // namespace

void bind_fully_shard(py::module_& module) {
  bind_options(module);
  bind_reports(module);
  bind_summon(module);
  bind_named_parameters(module);
  using Self = ShardedModule;
  using Name = const std::string&;
  py::class_<Self> sharded(module, "ShardedModule", DestroyedWithoutGil());
  bind_join(sharded);
  sharded.def("named_parameters", &Self::named_parameters, WithoutGil())
      .def(
          "clip_grad_norm",
          [](Self& self, double max_norm, double p, bool error_if_nonfinite) {
            return self.clip_grad_norm(
                max_norm, {.p = p, .error_if_nonfinite = error_if_nonfinite});
          },
          WithoutGil())
      .def("publish", &Self::publish, WithoutGil())
      .def("unshard", py::overload_cast<>(&Self::unshard), WithoutGil())
      .def("unshard", py::overload_cast<Name>(&Self::unshard), WithoutGil())
      .def("reshard", py::overload_cast<>(&Self::reshard), WithoutGil())
      .def("reshard", py::overload_cast<Name>(&Self::reshard), WithoutGil())
      .def("set_strategy", &Self::set_strategy, WithoutGil())
      .def("set_budget_bytes", &Self::set_budget_bytes, WithoutGil())
      .def("summon_full_parameters", &summon, WithoutGil())
      .def(
          "no_sync",
          [](Self& self, bool replicate_only) {
            const auto axis =
                replicate_only ? NoSyncAxis::kReplicate : NoSyncAxis::kBoth;
            return make_scope(
                [&self, axis] { return self.no_sync({.axis = axis}); });
          },
          py::keep_alive<0, 1>())
      .def(
          "full_precision",
          [](Self& self) {
            return make_scope([&self] { return self.full_precision(); });
          },
          py::keep_alive<0, 1>())
      .def("report", &Self::report, WithoutGil())
      .def("units", &Self::units, WithoutGil())
      .def("close", &Self::close, WithoutGil());
  module.def(
      "fully_shard", &shard, py::arg("tree"), py::arg("mesh"),
      py::arg("options"), py::arg("units"), py::keep_alive<0, 1>(),
      WithoutGil());
}

}  // namespace sherd::python
