// SPDX-License-Identifier: Apache-2.0
#include "world/store_connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <utility>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "base/status.h"
#include "world/detached_call.h"
#include "world/local_addresses.h"
#include "world/rank_record.h"
#include "world/store_wait.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Whether a process accepts a connection at the address within `patience`.
bool accepts(const addrinfo& where, milliseconds patience) {
  const Descriptor socket(
      ::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) {
    return false;
  }
  if (::connect(socket.get(), where.ai_addr, where.ai_addrlen) == 0) {
    return true;
  }
  pollfd writable{socket.get(), POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof(error);
  return errno == EINPROGRESS &&
      ::poll(&writable, 1, static_cast<int>(patience.count())) == 1 &&
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
      error == 0;
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Null if the name is not known. With AI_NUMERICHOST among the flags, it is also null for any name.
Addresses addresses_of(const std::string& host, int port, int flags = 0) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, &::freeaddrinfo};
}

bool somebody_listens(
    const std::string& host, int port, milliseconds patience) {
  // The name may be unknown only for now: names appear while a cluster starts.
  const Addresses found = addresses_of(host, port);
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    if (accepts(*a, patience)) {
      return true;
    }
  }
  return false;
}

// Whether somebody listens at MASTER_ADDR, or begins to within that time.
bool finds_listener(const RankEnvironment& env, milliseconds within) {
  constexpr milliseconds kPatience(1000);
  return look_until(
      SteadyClock().now() + within,
      {.first = milliseconds(2), .longest = milliseconds(100)}, [&] {
        return somebody_listens(
            env.master_addr, env.master_port, std::min(within, kPatience));
      });
}

bool is_loopback(const addrinfo& where) {
  if (where.ai_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(where.ai_addr);
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(where.ai_addr);
  return ntohl(v4->sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
}

struct BoundSocket {
  int fd = -1;
  int error = 0;           // Why there is no socket.
  bool elsewhere = false;  // Because the address is not one of this host.
};

BoundSocket bind_to(const addrinfo& where) {
  Descriptor socket(::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;  // Permits a port whose last owner has just died.
  if (!socket.open() ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) !=
          0 ||
      ::bind(socket.get(), where.ai_addr, where.ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return {.error = errno};
  }
  return {.fd = socket.release()};
}

// On many hosts their own name resolves to a loopback address, but for ranks elsewhere it does not.
bool may_differ_elsewhere(const RankEnvironment& env) {
  return env.local_world_size != env.world_size &&
      env.master_addr != "localhost" &&
      addresses_of(env.master_addr, env.master_port, AI_NUMERICHOST) == nullptr;
}

// A socket for the store at the address where ranks look for it. At any other address only
// strangers would look, and the store authenticates nobody. If it has neither a socket nor an
// error, the address does not belong to this host, or may be a different one for ranks elsewhere.
BoundSocket bind_at_master_address(const RankEnvironment& env) {
  const Addresses found = addresses_of(env.master_addr, env.master_port);
  const bool skips_loopback = may_differ_elsewhere(env);
  BoundSocket bound;
  for (const addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    if (skips_loopback && is_loopback(*a)) {
      continue;
    }
    bound = bind_to(*a);
    if (bound.fd >= 0 || bound.error == EADDRINUSE) {
      return bound;
    }
  }
  const bool elsewhere =
      bound.error == EADDRNOTAVAIL || bound.error == EAFNOSUPPORT;
  return {-1, elsewhere ? 0 : bound.error, elsewhere};
}

// What a failure to reach the store means, to follow "found ".
[[noreturn]] void not_reached(
    const RankEnvironment& env, const std::string& found) {
  throw Error(
      str("[world] rank ", env.rank, " expected the store of rank 0 at ",
          env.master_addr, ":", env.master_port, " (", env.source, "), found ",
          found),
      ErrorCode::kDeadlineExceeded);
}

// c10d limits how long connecting may take, but not the first exchange of messages: a stranger that
// accepts on the port and stays silent would block this rank forever.
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

[[noreturn]] void cannot_listen(
    const RankEnvironment& env, const std::string& why) {
  throw Error(
      str("[world] rank 0 expected to listen on port ", env.master_port,
          ", which is in use (by a World of this process that was not "
          "closed, or by a process group?) or not allowed: ",
          why),
      ErrorCode::kUnavailable);
}

// Where two hosts have the same node rank, one of the two ranks 0 is not at MASTER_ADDR, and meets
// the other one here. Null if there is none: MASTER_ADDR may be wrong, or lead here from outside.
StorePtr store_of_another_rank_0(
    const RankEnvironment& env, milliseconds at_most) {
  // Hosts start at about the same time.
  constexpr milliseconds kPatience(1000);
  if (!finds_listener(env, std::min(at_most, kPatience))) {
    return nullptr;
  }
  try {
    return speak_to_server(env, kPatience);
  } catch (const Error&) {
    return nullptr;  // Proxies accept connections for hosts where nobody listens.
  }
}

std::string not_an_own_address(const std::string& master_addr) {
  return str(
      "rank 0 expected MASTER_ADDR ", master_addr,
      " to be an address of its host, ",
      HostIdentity::of_this_process().hostname,
      ", that other hosts reach; it has ", describe(interface_addresses()));
}

StoreConnection open_server(const RankEnvironment& env, milliseconds deadline) {
  const BoundSocket bound = bind_at_master_address(env);
  if (bound.error != 0) {
    cannot_listen(env, std::strerror(bound.error));
  }
  if (bound.elsewhere) {
    if (auto other = store_of_another_rank_0(env, deadline / 4)) {
      return {std::move(other)};
    }
  }
  c10d::TCPStoreOptions tcp;
  // The store connects with itself. What MASTER_ADDR is for others, it need not be for this host.
  std::string host = "127.0.0.1";
  std::string doubt;
  if (bound.fd >= 0) {
    tcp.masterListenFd = bound.fd;  // The store closes it.
    host = env.master_addr;
  } else {
    doubt = "; " + not_an_own_address(env.master_addr);
    log_warning(
        "[world] rank 0 listens on all addresses of this host for its store" +
        doubt);
  }
  tcp.port = static_cast<std::uint16_t>(env.master_port);
  tcp.isServer = true;
  // torch.distributed.init_process_group() looks for a store of this process at the same port; its
  // keys have a prefix.
  tcp.multiTenant = true;
  // rendezvous() waits for the ranks, and names those that do not arrive.
  tcp.waitWorkers = false;
  tcp.timeout = deadline;
  try {
    return {c10::make_intrusive<c10d::TCPStore>(host, tcp), doubt};
  } catch (const std::exception& error) {
    if (bound.fd >= 0) {
      not_reached(env, "trouble: " + first_line_of(error));
    }
    cannot_listen(env, first_line_of(error));
  }
}

}  // namespace

StoreConnection connect_store(
    const RankEnvironment& env, milliseconds deadline) {
  constexpr milliseconds kSpeakMin(1000);
  if (env.rank == 0 && !env.agent_store) {
    return open_server(env, deadline);
  }
  const SteadyClock clock;
  const Instant end = clock.now() + deadline;
  if (!finds_listener(env, deadline)) {
    not_reached(
        env,
        str("nobody listening within ", seconds(deadline),
            " s: rank 0 did not arrive"));
  }
  const auto rest = std::chrono::duration_cast<milliseconds>(end - clock.now());
  return {speak_to_server(env, std::max(rest, kSpeakMin))};
}

}  // namespace sherd::world
