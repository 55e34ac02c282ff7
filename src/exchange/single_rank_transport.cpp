// SPDX-License-Identifier: Apache-2.0
#include "exchange/single_rank_transport.h"

#include "base/check.h"

namespace sherd::exchange {
namespace {

class SingleRankTransport final : public Transport {
 public:
  explicit SingleRankTransport(int world_rank) : world_rank_(world_rank) {}

  int index() const override { return 0; }
  int size() const override { return 1; }
  int world_rank(int /*index*/) const override { return world_rank_; }

  std::unique_ptr<Transfer> send(
      const at::Tensor& /*tensor*/, int peer, int /*tag*/) override {
    return nobody(peer);
  }
  std::unique_ptr<Transfer> receive(
      const at::Tensor& /*tensor*/, int peer, int /*tag*/) override {
    return nobody(peer);
  }
  Result<std::vector<std::string>> all_gather(
      const std::string& mine, const std::string& /*what*/) override {
    return std::vector<std::string>{mine};
  }
  void abandon(const Status& /*why*/) override {}
  void leave() override {}

 private:
  static std::unique_ptr<Transfer> nobody(int peer) {
    SHERD_ASSERT(false, "a rank alone has no peer ", peer);
    return nullptr;
  }

  const int world_rank_;
};

}  // namespace

std::unique_ptr<Transport> make_single_rank_transport(int world_rank) {
  return std::make_unique<SingleRankTransport>(world_rank);
}

}  // namespace sherd::exchange
