// SPDX-License-Identifier: Apache-2.0
//
// Post moves the messages of a backend: a mailbox and the thread that looks
// after it, which is started with the first message. Thread rule: any thread.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include "comm/shm/mailbox.h"
#include "comm/shm_backend/work.h"

namespace sherd::comm::shm {

struct Group;

class Post : public std::enable_shared_from_this<Post> {
 public:
  explicit Post(std::shared_ptr<Group> group);

  // Completes `work` when the message has arrived, or may be forgotten by its
  // sender. `received` is called before, when a message has arrived; what it
  // throws is the outcome of `work`.
  void send(Parcel message, const WorkPtr& work);
  void receive(
      Parcel message, const WorkPtr& work, std::function<void()> received);

  // Ends what is under way, with an error; joins the thread. REQUIRES: called
  // before the last reference goes.
  void stop();

 private:
  void start();
  void serve();
  void complete_ended(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<Group> group_;
  std::mutex mutex_;
  Mailbox mailbox_;
  bool stopped_ = false;
  std::thread thread_;  // Keeps a reference.
};

}  // namespace sherd::comm::shm
