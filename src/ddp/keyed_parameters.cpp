// SPDX-License-Identifier: Apache-2.0
#include "ddp/keyed_parameters.h"

#include <map>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "autograd/param_key.h"
#include "base/check.h"

namespace sherd::ddp {

KeyedParameters::KeyedParameters(
    const std::vector<ModuleTensor>& parameters,
    const autograd::ActivationCasts& casts)
    : parameters_(parameters), casts_(casts) {}

KeyedParameters::~KeyedParameters() { release(); }

void KeyedParameters::take(
    autograd::ParameterUseListener& listener,
    std::function<autograd::GradientCallback(std::size_t)> callback_for) {
  std::map<const void*, std::size_t> known;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const auto& parameter = parameters_[p].tensor;
    const auto plain = parameter.storage();
    const auto [place, added] =
        known.try_emplace(plain.unsafeGetStorageImpl(), storages_.size());
    if (added) {
      auto managed = std::make_unique<autograd::ManagedStorage>(
          &listener, static_cast<int>(storages_.size()), 0,
          static_cast<std::int64_t>(plain.nbytes()), parameter.device(),
          casts_);
      managed->fill(plain.mutable_data());
      storages_.push_back({plain, std::move(managed)});
    }
    storage_of_.push_back(place->second);
    autograd::adopt_in_place(parameter, *storages_[place->second].managed);
  }
  callback_for_ = std::move(callback_for);
  (void)set_gradient_hooks();
}

std::vector<std::size_t> KeyedParameters::set_gradient_hooks() {
  std::vector<std::size_t> set;
  for (std::size_t p = 0; callback_for_ && p < parameters_.size(); ++p) {
    const auto& parameter = parameters_[p].tensor;
    if (!autograd::has_gradient_hook(parameter)) {
      autograd::set_gradient_hook(parameter, callback_for_(p));
      set.push_back(p);
    }
  }
  return set;
}

void KeyedParameters::follow_replaced_bytes() const {
  for (const auto& storage : storages_) {
    if (auto replaced = storage.managed->follow_replaced_bytes()) {
      storage.plain.unsafeGetStorageImpl()->set_data_ptr_noswap(
          std::move(*replaced));
    }
  }
}

void KeyedParameters::release() {
  // A mode of Python that is on while its garbage collector ends the handle must not see this.
  const c10::impl::ExcludeDispatchKeyGuard below_python(c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  follow_replaced_bytes();
  for (std::size_t p = 0; p < storage_of_.size(); ++p) {
    const auto& parameter = parameters_[p].tensor;
    autograd::remove_gradient_hook(parameter);
    const auto& storage = storage_of(p);
    if (autograd::is_adopted(parameter, *storage.managed)) {
      auto plain = at::empty({0}, parameter.options().requires_grad(false));
      plain.set_(
          storage.plain, parameter.storage_offset(), parameter.sizes(),
          parameter.strides());
      autograd::release(parameter, plain);
    }
  }
  storage_of_.clear();
  storages_.clear();
  callback_for_ = nullptr;
}

void KeyedParameters::check() const {
  follow_replaced_bytes();
  for (std::size_t p = 0; p < storage_of_.size(); ++p) {
    SHERD_CHECK_AS(
        kFailedPrecondition,
        autograd::is_adopted(parameters_[p].tensor, *storage_of(p).managed),
        "[ddp] parameter ", parameters_[p].name,
        " was given another storage after replicate() (torch::load(), "
        "module->to(), set_data() or the like); load or convert the module "
        "before, or copy values into parameters");
  }
}

at::Tensor KeyedParameters::values(std::size_t parameter) const {
  follow_replaced_bytes();
  const auto& tensor = parameters_[parameter].tensor;
  return at::empty({0}, tensor.options().requires_grad(false))
      .set_(
          storage_of(parameter).plain, tensor.storage_offset(),
          {tensor.numel()}, {1});
}

}  // namespace sherd::ddp
