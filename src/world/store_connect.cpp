// SPDX-License-Identifier: Apache-2.0
#include "world/store_connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <future>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "base/backoff.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/status_from_exception.h"
#include "world/detached_call.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Whether somebody accepts a connection at the address within `patience`.
bool accepts(const addrinfo& where, milliseconds patience) {
  const int fd =
      ::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) {
    return false;
  }
  bool connected = ::connect(fd, where.ai_addr, where.ai_addrlen) == 0;
  if (!connected && errno == EINPROGRESS) {
    pollfd writable{fd, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof(error);
    connected = ::poll(&writable, 1, static_cast<int>(patience.count())) == 1 &&
        ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
        error == 0;
  }
  ::close(fd);
  return connected;
}

bool somebody_listens(const std::string& host, int port) {
  constexpr milliseconds kPatience(1000);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(
          host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    return false;  // Perhaps later: names appear while a cluster starts.
  }
  bool listens = false;
  for (const addrinfo* a = found; a != nullptr && !listens; a = a->ai_next) {
    listens = accepts(*a, kPatience);
  }
  ::freeaddrinfo(found);
  return listens;
}

// What a failure to reach the store means, after "found ".
[[noreturn]] void not_reached(
    const RankEnvironment& env, const std::string& found) {
  throw Error(
      str("[world] rank ", env.rank, " expected the store of rank 0 at ",
          env.master_addr, ":", env.master_port, " (", env.source, "), found ",
          found),
      ErrorCode::kDeadlineExceeded);
}

// c10d bounds how long connecting may take, but not the first exchange of
// words: a stranger on the port that accepts and stays silent would hold us for
// ever.
StorePtr speak_to_server(const RankEnvironment& env, milliseconds deadline) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<std::uint16_t>(env.master_port);
  tcp.waitWorkers = false;
  tcp.timeout = deadline;
  auto store = start_detached([host = env.master_addr, tcp]() {
    return StorePtr(c10::make_intrusive<c10d::TCPStore>(host, tcp));
  });
  if (store.wait_for(deadline) != std::future_status::ready) {
    not_reached(env, "somebody who is none");
  }
  try {
    return store.get();
  } catch (const std::exception& error) {
    not_reached(env, "trouble: " + first_line_of(error));
  }
}

StorePtr open_server(const RankEnvironment& env, milliseconds deadline) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<std::uint16_t>(env.master_port);
  tcp.isServer = true;
  // rendezvous() waits for the ranks, and names those that do not come.
  tcp.waitWorkers = false;
  tcp.timeout = deadline;
  try {
    return c10::make_intrusive<c10d::TCPStore>(env.master_addr, tcp);
  } catch (const std::exception& error) {
    throw Error(
        str("[world] rank 0 expected to listen on port ", env.master_port,
            ", which is in use (by a World of this process that was not "
            "closed?) or not allowed: ",
            first_line_of(error)),
        ErrorCode::kUnavailable);
  }
}

}  // namespace

StorePtr connect_store(const RankEnvironment& env, milliseconds deadline) {
  constexpr milliseconds kSpeakMin(1000);
  if (env.rank == 0 && !env.agent_store) {
    return open_server(env, deadline);
  }
  const SteadyClock clock;
  const Instant end = clock.now() + deadline;
  Backoff backoff({.first = milliseconds(2), .longest = milliseconds(100)});
  InterruptibleWait interrupts;
  while (!somebody_listens(env.master_addr, env.master_port)) {
    interrupts.poll().throw_if_failed();
    if (clock.now() >= end) {
      not_reached(
          env,
          str("nobody listening within ", seconds(deadline),
              " s: rank 0 did not arrive"));
    }
    std::this_thread::sleep_for(backoff.next());
  }
  const auto rest = std::chrono::duration_cast<milliseconds>(end - clock.now());
  return speak_to_server(env, std::max(rest, kSpeakMin));
}

}  // namespace sherd::world
