// SPDX-License-Identifier: Apache-2.0
#include <sherd/ddp/replicate.h>

#include <cmath>
#include <utility>

#include <torch/nn/module.h>

#include "base/check.h"
#include "ddp/ddp_engine.h"
#include "ddp/replicated_model.h"
#include "world/on_all_or_none.h"

namespace sherd {
namespace {

void check_precision(
    const char* what,
    std::optional<at::ScalarType> dtype,
    const ddp::ReplicatedModel& model) {
  SHERD_CHECK(
      !dtype || *dtype == at::kFloat || *dtype == at::kBFloat16 ||
          *dtype == at::kHalf,
      "[ddp] options.", what, " is ",
      c10::toString(dtype.value_or(at::ScalarType::Undefined)),
      "; expected Float, BFloat16 or Half");
  for (const auto* items : {&model.trainable, &model.sparse, &model.frozen}) {
    for (const auto& item : *items) {
      SHERD_CHECK(
          !dtype || item.tensor.scalar_type() != at::kDouble,
          "[ddp] parameter ", item.name, " is of type Double, which options.",
          what,
          " would narrow; expected Float, BFloat16 or Half "
          "(module->to(torch::kFloat) before replicate)");
    }
  }
}

void check_options(const ReplicateOptions& options) {
  SHERD_CHECK(
      options.bucket_bytes > 0 && options.first_bucket_bytes > 0,
      "[ddp] expected options.bucket_bytes and first_bucket_bytes above 0, "
      "found ",
      options.bucket_bytes, " and ", options.first_bucket_bytes);
  SHERD_CHECK(
      options.reductions_under_way_max >= 0,
      "[ddp] options.reductions_under_way_max is ",
      options.reductions_under_way_max, "; expected 0 (no limit) or more");
  SHERD_CHECK(
      !options.buffer_hook || options.broadcast_buffers,
      "[ddp] options.buffer_hook needs broadcast_buffers, found it off");
  const double factor = options.gradient_divide_factor.value_or(1.0);
  SHERD_CHECK(
      factor > 0.0 && std::isfinite(factor),
      "[ddp] options.gradient_divide_factor is ", factor,
      "; expected a finite number above 0");
}

// A mesh in which every rank of the world is a replica.
Mesh all_of(const World& world) {
  return Mesh(world, {.replicate = world.size()});
}

}  // namespace

LocalGradientsScope::LocalGradientsScope(std::shared_ptr<ddp::DdpEngine> engine)
    : engine_(std::move(engine)) {}
LocalGradientsScope::LocalGradientsScope(LocalGradientsScope&&) noexcept =
    default;
LocalGradientsScope::~LocalGradientsScope() {
  if (engine_) {
    engine_->end_no_sync();
  }
}

DistributedDataParallel::DistributedDataParallel(
    std::shared_ptr<ddp::DdpEngine> engine)
    : engine_(std::move(engine)) {}

DistributedDataParallel::DistributedDataParallel(
    DistributedDataParallel&&) noexcept = default;

DistributedDataParallel& DistributedDataParallel::operator=(
    DistributedDataParallel&& other) noexcept {
  if (this != &other) {
    close();
    engine_ = std::move(other.engine_);
  }
  return *this;
}

DistributedDataParallel::~DistributedDataParallel() { close(); }

NamedParameters DistributedDataParallel::named_parameters() const {
  return engine_->named_parameters();
}

LocalGradientsScope DistributedDataParallel::no_sync() {
  engine_->begin_no_sync();
  return LocalGradientsScope(engine_.pointer());
}

JoinScope DistributedDataParallel::join(const JoinOptions& options) {
  return {engine_.pointer(), options};
}

void DistributedDataParallel::set_world(const World& world) {
  set_mesh(all_of(world));
}

void DistributedDataParallel::set_mesh(const Mesh& mesh) {
  engine_->set_mesh(mesh);
}

void DistributedDataParallel::set_hook(const CommHookPtr& hook) {
  engine_->set_hook(hook);
}

void DistributedDataParallel::synchronize() { engine_->synchronize(); }

void DistributedDataParallel::average_parameters() {
  engine_->average_parameters();
}

ReplicateReport DistributedDataParallel::report() const {
  return engine_->report();
}

void DistributedDataParallel::close() {
  if (engine_) {
    engine_->close();
  }
}

DistributedDataParallel replicate(
    torch::nn::Module& module,
    const World& world,
    const ReplicateOptions& options) {
  return replicate(module, all_of(world), options);
}

DistributedDataParallel replicate(
    torch::nn::Module& module,
    const Mesh& mesh,
    const ReplicateOptions& options) {
  ddp::ReplicatedModel model;
  world::on_all_or_none(mesh.world(), "[ddp]", "replicate its module", [&] {
    check_options(options);
    model = ddp::collect_model(module, options.ignored);
    check_precision("param_dtype", options.param_dtype, model);
    check_precision("reduce_dtype", options.reduce_dtype, model);
    ddp::check_delayed(model, options.delayed);
    ddp::DdpEngine::check_on_device(model, mesh);
  });
  auto engine = std::make_shared<ddp::DdpEngine>(
      module.name(), std::move(model), mesh, options);
  engine->start();
  return DistributedDataParallel(std::move(engine));
}

}  // namespace sherd
