// SPDX-License-Identifier: Apache-2.0
#include "world/transport_channel.h"

#include <utility>

namespace sherd::world {
namespace {

// A channel has this many tags for messages, and as many for collectives, which
// next_collective_tag() counts.
constexpr int kTags = Transport::kCollectiveTags / TransportChannel::kMost;
constexpr int kCollectives = 1 << 20;

}  // namespace

TransportChannel::TransportChannel(
    World world, std::shared_ptr<Transport> connections, int number)
    : Transport(
          connections->ranks(), connections->world_rank(connections->index())),
      world_(std::move(world)),
      connections_(std::move(connections)),
      number_(number) {
  SHERD_ASSERT(number >= 0 && number < kMost, "found channel ", number);
}

int TransportChannel::shared_tag(int tag) const {
  if (tag >= kCollectiveTags) {
    return tag + number_ * kCollectives;
  }
  SHERD_CHECK(
      tag >= 0 && tag < kTags, "[world] expected a tag below ", kTags,
      " over shared connections, found ", tag);
  return tag + number_ * kTags;
}

std::unique_ptr<Transfer> TransportChannel::send(
    const at::Tensor& tensor, int peer, int tag) {
  return connections_->send(tensor, peer, shared_tag(tag));
}

std::unique_ptr<Transfer> TransportChannel::receive(
    const at::Tensor& tensor, int peer, int tag) {
  return connections_->receive(tensor, peer, shared_tag(tag));
}

void TransportChannel::abandon(const Status& why) {
  connections_->abandon(why);
}

}  // namespace sherd::world
