// SPDX-License-Identifier: Apache-2.0
#include "exchange/c10d_transport.h"

#include <utility>

#include "world/communicator.h"

namespace sherd::exchange {
namespace {

class C10dTransfer final : public Transfer {
 public:
  C10dTransfer(world::Communicator& via, world::Pending pending)
      : via_(via), pending_(std::move(pending)) {}

  Status wait(const std::string& what) override {
    return via_.wait(pending_, what);
  }

 private:
  world::Communicator& via_;
  world::Pending pending_;
};

class C10dTransport final : public Transport {
 public:
  C10dTransport(
      const World& world,
      const std::string& name,
      std::vector<int> ranks,
      std::optional<std::chrono::milliseconds> deadline)
      : via_(world, name, std::move(ranks), deadline) {}

  int index() const override { return via_.index(); }
  int size() const override { return via_.size(); }
  int world_rank(int index) const override { return via_.world_rank(index); }

  std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override {
    return std::make_unique<C10dTransfer>(via_, via_.send(tensor, peer, tag));
  }
  std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override {
    return std::make_unique<C10dTransfer>(
        via_, via_.receive(tensor, peer, tag));
  }
  Result<std::vector<std::string>> all_gather(
      const std::string& mine, const std::string& what) override {
    return via_.all_gather(mine, what);
  }
  void abandon(const Status& why) override { via_.abandon(why); }
  void leave() override { via_.leave(); }

 private:
  world::Communicator via_;
};

}  // namespace

std::unique_ptr<Transport> make_c10d_transport(
    const World& world,
    const std::string& name,
    std::vector<int> ranks,
    std::optional<std::chrono::milliseconds> deadline) {
  return std::make_unique<C10dTransport>(world, name, std::move(ranks), deadline);
}

}  // namespace sherd::exchange
