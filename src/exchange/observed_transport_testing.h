// SPDX-License-Identifier: Apache-2.0
//
// A transport that tells a test of the messages it passes on, and a transfer that does so of its
// wait. Thread rule: as for the inner ones, in whose calls the test is told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include "base/status.h"
#include "exchange/unit_transport.h"
#include "world/transport.h"

namespace sherd::exchange {

class ObservedTransfer final : public world::Transfer {
 public:
  // `before` is called with what is waited for, and its failure is that of the wait; `after` once
  // the wait has ended. Either may be empty.
  ObservedTransfer(
      std::unique_ptr<world::Transfer> inner,
      std::function<Status(const std::string& what)> before,
      std::function<void()> after)
      : inner_(std::move(inner)),
        before_(std::move(before)),
        after_(std::move(after)) {}

  Status wait(const std::string& what) override {
    if (before_) {
      SHERD_RETURN_IF_FAILED(before_(what));
    }
    auto status = inner_->wait(what);
    if (after_) {
      after_();
    }
    return status;
  }

 private:
  const std::unique_ptr<world::Transfer> inner_;
  const std::function<Status(const std::string& what)> before_;
  const std::function<void()> after_;
};

struct ObservedMessage {
  int peer = 0;
  int tag = 0;
  std::int64_t bytes = 0;

  // On a gather transport.
  bool is_shard() const {
    return tag >= kFlatTag && tag < world::Transport::kCollectiveTags;
  }
};

// Either may be empty.
struct TransportObserver {
  std::function<void(const ObservedMessage& message)> on_send = {};
  // Returns the receive that was started, or an ObservedTransfer of it.
  std::function<std::unique_ptr<world::Transfer>(
      const ObservedMessage& message, std::unique_ptr<world::Transfer> receive)>
      on_receive = {};
};

class ObservedTransport final : public world::Transport {
 public:
  ObservedTransport(
      std::shared_ptr<world::Transport> inner, TransportObserver observer)
      : world::Transport(inner->ranks(), inner->world_rank(inner->index())),
        inner_(std::move(inner)),
        observer_(std::move(observer)) {}

  std::unique_ptr<world::Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override {
    if (observer_.on_send) {
      observer_.on_send(message_of(tensor, peer, tag));
    }
    return inner_->send(tensor, peer, tag);
  }
  std::unique_ptr<world::Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override {
    auto receive = inner_->receive(tensor, peer, tag);
    return observer_.on_receive
        ? observer_.on_receive(
              message_of(tensor, peer, tag), std::move(receive))
        : std::move(receive);
  }
  void abandon(const Status& why) override { inner_->abandon(why); }
  void leave() override { inner_->leave(); }

 private:
  static ObservedMessage message_of(
      const at::Tensor& tensor, int peer, int tag) {
    return {
        .peer = peer,
        .tag = tag,
        .bytes = static_cast<std::int64_t>(tensor.nbytes())};
  }

  const std::shared_ptr<world::Transport> inner_;
  const TransportObserver observer_;
};

}  // namespace sherd::exchange
