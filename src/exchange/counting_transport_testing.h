// SPDX-License-Identifier: Apache-2.0
//
// A transport that counts the bytes of shards sent to each rank. Thread rule: as for the inner
// transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include "exchange/unit_transport.h"
#include "world/transport.h"

namespace sherd::exchange {

class CountingTransport final : public world::Transport {
 public:
  using OnShard = std::function<void(int peer, std::int64_t bytes)>;

  CountingTransport(std::shared_ptr<world::Transport> inner, OnShard on_shard)
      : world::Transport(inner->ranks(), inner->world_rank(inner->index())),
        inner_(std::move(inner)),
        on_shard_(std::move(on_shard)) {}

  std::unique_ptr<world::Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override {
    if (tag >= kFlatTag && tag < kCollectiveTags) {
      on_shard_(peer, static_cast<std::int64_t>(tensor.nbytes()));
    }
    return inner_->send(tensor, peer, tag);
  }
  std::unique_ptr<world::Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override {
    return inner_->receive(tensor, peer, tag);
  }
  void abandon(const Status& why) override { inner_->abandon(why); }
  void leave() override { inner_->leave(); }

 private:
  const std::shared_ptr<world::Transport> inner_;
  const OnShard on_shard_;
};

}  // namespace sherd::exchange
