// SPDX-License-Identifier: Apache-2.0
//
// The point-to-point messages of a backend: a channel, and the thread that moves them, which is
// started with the first message. Thread rule: any thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include "c10d_shm/communicator/p2p_channel.h"
#include "c10d_shm/work.h"

namespace sherd::c10d_shm {

struct ShmGroup;

class P2pWorker : public std::enable_shared_from_this<P2pWorker> {
 public:
  // `aborted` is called when a message fails because the group has ended.
  P2pWorker(std::shared_ptr<ShmGroup> group, std::function<void()> aborted);

  // Completes `work` when the message has arrived, or may be forgotten by its
  // sender. `received` is called before, when a message has arrived; what it
  // throws is the outcome of `work`.
  void send(P2pMessage message, const WorkPtr& work);
  void receive(
      P2pMessage message, const WorkPtr& work, std::function<void()> received);

  // Waits, for two seconds at most, until peers can find each message that was sent in full, and
  // learn of each one that was received: their sends would fail otherwise, when this rank has left.
  void flush();

  // Ends what is under way, with an error; joins the thread. REQUIRES: called
  // before the last reference goes.
  void stop();

 private:
  void complete(const WorkPtr& work, const Status& outcome);
  void start();
  void serve();
  void complete_ended(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<ShmGroup> group_;
  const std::function<void()> aborted_;
  std::mutex mutex_;
  P2pChannel channel_;
  bool stopped_ = false;
  std::thread thread_;  // Keeps a reference.
};

}  // namespace sherd::c10d_shm
