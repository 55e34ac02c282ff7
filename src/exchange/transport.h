// SPDX-License-Identifier: Apache-2.0
//
// Transport is what CollectiveExchange needs of a transport: tagged point-to-point
// messages between the ranks of one group. Implemented over c10d, and by an
// in-process fake that delays, reorders and fails. Indices are positions in
// the group, errors name world ranks. The caller keeps tensors alive and
// unchanged until their transfer was waited for. Thread rule: one thread starts
// transfers, one (the same or another) waits for them; abandon() from any.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"

namespace sherd::exchange {

class Transfer {
 public:
  virtual ~Transfer() = default;

  // Waits until done or the transport's deadline. A failure names the rank and
  // `what` was waited for; the transport is then only good for abandon().
  [[nodiscard]] virtual Status wait(const std::string& what) = 0;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

// Waits for all, in order; stops at the first failure.
inline Status wait_all(const Transfers& transfers, const std::string& what) {
  for (const auto& transfer : transfers) {
    if (auto status = transfer->wait(what); !status.ok()) {
      return status;
    }
  }
  return {};
}

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int index() const = 0;
  virtual int size() const = 0;
  virtual int world_rank(int index) const = 0;

  // Start moving a contiguous tensor. Messages of one (peer, tag) keep order;
  // an empty tensor moves nothing and is done at once.
  virtual std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) = 0;
  virtual std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) = 0;

  // Collective; every rank's string, by index.
  virtual Result<std::vector<std::string>> all_gather(
      const std::string& mine, const std::string& what) = 0;

  // Nothing waits any longer, peers that wait for this rank fail and are told
  // `why`. Idempotent, not collective.
  virtual void abandon(const Status& why) = 0;

  // This rank is done in order: peers that wait for what it has not sent fail.
  // Never waits. Idempotent, not collective; of any thread while no other starts
  // transfers. Only abandon() may follow.
  virtual void leave() = 0;
};

}  // namespace sherd::exchange
