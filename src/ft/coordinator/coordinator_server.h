// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorServer is what surrounds the state machine of the coordinator: it hears replicas
// over connections, has the machine decide, writes records to the log before it
// tells anybody what follows from them, and watches for those that are silent or
// hang. While the log cannot be written nothing is decided; afterwards a new term
// begins from what is on the disk. Thread rule: its loop.
#pragma once

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

struct CoordinatorServerOptions {
  // Behaviour. Where replicas connect; port 0: any.
  net::HostAddress address;
  net::ListenerOptions listen;
  // Behaviour. The log's file.
  std::string log;
  CoordinatorOptions coordinator;
  FailureDetectorOptions detector;
  // Behaviour. Who is connected must report within it.
  Duration first_report_timeout = std::chrono::seconds(5);
  // Behaviour. Between two tries when the log cannot be written; doubles from
  // min to max.
  Duration log_retry_min = std::chrono::milliseconds(100);
  Duration log_retry_max = std::chrono::seconds(2);
};

class CoordinatorServer {
 public:
  // `on_end` hears, from the loop and once, why it cannot go on: the log belongs
  // to another coordinator now, or is damaged. The loop outlives the service.
  // Throws Error for options that make no sense.
  static Result<std::unique_ptr<CoordinatorServer>> start(
      net::Loop& loop,
      const CoordinatorServerOptions& options,
      std::function<void(const Status& why)> on_end);
  // Closes all connections.
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  // With the port that it has.
  net::HostAddress address() const;
  RunStatus status();

 private:
  struct Impl;
  explicit CoordinatorServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
