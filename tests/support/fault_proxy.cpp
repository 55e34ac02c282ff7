// SPDX-License-Identifier: Apache-2.0
#include "support/fault_proxy.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include "base/check.h"
#include "support/fault_server.h"

namespace sherd::test {
namespace {

using What = FaultCommand::What;

// It answers from its loop, unless it is stopped.
constexpr Duration kAnswerPatience = std::chrono::seconds(30);

// A free port of this host's loopback, and its number.
std::pair<Descriptor, int> listen_anywhere() {
  Descriptor socket(
      ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  SHERD_CHECK_AS(
      kUnavailable,
      socket.open() && ::bind(socket.get(), generic, bytes) == 0 &&
          ::listen(socket.get(), SOMAXCONN) == 0 &&
          ::getsockname(socket.get(), generic, &bytes) == 0,
      "[test] expected a port to listen on, found: ", std::strerror(errno));
  return {std::move(socket), ntohs(address.sin_port)};
}

// All other descriptors of the test are closed here; otherwise the ends of its own connections
// would go unnoticed.
[[noreturn]] void serve(
    const FaultProxyOptions& options, int listener, int control, pid_t test) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != test) {
    ::_exit(1);
  }
  for (int fd = STDERR_FILENO + 1; fd < std::max(listener, control); ++fd) {
    if (fd != listener && fd != control) {
      ::close(fd);
    }
  }
  ::close_range(static_cast<unsigned>(std::max(listener, control)) + 1, ~0U, 0);
  FaultServer(options, Descriptor(listener), Descriptor(control)).run();
  ::_exit(0);
}

FaultCommand command_of(What what) {
  FaultCommand command;
  command.what = what;
  return command;
}

void send(const Descriptor& control, const FaultCommand& command) {
  SHERD_CHECK_AS(
      kPeerLost,
      ::send(control.get(), &command, sizeof command, MSG_NOSIGNAL) ==
          sizeof command,
      "[test] expected a proxy to tell, found: ", std::strerror(errno));
}

}  // namespace

FaultProxy::FaultProxy(const FaultProxyOptions& options) {
  auto [listener, port] = listen_anywhere();
  int ends[2] = {-1, -1};
  SHERD_CHECK_AS(
      kUnavailable,
      ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
      "[test] expected a pair of sockets, found: ", std::strerror(errno));
  control_ = Descriptor(ends[0]);
  const Descriptor its_end(ends[1]);
  port_ = port;
  const pid_t test = ::getpid();
  pid_ = ::fork();
  SHERD_CHECK_AS(
      kUnavailable, pid_ >= 0,
      "[test] expected a process, found: ", std::strerror(errno));
  if (pid_ == 0) {
    serve(options, listener.get(), its_end.get(), test);
  }
}

FaultProxy::~FaultProxy() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void FaultProxy::set(Direction direction, const Faults& faults) {
  FaultCommand command;
  command.what = FaultCommand::What::kSet;
  command.direction = direction;
  command.faults = faults;
  ask(command);
}

void FaultProxy::set_both(const Faults& faults) {
  set(Direction::kToTarget, faults);
  set(Direction::kToClient, faults);
}

void FaultProxy::reset_connections() { ask(command_of(What::kReset)); }
void FaultProxy::close_connections() { ask(command_of(What::kClose)); }
void FaultProxy::refuse_connections() { ask(command_of(What::kRefuse)); }
void FaultProxy::accept_connections() { ask(command_of(What::kAccept)); }

void FaultProxy::set_target_port(int port) {
  FaultCommand command = command_of(What::kTarget);
  command.port = port;
  ask(command);
}

Traffic FaultProxy::traffic() { return ask(command_of(What::kNothing)); }

bool FaultProxy::wait_for(
    const std::function<bool(const Traffic&)>& done, Duration patience) {
  const Instant deadline = SteadyClock().now() + patience;
  FaultCommand command = command_of(What::kChange);
  command.seen = traffic();
  while (!done(command.seen)) {
    command.serial = ++serial_;
    send(control_, command);
    const std::optional<Traffic> changed = answer(deadline);
    if (!changed) {
      return false;
    }
    command.seen = *changed;
  }
  return true;
}

Traffic FaultProxy::ask(FaultCommand command) {
  command.serial = ++serial_;
  send(control_, command);
  return answer(SteadyClock().now() + kAnswerPatience).value();
}

std::optional<Traffic> FaultProxy::answer(Instant deadline) {
  FaultAnswer answer;
  while (answer.serial != serial_) {  // Earlier answers may arrive late.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::max(Duration(0), deadline - SteadyClock().now()));
    pollfd polled = {control_.get(), POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(left.count())) == 0) {
      return std::nullopt;
    }
    SHERD_CHECK_AS(
        kPeerLost,
        ::recv(control_.get(), &answer, sizeof answer, 0) == sizeof answer,
        "[test] expected an answer of the proxy, found it gone");
  }
  return answer.traffic;
}

}  // namespace sherd::test
