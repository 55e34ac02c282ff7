// SPDX-License-Identifier: Apache-2.0
//
// DonorConnection is the client side of one fetch at one donor: it connects, sends the request and
// asks for chunks, a few at a time. It checks that each chunk is the requested one, but not its
// content. Its owner may destroy it at any time, even in its handlers. Thread rule: its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include "base/clock.h"
#include "base/status.h"
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_messages.h"
#include "net/connector.h"
#include "net/host_address.h"
#include "net/loop.h"

namespace sherd::ft::transfer {

class DonorConnection : public std::enable_shared_from_this<DonorConnection> {
 public:
  // The handlers are not called from inside a call of the connection.
  struct Handlers {
    // Called once.
    std::function<void(const TransferAnswer& answer)> on_answer;
    // Called in the order of the requests.
    std::function<void(const Chunk& chunk)> on_chunk;
    // Called once, as the last handler. The reason does not name the donor.
    std::function<void(const Status& reason)> on_failed;
  };

  // REQUIRES: a shared pointer will own it.
  DonorConnection(
      net::Loop& loop,
      net::HostAddress donor,
      const FetchOptions& options,
      const TransferRequest& request,
      Handlers handlers);
  DonorConnection(const DonorConnection&) = delete;
  DonorConnection& operator=(const DonorConnection&) = delete;
  ~DonorConnection();

  // Connects. Called once, before anything else.
  void begin();
  // REQUIRES: the answer has arrived, and under_way() < kWindow.
  void request_chunk(std::uint64_t place);
  // How many requested chunks have not arrived yet.
  std::size_t under_way() const { return wanted_.size(); }

 private:
  void dial_donor();
  void connected(net::ConnectionHandle its);
  void watch(Duration time);
  void receive(const net::Frame& frame);
  void receive_answer(const TransferAnswer& its);
  void receive_chunk(const Chunk& chunk);
  void mismatch(const std::string& reason);
  void fail(ErrorCode code, const std::string& reason);
  void close();

  net::Loop& loop_;
  const net::HostAddress donor_;
  const FetchOptions options_;
  const TransferRequest request_;
  const Handlers handlers_;
  bool closed_ = false;  // No handler is called any more.
  std::optional<net::Connector> dial_;
  net::ConnectionHandle connection_;
  net::Timer silence_;
  bool suspected_ = false;   // It was silent at the last check.
  Instant wanted_since_{0};  // Since when something is expected.
  std::optional<TransferAnswer> answer_;
  std::deque<std::uint64_t> wanted_;  // The places of requested chunks.
};

}  // namespace sherd::ft::transfer
