// SPDX-License-Identifier: Apache-2.0
//
// The point-to-point messages of a backend: a channel, and the thread that moves them, which starts
// with the first message. Thread rule: any thread.
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

  // Completes `work` when the message has arrived, or when its sender need not keep it any more.
  // `received` is called before that, when a message has arrived; if it throws, that is the outcome
  // of `work`.
  void send(P2pMessage message, const WorkPtr& work);
  void receive(
      P2pMessage message, const WorkPtr& work, std::function<void()> received);

  // Waits, for at most two seconds, until peers can find each message that was sent completely, and
  // know of each one that was received: otherwise their sends would fail after this rank has left.
  void flush();

  // Ends operations under way with an error and joins the thread. REQUIRES: called before the last
  // reference is released.
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
  std::thread thread_;  // It holds a reference.
};

}  // namespace sherd::c10d_shm
