// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/state_bytes.h"

#include <vector>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/copy_bytes.h"
#include "base/digest.h"
#include "base/hash.h"
#include "ckpt/state_access.h"
#include "device/host_memory.h"
#include "net/bytes.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kNameBytesMax = 4096;

std::size_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.nbytes());
}

// For example "adamw exp_avg.h.0.weight Float".
std::string name_of(const CheckpointAccess::LoadTarget& target) {
  return str(
      target.section, ' ', target.shard.name, ' ',
      c10::toString(target.shard.elements.scalar_type()));
}

// The size of what state_bytes() writes: a string that grows while it is written would take the
// state's memory twice.
std::size_t size_of(const std::vector<CheckpointAccess::LoadTarget>& targets) {
  std::size_t bytes = sizeof(std::uint32_t);
  for (const auto& target : targets) {
    bytes += sizeof(std::uint32_t) + name_of(target).size() +
        sizeof(std::uint64_t) + bytes_of(target.shard.elements);
  }
  return bytes;
}

}  // namespace

std::string state_bytes(const CheckpointState& state, int rank) {
  const at::NoGradGuard no_grad;  // Reading is not part of a forward.
  const auto targets = CheckpointAccess::targets(state, rank, {});
  net::ByteWriter out;
  out.reserve(size_of(targets));
  out.count(targets.size());
  for (const auto& target : targets) {
    const auto elements = device::on_host(target.shard.elements);
    out.text(name_of(target));
    out.u64(bytes_of(elements));
    out.raw(
        {static_cast<const char*>(elements.const_data_ptr()),
         bytes_of(elements)});
  }
  return out.take();
}

std::uint64_t state_digest(const CheckpointState& state, int rank) {
  const at::NoGradGuard no_grad;
  Hash64 hash;
  for (const auto& target : CheckpointAccess::targets(state, rank, {})) {
    const auto elements = device::on_host(target.shard.elements);
    hash.add(name_of(target));
    hash.add(digest_of(elements.const_data_ptr(), bytes_of(elements)));
  }
  return hash.value();
}

std::uint64_t parameter_digest(const NamedParameters& parameters) {
  Hash64 hash;
  for (const auto& item : parameters.items) {
    const auto elements = device::on_host(item.slice.detach());
    hash.add(digest_of(elements.const_data_ptr(), bytes_of(elements)));
  }
  return hash.value();
}

void restore_state(
    const CheckpointState& state, int rank, std::string_view bytes) {
  net::ByteReader in(bytes);
  const auto targets = CheckpointAccess::targets(state, rank, {});
  const auto count = in.count("tensors", {1U << 24U, 1});
  SHERD_CHECK(
      !in.ok() || count == targets.size(), "[ft] expected a state of ",
      targets.size(), " tensors, found ", count);
  std::vector<std::string_view> found;
  for (const auto& target : targets) {
    const auto name = in.text("a name", kNameBytesMax);
    const auto size = in.u64("a size");
    const auto expected = bytes_of(target.shard.elements);
    SHERD_CHECK(
        !in.ok() || (name == name_of(target) && size == expected),
        "[ft] expected ", name_of(target), " of ", expected, " bytes, found ",
        name, " of ", size);
    found.push_back(in.raw("a tensor", expected));
  }
  in.finish("a state").throw_if_failed();
  CheckpointAccess::before_load(state);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto& target = targets[i];
    const auto& place = target.shard.elements;
    const bool direct =
        !target.loaded && place.is_contiguous() && place.is_cpu();
    const auto elements = direct
        ? place
        : device::empty_on_host(
              place.sizes(), place.scalar_type(), place.device());
    copy_bytes(elements.data_ptr(), found[i].data(), found[i].size());
    if (target.loaded) {
      target.loaded(elements);
    } else if (!direct) {
      place.copy_(elements);
    }
  }
  CheckpointAccess::publish(state);
}

}  // namespace sherd::ft
