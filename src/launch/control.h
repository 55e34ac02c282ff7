// SPDX-License-Identifier: Apache-2.0
//
// ControlSocket is where a running launcher takes requests of operators: a datagram socket in the
// file system, so that only the file's owner may send requests and a client that hangs costs
// nothing. A request is one datagram, "drain 2"; the reply is another one, "ok ..." or "error ...".
// Thread rule: one thread.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <optional>
#include <string>
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::launch {

struct ControlRequest {
  enum class What { kDrain, kAdmit };
  What what = What::kDrain;
  int replica = 0;
};
// The bytes come from outside; the failure says what was expected.
Result<ControlRequest> parse_control_request(const std::string& text);

class ControlSocket {
 public:
  // Listens at `path`, replacing what a launcher that is gone has left there. Fails if another
  // launcher listens there, or if the path is too long or not writable.
  static Result<ControlSocket> open(const std::string& path);
  ControlSocket(ControlSocket&& other) noexcept = default;
  ControlSocket& operator=(ControlSocket&&) = delete;
  // Removes the path.
  ~ControlSocket();

  int fd() const { return socket_.get(); }
  struct Datagram {
    std::string text;
    sockaddr_un from{};
    socklen_t from_bytes = 0;
  };
  // The next request; does not wait for one.
  std::optional<Datagram> receive();
  // A client that is gone misses the reply.
  void reply(const Datagram& request, const std::string& text);

 private:
  ControlSocket(Descriptor socket, std::string path)
      : socket_(std::move(socket)), path_(std::move(path)) {}

  Descriptor socket_;
  std::string path_;
};

// Sends a request and waits for the answer, which is returned without "ok ". The failure is the
// launcher's refusal, or says that there is no launcher.
Result<std::string> send_control_request(
    const std::string& path, const std::string& request);

}  // namespace sherd::launch
