// SPDX-License-Identifier: Apache-2.0
//
// send and receive.
#include <utility>
#include "base/check.h"
#include "c10d_shm/collective_operation.h"
#include "c10d_shm/p2p_worker.h"

namespace sherd::c10d_shm {
namespace {

int checked_peer(int peer, int own, int ranks, const char* name) {
  SHERD_CHECK(
      peer >= 0 && peer < ranks && peer != own, "[c10d_shm] ", name,
      ": expected another rank from 0 to ", ranks - 1, ", found ", peer);
  return peer;
}

}  // namespace

C10dWork ShmBackend::send(Tensors& tensors, int destination, int tag) {
  expect_group();
  const auto& tensor = single_element(tensors, "send");
  const auto input = TensorBytes::input(tensor);
  const auto work = c10::make_intrusive<ShmWork>(
      work_options(c10d::OpType::SEND, "shm:send", tensors, tensors),
      // The capture only keeps the bytes alive.
      [input] { return Status(); });
  p2p_->send(
      {.peer = checked_peer(destination, rank_, size_, "send"),
       .tag = tag,
       .type = c10::toString(tensor.scalar_type()),
       .bytes = input.bytes(),
       .timeout = options_->timeout},
      work);
  return work;
}

C10dWork ShmBackend::receive(
    c10d::OpType type, Tensors& tensors, int source, int tag) {
  expect_group();
  const auto& tensor = single_element(tensors, "recv");
  // Read and written: a message may be shorter, and what it does not fill stays unchanged.
  const auto output = TensorBytes::in_place(tensor);
  const auto work = c10::make_intrusive<ShmWork>(
      work_options(
          type, type == c10d::OpType::RECV ? "shm:recv" : "shm:recvAnySource",
          tensors, tensors),
      nullptr);
  p2p_->receive(
      {.peer = source,
       .tag = tag,
       .type = c10::toString(tensor.scalar_type()),
       .bytes = output.bytes(),
       .timeout = options_->timeout},
      work, [output] { output.copy_back(); });
  return work;
}

C10dWork ShmBackend::recv(Tensors& tensors, int source, int tag) {
  return receive(
      c10d::OpType::RECV, tensors, checked_peer(source, rank_, size_, "recv"),
      tag);
}

C10dWork ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  SHERD_CHECK(
      size_ > 1,
      "[c10d_shm] recv: expected another rank in the group, found none");
  return receive(
      c10d::OpType::RECVANYSOURCE, tensors, P2pMessage::kAnyRank, tag);
}

}  // namespace sherd::c10d_shm
