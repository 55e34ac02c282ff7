// SPDX-License-Identifier: Apache-2.0
//
// StatusServer is the HTTP server of the status page: it answers GET of "/", "/metrics" and
// "/status.json". It has a thread of its own and limits connections, request lengths and the time for
// each, so that a slow or silent client blocks nobody: where there are too many, the one that has been
// silent for longest is closed. It asks for a status only when somebody wants to see one. It
// authenticates nobody and therefore listens on this host alone. Thread rule: any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include "base/status.h"
#include "ft/coordinator/status.h"

namespace sherd::ft {

class StatusServer {
 public:
  // `address`: such as "127.0.0.1:8080" or "[::1]:0"; port 0: any. Throws Error for an address that
  // is not a loopback one; a Status when the port cannot be had. `ask` is called from the server's
  // thread when somebody wants to see the status and the last one is old: show() is to follow from any
  // thread. When it does not, the last one is shown. Empty: the last one is always shown.
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

struct HttpAnswer {
  int code = 200;
  std::string content_type;
  std::string body;
};

// The answer to the head of a request, which is all before the empty line.
HttpAnswer answer_to(const std::string& head, const RunStatus& status);

}  // namespace sherd::ft
