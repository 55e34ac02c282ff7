// SPDX-License-Identifier: Apache-2.0
//
// Communication hooks: those of sherd, and functions of Python in their place.
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <pybind11/functional.h>
#include <sherd/base/error.h>
#include <sherd/fsdp/gather_hook.h>
#include "bindings.h"

namespace sherd::python {
namespace {

// The group of a hook, lent to a function of Python until that has returned.
class LentGroup {
 public:
  explicit LentGroup(HookGroup& group) : group_(&group) {}

  // Remembers what a collective throws, which Python would make another exception of.
  template <typename Call>
  auto call(Call collective) {
    if (group_ == nullptr) {
      throw Error(
          "[python] expected calls of a hook's group inside the hook, found "
          "one after it has returned",
          ErrorCode::kFailedPrecondition);
    }
    try {
      return collective(*group_);
    } catch (const Error&) {
      failure_ = std::current_exception();
      throw;
    }
  }
  void end() { group_ = nullptr; }
  const std::exception_ptr& failure() const { return failure_; }

 private:
  HookGroup* group_;
  std::exception_ptr failure_;
};
using LentGroupPtr = std::shared_ptr<LentGroup>;

// Calls a function of Python, which takes the interpreter's lock by itself.
template <typename Call>
void lend(HookGroup& group, Call call) {
  const auto lent = std::make_shared<LentGroup>(group);
  try {
    call(lent);
  } catch (const py::error_already_set& raised) {
    lent->end();
    if (lent->failure()) {
      std::rethrow_exception(lent->failure());
    }
    throw std::runtime_error(raised.what());
  }
  lent->end();
}

// Python gets a bucket of its own, which a function may keep, but the tensors are the same.
using BucketPtr = std::shared_ptr<GradientBucket>;
using Reduce = std::function<void(const BucketPtr&, const LentGroupPtr&)>;
using ReduceBuffers =
    std::function<void(const NamedTensors&, const LentGroupPtr&)>;

// A function of Python, with what it says about itself by attributes.
class FunctionHook final : public CommHook {
 public:
  FunctionHook(
      std::string name,
      Reduce reduce,
      bool reduces_to_shards,
      bool keeps_models_equal)
      : name_(std::move(name)),
        reduce_(std::move(reduce)),
        reduces_to_shards_(reduces_to_shards),
        keeps_models_equal_(keeps_models_equal) {}

  std::string name() const override { return name_; }
  bool reduces_to_shards() const override { return reduces_to_shards_; }
  bool keeps_models_equal() const override { return keeps_models_equal_; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    const auto shown = std::make_shared<GradientBucket>(bucket);
    lend(group, [&](const LentGroupPtr& lent) { reduce_(shown, lent); });
    bucket.gradients = shown->gradients;
  }

 private:
  const std::string name_;
  const Reduce reduce_;
  const bool reduces_to_shards_;
  const bool keeps_models_equal_;
};

void bind_arguments(py::module_& module) {
  py::class_<GradientBucket, BucketPtr>(module, "GradientBucket")
      .def_readonly("index", &GradientBucket::index)
      .def_readonly("last", &GradientBucket::last)
      .def_readonly("step", &GradientBucket::step)
      .def_readwrite("gradients", &GradientBucket::gradients)
      .def_readonly("cuts", &GradientBucket::cuts)
      .def_property_readonly("parameters", [](const GradientBucket& bucket) {
        NamedTensors named;
        for (const auto& parameter : bucket.parameters) {
          named.emplace_back(parameter.name, parameter.gradient);
        }
        return named;
      });
  using Self = LentGroup;
  using Cuts = std::vector<std::int64_t>;
  py::class_<Self, LentGroupPtr>(module, "HookGroup")
      .def_property_readonly(
          "rank",
          [](Self& self) {
            return self.call([](auto& group) { return group.rank(); });
          })
      .def_property_readonly(
          "size",
          [](Self& self) {
            return self.call([](auto& group) { return group.size(); });
          })
      .def(
          "all_reduce_mean",
          [](Self& self, const at::Tensor& tensor,
             const std::optional<std::vector<int>>& ranks) {
            self.call([&](auto& group) {
              ranks ? group.all_reduce_mean(tensor, *ranks)
                    : group.all_reduce_mean(tensor);
            });
          },
          py::arg("tensor"), py::arg("ranks") = py::none(), WithoutGil())
      .def(
          "reduce_scatter_mean",
          [](Self& self, const at::Tensor& tensor, const Cuts& cuts) {
            self.call(
                [&](auto& group) { group.reduce_scatter_mean(tensor, cuts); });
          },
          py::arg("tensor"), py::arg("cuts"), WithoutGil())
      .def(
          "all_gather",
          [](Self& self, const at::Tensor& tensor) {
            return self.call(
                [&](auto& group) { return group.all_gather(tensor); });
          },
          py::arg("tensor"), WithoutGil());
}

void bind_options(py::module_& module) {
  py::enum_<QuantisationScale>(module, "QuantisationScale")
      .value("tensor", QuantisationScale::kTensor)
      .value("channel", QuantisationScale::kChannel);
  py::class_<QuantiseOptions>(module, "QuantiseOptions")
      .def(py::init())
      .def_readwrite("scale", &QuantiseOptions::scale)
      .def_readwrite("error_feedback", &QuantiseOptions::error_feedback);
  py::class_<PowerSgdOptions>(module, "PowerSgdOptions")
      .def(py::init())
      .def_readwrite("rank", &PowerSgdOptions::rank)
      .def_readwrite("start_step", &PowerSgdOptions::start_step)
      .def_readwrite("compression_min", &PowerSgdOptions::compression_min)
      .def_readwrite("error_feedback", &PowerSgdOptions::error_feedback)
      .def_readwrite("warm_start", &PowerSgdOptions::warm_start)
      .def_readwrite("batched", &PowerSgdOptions::batched)
      .def_readwrite("seed", &PowerSgdOptions::seed);
  py::class_<PostLocalSgdOptions>(module, "PostLocalSgdOptions")
      .def(py::init())
      .def_readwrite("start_step", &PostLocalSgdOptions::start_step)
      .def_readwrite("group_size", &PostLocalSgdOptions::group_size);
}

}  // namespace

BufferHook buffer_hook_of(const py::object& function) {
  if (function.is_none()) {
    return nullptr;
  }
  return [reduce = function.cast<ReduceBuffers>()](
             const NamedTensors& buffers, HookGroup& group) {
    lend(group, [&](const LentGroupPtr& lent) { reduce(buffers, lent); });
  };
}

void bind_hooks(py::module_& module) {
  bind_arguments(module);
  bind_options(module);
  py::class_<CommHook, CommHookPtr>(module, "CommHook")
      .def_property_readonly("name", &CommHook::name)
      .def_property_readonly(
          "keeps_models_equal", &CommHook::keeps_models_equal)
      .def("state", &CommHook::state)
      .def("load", &CommHook::load, py::arg("state"));
  module.def("all_reduce_mean", &all_reduce_mean);
  module.def("compress", &compress);
  module.def("quantise", &quantise);
  module.def("power_sgd", &power_sgd);
  module.def("post_local_sgd", &post_local_sgd);
  py::class_<GatherHook, GatherHookPtr>(module, "GatherHook")
      .def_property_readonly("name", &GatherHook::name);
  module.def("quantise_gathers", [](std::int64_t block) {
    return quantise_gathers({.block = block});
  });
  module.def(
      "function_hook",
      [](std::string name, Reduce reduce, bool reduces_to_shards,
         bool keeps_models_equal) -> CommHookPtr {
        return std::make_shared<FunctionHook>(
            std::move(name), std::move(reduce), reduces_to_shards,
            keeps_models_equal);
      },
      py::arg("name"), py::arg("reduce"), py::arg("reduces_to_shards"),
      py::arg("keeps_models_equal"));
}

}  // namespace sherd::python
