// SPDX-License-Identifier: Apache-2.0
//
// DonorConnection is the client side of one fetch at one donor: it connects, sends the request and
// asks for chunks, a few at a time. It checks that each chunk is the requested one, but not its
// content. Its owner may destroy it at any time, even in its handlers. Thread rule: its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include "base/status.h"
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_messages.h"
#include "net/host_address.h"
#include "net/loop.h"

namespace sherd::ft::transfer {

// The handlers are not called from inside a call of the connection.
struct DonorConnectionHandlers {
  // Called once.
  std::function<void(const TransferAnswer& answer)> on_answer;
  // Called in the order of the requests.
  std::function<void(const Chunk& chunk)> on_chunk;
  // Called once, as the last handler. The reason does not name the donor.
  std::function<void(const Status& reason)> on_failed;
};

class DonorConnection {
 public:
  DonorConnection(
      net::Loop& loop,
      const net::HostAddress& donor,
      const FetchOptions& options,
      const TransferRequest& request,
      DonorConnectionHandlers handlers);
  DonorConnection(const DonorConnection&) = delete;
  DonorConnection& operator=(const DonorConnection&) = delete;
  ~DonorConnection();

  // REQUIRES: the answer has arrived, and under_way() < kWindow.
  void request_chunk(std::uint64_t place);
  // How many requested chunks have not arrived yet.
  std::size_t under_way() const;

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::ft::transfer
