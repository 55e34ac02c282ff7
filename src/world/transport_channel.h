// SPDX-License-Identifier: Apache-2.0
//
// TransportChannel is one of several transports over the same connections
// (WorldOptions::share_connections). Each has tags of its own, for messages and for collectives, so
// that their users need not know of each other. A failure affects all channels. A channel does not
// leave by itself: the connections do when the world closes. Thread rule: that of Transport, for
// each channel.
#pragma once

#include <memory>
#include <sherd/world/world.h>
#include "world/transport.h"

namespace sherd::world {

class TransportChannel final : public Transport {
 public:
  // Channels are numbered from 0 to kMost - 1, equally on all ranks. No two of the same connections
  // ever have the same number.
  static constexpr int kMost = 64;
  // It keeps `world`, whose watch `connections` need.
  TransportChannel(
      World world, std::shared_ptr<Transport> connections, int number);

  std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override;
  std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override;
  void abandon(const Status& why) override;
  void leave() override {}

 private:
  int shared_tag(int tag) const;

  const World world_;
  const std::shared_ptr<Transport> connections_;
  const int number_;
};

}  // namespace sherd::world
