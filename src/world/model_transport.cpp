// SPDX-License-Identifier: Apache-2.0
//
// The transports of models, which may share connections (WorldOptions::share_connections).
#include <utility>
#include "world/transport.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;

// Channels of the same connections are numbered from 0 to kChannels - 1, equally on all ranks, and
// no two ever have the same number.
constexpr int kChannels = 64;
// A channel has this many tags for messages, and as many for collectives, which
// next_collective_tag() counts.
constexpr int kTags = Transport::kCollectiveTags / kChannels;
constexpr int kCollectives = 1 << 20;

// One of several transports over the same connections. Each has tags of its own, for messages and
// for collectives, so that their users need not know of each other. A failure affects all channels.
// A channel does not leave by itself: the connections do when the world closes.
class TransportChannel final : public Transport {
 public:
  // It keeps `world`, whose watch `connections` need.
  TransportChannel(
      World world, std::shared_ptr<Transport> connections, int number)
      : Transport(
            connections->ranks(),
            connections->world_rank(connections->index())),
        world_(std::move(world)),
        connections_(std::move(connections)),
        number_(number) {}

  std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override {
    return connections_->send(tensor, peer, shared_tag(tag));
  }
  std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override {
    return connections_->receive(tensor, peer, shared_tag(tag));
  }
  void abandon(const Status& why) override { connections_->abandon(why); }
  void leave() override {}

 private:
  int shared_tag(int tag) const {
    if (tag >= kCollectiveTags) {
      return tag + number_ * kCollectives;
    }
    SHERD_CHECK(
        tag >= 0 && tag < kTags, "[world] expected a tag below ", kTags,
        " over shared connections, found ", tag);
    return tag + number_ * kTags;
  }

  const World world_;
  const std::shared_ptr<Transport> connections_;
  const int number_;
};

// Names end with the purpose of the transport: "fsdp/0/gather".
std::string key_of_connections(
    const std::string& name,
    const std::vector<int>& ranks,
    milliseconds deadline) {
  auto key = str(name.substr(name.rfind('/') + 1), " ", deadline.count());
  for (const int rank : ranks) {
    key += str(" ", rank);
  }
  return key;
}

std::shared_ptr<Transport> take_channel(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    milliseconds deadline) {
  auto& impl = *world.impl();
  auto& shared = impl.shared[key_of_connections(name, ranks, deadline)];
  const int channel = shared.channels % kChannels;
  if (channel == 0) {
    shared.groups.push_back(impl.make_group(name, ranks, deadline));
  }
  ++shared.channels;
  return std::make_shared<TransportChannel>(
      world, shared.groups.back(), channel);
}

}  // namespace

std::shared_ptr<Transport> make_model_transport(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    std::optional<milliseconds> deadline) {
  return world.options().share_connections && ranks.size() > 1
      ? take_channel(
            world, name, ranks, deadline.value_or(world.options().deadline))
      : make_c10d_transport(world, name, ranks, deadline);
}

}  // namespace sherd::world
