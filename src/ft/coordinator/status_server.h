// SPDX-License-Identifier: Apache-2.0
//
// StatusServer answers HTTP GETs of the status page: "/", "/metrics" and
// "/status.json", everything else 404. It has a thread of its own, which a slow or
// silent browser cannot block, and takes few connections, short requests and
// little time for each. It has no secret to keep and none to ask for, so it
// listens on this host alone. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include "base/status.h"
#include "ft/coordinator/status.h"

namespace sherd::ft {

class StatusServer {
 public:
  // At "127.0.0.1:8080" or "[::1]:0"; port 0: any. Throws Error for another
  // address than this host's own; a Status when the port cannot be had.
  static Result<std::unique_ptr<StatusServer>> listen(
      const std::string& address);
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // "127.0.0.1:40123".
  const std::string& address() const;

  // What is shown from now on.
  void show(RunStatus status);

 private:
  struct Impl;
  explicit StatusServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct HttpAnswer {
  int code = 200;
  std::string content_type;
  std::string body;
};

// To the head of a request: all before the empty line.
HttpAnswer answer_to(const std::string& head, const RunStatus& status);

}  // namespace sherd::ft
