// SPDX-License-Identifier: Apache-2.0
#include "support/fault_server.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <utility>

namespace sherd::test {
namespace {

void set_no_delay(const Descriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Descriptor dial(int port) {
  Descriptor socket(
      ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) {
    return socket;
  }
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  // Whether it succeeded is checked when the socket has room.
  [[maybe_unused]] const int started = ::connect(
      socket.get(), reinterpret_cast<const sockaddr*>(&address),
      sizeof address);
  set_no_delay(socket);
  return socket;
}

void close_with_reset(Descriptor& socket) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket.close();
}

// Unread bytes would turn the close into a reset.
void close_with_end(Descriptor& socket) {
  std::array<char, 4096> buffer;  // NOLINT: recv() fills it.
  ::shutdown(socket.get(), SHUT_WR);
  while (::recv(socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
  }
  socket.close();
}

}  // namespace

// A filter on the socket: a packet that it drops is lost.
bool lose_segments(const Descriptor& socket, int per_mille) {
  constexpr std::uint32_t kAll = std::numeric_limits<std::uint32_t>::max();
  constexpr auto kDrawn =
      static_cast<std::uint32_t>(SKF_AD_OFF + SKF_AD_RANDOM);
  const std::uint32_t lost = kAll / 1000 * static_cast<unsigned>(per_mille);
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kDrawn),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, lost, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kAll), BPF_STMT(BPF_RET | BPF_K, 0)};
  const sock_fprog filter = {
      static_cast<unsigned short>(std::size(steps)), steps};
  return ::setsockopt(
             socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter,
             sizeof filter) == 0;
}

bool can_lose_segments() {
  return lose_segments(
      Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 10);
}

FaultServer::FaultServer(
    const FaultProxyOptions& options, Descriptor listener, Descriptor control)
    : random_(options.seed),
      target_port_(options.target_port),
      segments_lost_per_mille_(options.segments_lost_per_mille),
      listener_(std::move(listener)),
      control_(std::move(control)) {}

void FaultServer::run() {
  while (!over_) {
    poll_once();
  }
}

void FaultServer::poll_once() {
  std::vector<pollfd> polled = {
      {control_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Connection& each : connections_) {
    add_polled(each, polled);
  }
  int timeout_ms = -1;
  if (const auto due = deadline()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::max(Duration(0), *due - clock_.now()));
    timeout_ms = static_cast<int>(
        std::min<std::int64_t>(left.count(), std::numeric_limits<int>::max()));
  }
  if (::poll(polled.data(), polled.size(), timeout_ms) < 0) {
    return;
  }
  std::size_t next = 2;
  for (auto each = connections_.begin(); each != connections_.end();) {
    const Cut how = handle(*each, polled[next], polled[next + 1]);
    next += 2;
    cut(*each, how);
    each = each->client.open() ? std::next(each) : remove(each);
  }
  if (polled[1].revents != 0) {
    accept();
  }
  pump();
  if (polled[0].revents != 0) {
    obey();
  }
  if (waiting_ && traffic() != waiting_->seen) {
    answer(waiting_->serial);
    waiting_.reset();
  }
}

void FaultServer::add_polled(
    const Connection& each, std::vector<pollfd>& polled) const {
  const auto events = [&](int in, int out) {
    const bool reads = each.streams[in].wants_input(faults_of(each, in));
    const int wanted =
        (reads ? POLLIN : 0) | (each.streams[out].wants_room() ? POLLOUT : 0);
    return static_cast<short>(each.connecting ? 0 : wanted);
  };
  const short client = events(0, 1);
  const auto target =
      static_cast<short>(each.connecting ? POLLOUT : events(1, 0));
  // Without events it is left out of the poll; otherwise a hang-up would wake it forever.
  polled.push_back({client != 0 ? each.client.get() : -1, client, 0});
  polled.push_back({target != 0 ? each.target.get() : -1, target, 0});
}

Cut FaultServer::handle(
    Connection& each, const pollfd& client, const pollfd& target) {
  if (each.connecting) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (target.revents == 0) {
      return Cut::kNone;
    }
    ::getsockopt(each.target.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    each.connecting = false;
    if (segments_lost_per_mille_ > 0) {
      lose_segments(each.client, segments_lost_per_mille_);
      lose_segments(each.target, segments_lost_per_mille_);
    }
    return error == 0 ? Cut::kNone : Cut::kReset;
  }
  const pollfd* from[2] = {&client, &target};
  for (const int direction : {0, 1}) {
    if ((from[1 - direction]->revents & POLLOUT) != 0) {
      each.streams[direction].room_came();
    }
  }
  for (const int direction : {0, 1}) {
    FaultStream& stream = each.streams[direction];
    const Faults faults = faults_of(each, direction);
    const bool struck = stream.struck();
    Cut how = Cut::kNone;
    if ((from[direction]->revents & ~POLLOUT) != 0 &&
        stream.wants_input(faults)) {
      how = stream.take(faults, clock_.now(), random_);
    }
    strikes_left_[direction] -= !struck && stream.struck() ? 1 : 0;
    if (how != Cut::kNone) {
      return how;
    }
  }
  return Cut::kNone;
}

std::optional<Instant> FaultServer::deadline() const {
  std::optional<Instant> first;
  for (const Connection& each : connections_) {
    for (const int direction : {0, 1}) {
      const auto mine = each.connecting
          ? std::nullopt
          : each.streams[direction].deadline(faults_of(each, direction));
      if (mine && (!first || *mine < *first)) {
        first = mine;
      }
    }
  }
  return first;
}

void FaultServer::obey() {
  FaultCommand command;
  const ssize_t count =
      ::recv(control_.get(), &command, sizeof command, MSG_DONTWAIT);
  if (count != sizeof command) {
    over_ = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    return;
  }
  waiting_.reset();
  const int direction = static_cast<int>(command.direction);
  switch (command.what) {
    case FaultCommand::What::kSet:
      faults_[direction] = command.faults;
      strikes_left_[direction] = command.faults.strikes_max;
      break;
    case FaultCommand::What::kReset:
      cut_all(Cut::kReset);
      break;
    case FaultCommand::What::kClose:
      cut_all(Cut::kClose);
      break;
    case FaultCommand::What::kRefuse:
    case FaultCommand::What::kAccept:
      refuses_ = command.what == FaultCommand::What::kRefuse;
      break;
    case FaultCommand::What::kTarget:
      target_port_ = command.port;
      break;
    case FaultCommand::What::kChange:
      waiting_ = command;
      return;
    case FaultCommand::What::kNothing:
      break;
  }
  pump();
  answer(command.serial);
}

void FaultServer::answer(std::uint64_t serial) {
  const FaultAnswer answer = {serial, traffic()};
  over_ = ::send(control_.get(), &answer, sizeof answer, MSG_NOSIGNAL) < 0;
}

void FaultServer::accept() {
  Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!client.open()) {
    return;
  }
  ++closed_.connections;
  if (refuses_) {
    close_with_reset(client);
    return;
  }
  set_no_delay(client);
  Descriptor target = dial(target_port_);
  if (!target.open()) {
    close_with_reset(client);
    return;
  }
  const int ends[2] = {client.get(), target.get()};
  connections_.push_back(
      {std::move(client),
       std::move(target),
       true,
       {FaultStream(ends[0], ends[1]), FaultStream(ends[1], ends[0])}});
}

void FaultServer::pump() {
  for (auto each = connections_.begin(); each != connections_.end();) {
    if (each->connecting) {
      ++each;
      continue;
    }
    const bool over = each->streams[0].over() && each->streams[1].over();
    cut(*each, over ? Cut::kClose : forward(*each));
    each = each->client.open() ? std::next(each) : remove(each);
  }
}

Cut FaultServer::forward(Connection& each) {
  for (const int direction : {0, 1}) {
    FaultStream& stream = each.streams[direction];
    const bool struck = stream.struck();
    const Cut how = stream.forward(faults_of(each, direction), clock_.now());
    strikes_left_[direction] -= !struck && stream.struck() ? 1 : 0;
    if (how != Cut::kNone) {
      return how;
    }
  }
  const bool over = each.streams[0].over() && each.streams[1].over();
  return over ? Cut::kClose : Cut::kNone;
}

void FaultServer::cut(Connection& each, Cut how) const {
  for (Descriptor* socket : {&each.client, &each.target}) {
    if (how == Cut::kReset) {
      close_with_reset(*socket);
    } else if (how == Cut::kClose) {
      close_with_end(*socket);
    }
  }
}

void FaultServer::cut_all(Cut how) {
  for (auto each = connections_.begin(); each != connections_.end();) {
    cut(*each, how);
    each = remove(each);
  }
}

std::list<FaultServer::Connection>::iterator FaultServer::remove(
    std::list<Connection>::iterator each) {
  for (const int direction : {0, 1}) {
    const FaultStream& stream = each->streams[direction];
    closed_.bytes_in[direction] += stream.bytes_in();
    closed_.bytes_out[direction] += stream.bytes_out();
    closed_.strikes[direction] += stream.struck() ? 1 : 0;
  }
  return connections_.erase(each);
}

Faults FaultServer::faults_of(const Connection& each, int direction) const {
  Faults faults = faults_[direction];
  if (faults.strikes_max > 0 && strikes_left_[direction] <= 0 &&
      !each.streams[direction].struck()) {
    faults.black_hole_after = faults.close_after = faults.reset_after =
        faults.half_close_after = faults.flip_bit_at = Faults::kNever;
  }
  return faults;
}

Traffic FaultServer::traffic() const {
  Traffic sum = closed_;
  for (const Connection& each : connections_) {
    for (const int direction : {0, 1}) {
      const FaultStream& stream = each.streams[direction];
      sum.bytes_in[direction] += stream.bytes_in();
      sum.bytes_out[direction] += stream.bytes_out();
      sum.strikes[direction] += stream.struck() ? 1 : 0;
    }
    ++sum.open;
  }
  return sum;
}

}  // namespace sherd::test
