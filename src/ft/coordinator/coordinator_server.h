// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorServer runs the coordinator's state machine: it receives reports over connections,
// writes records to the log before it sends the views that follow from them, and feeds the machine
// the replicas that its failure detector finds. While the log cannot be written, nothing is
// decided; afterwards a new term begins from what is on disk. Thread rule: its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include "base/status.h"
#include "ft/coordinator/failure_detector.h"
#include "ft/coordinator/status.h"
#include "ft/protocol/coordinator.h"
#include "net/host_address.h"
#include "net/listener.h"
#include "net/loop.h"

namespace sherd::ft {

inline constexpr Duration kLogRetryMin = std::chrono::milliseconds(100);

struct CoordinatorServerOptions {
  // Where replicas connect; port 0 takes any free port.
  net::HostAddress address;
  net::ListenerOptions listen;
  // The log's file.
  std::string log;
  CoordinatorOptions coordinator;
  FailureDetectorOptions detector;
  // A connection whose first report has not come by then is closed.
  Duration first_report_timeout = std::chrono::seconds(5);
  // The time between two attempts to write the log doubles from kLogRetryMin to this.
  Duration log_retry_max = std::chrono::seconds(2);
  // After how many records the log is summarised again.
  std::int64_t summary_every = 1024;
};

class CoordinatorServer {
 public:
  // Starts the server. It calls `on_end` once, from the loop, when it cannot go on: the log now
  // belongs to another coordinator, or is damaged. The loop must outlive the server. Throws Error
  // for invalid options.
  static Result<std::unique_ptr<CoordinatorServer>> start(
      net::Loop& loop,
      const CoordinatorServerOptions& options,
      std::function<void(const Status& why)> on_end);
  // Closes all connections.
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  // With the actual port.
  net::HostAddress address() const;
  RunStatus status();

 private:
  struct Impl;
  explicit CoordinatorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
