// SPDX-License-Identifier: Apache-2.0
//
// DonorConnection is the connection of one who fetches to one donor: it dials, asks, and
// then for chunks, a few at a time; that each is what was wanted is checked here,
// what is in it is not. Its owner may destroy it whenever it likes, also in its
// handlers. Thread rule: its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include "base/clock.h"
#include "base/status.h"
#include "ft/transfer/transfer_messages.h"
#include "net/host_address.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft::transfer {

struct DonorConnectionOptions {
  net::HostAddress donor;
  net::Security security{};
  // Of the donor, while something is expected of it.
  Duration silence_max{};
};

// None is called from inside a call of the line.
struct DonorConnectionHandlers {
  // Once.
  std::function<void(const TransferAnswer& answer)> on_answer;
  // In the order of the asking.
  std::function<void(const Chunk& chunk)> on_chunk;
  // Once, and nothing after it. The reason does not name the donor.
  std::function<void(const Status& reason)> on_failed;
};

class DonorConnection {
 public:
  DonorConnection(
      net::Loop& loop,
      const DonorConnectionOptions& options,
      const TransferRequest& request,
      DonorConnectionHandlers handlers);
  DonorConnection(const DonorConnection&) = delete;
  DonorConnection& operator=(const DonorConnection&) = delete;
  ~DonorConnection();

  // REQUIRES: it has answered, and under_way() < kWindow.
  void request_chunk(std::uint64_t place);
  // Chunks that are wanted and have not come.
  std::size_t under_way() const;

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace sherd::ft::transfer
