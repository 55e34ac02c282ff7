// SPDX-License-Identifier: Apache-2.0
#include "ddp/broadcast_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "autograd/param_key.h"
#include "base/copy_bytes.h"
#include "world/collectives.h"

namespace sherd::ddp {
namespace {

// Smaller tensors are copied together, because a copy costs less than a message.
constexpr std::size_t kAloneBytes = std::size_t{64} << 10;

at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.mutable_data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())},
      at::kByte);
}

// Messages are sent from the CPU.
Status broadcast_on_host(
    const std::vector<at::Tensor>& tensors,
    world::Transport& via,
    int root,
    const std::string& what) {
  std::int64_t packed = 0;
  for (const auto& tensor : tensors) {
    if (tensor.nbytes() < kAloneBytes) {
      packed += static_cast<std::int64_t>(tensor.nbytes());
    } else {
      SHERD_RETURN_IF_FAILED(
          world::Collectives(via, what).broadcast({bytes_of(tensor)}, root));
    }
  }
  if (packed == 0) {
    return {};
  }
  const auto pack = at::empty({packed}, at::kByte);
  const auto each = [&](auto&& move) {
    auto* at = static_cast<char*>(pack.mutable_data_ptr());
    for (const auto& tensor : tensors) {
      if (tensor.nbytes() < kAloneBytes) {
        move(
            at, static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes());
        at += tensor.nbytes();
      }
    }
  };
  if (via.index() == root) {
    each([](char* room, const char* value, std::size_t bytes) {
      copy_bytes(room, value, bytes);
    });
  }
  auto status = world::Collectives(via, what).broadcast({pack}, root);
  if (status.ok() && via.index() != root) {
    each([](const char* room, char* value, std::size_t bytes) {
      copy_bytes(value, room, bytes);
    });
  }
  return status;
}

}  // namespace

Status broadcast(
    const std::vector<at::Tensor>& tensors,
    world::Transport& via,
    int root,
    const std::string& what) {
  const at::NoGradGuard no_grad;
  // The model's lock may be held; a parameter that announces itself would wait for it.
  const auto no_announcements = autograd::exclude_param_key();
  std::vector<at::Tensor> on_host;  // Tensors on the host, and copies there.
  for (const auto& tensor : tensors) {
    on_host.push_back(tensor.is_cpu() ? tensor : tensor.detach().cpu());
  }
  auto status = broadcast_on_host(on_host, via, root, what);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (status.ok() && via.index() != root && !tensors[i].is_cpu()) {
      tensors[i].detach().copy_(on_host[i]);
    }
  }
  return status;
}

}  // namespace sherd::ddp
