// SPDX-License-Identifier: Apache-2.0
//
// StatusServer is the HTTP server of the status page: it answers GET requests for "/", "/metrics"
// and "/status.json". It has a thread of its own and limits connections, request lengths and the
// time for each, so that a slow or silent client blocks nobody; when there are too many clients,
// the one that has been silent longest is closed. It asks for a status only when a client requests
// one. It authenticates nobody and therefore listens on loopback addresses only. Thread rule: any
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include "base/status.h"
#include "ft/coordinator/status.h"

namespace sherd::ft {

class StatusServer {
 public:
  // `address` is for example "127.0.0.1:8080" or "[::1]:0"; port 0 takes any free port. Throws
  // Error for an address that is not a loopback one; returns a Status if the port is not available.
  // `ask` is called from the server's thread when a client requests the status and the last one is
  // old; show() should then follow, from any thread. If it does not, or if `ask` is empty, the last
  // status is shown.
  static Result<std::unique_ptr<StatusServer>> listen(
      const std::string& address, std::function<void()> ask = {});
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // "127.0.0.1:40123".
  const std::string& address() const;

  // Replaces the status that is shown.
  void show(RunStatus status);

 private:
  struct Impl;
  explicit StatusServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The answer of HTTP to the head of a request, which ends at the empty line.
std::string answer_to(const std::string& head, const RunStatus& status);

}  // namespace sherd::ft
