// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "net/host_address.h"
#include "net/security.h"
#include "net/tcp_socket.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kClientsMax = 32;
constexpr std::size_t kHeadBytesMax = 8192;
// The time limit of a whole connection.
constexpr Duration kClientTime = std::chrono::seconds(2);
// How long to wait after accept() itself has failed: descriptors have run out, and clients in the
// queue keep waiting.
constexpr Duration kAcceptAgainAfter = std::chrono::milliseconds(100);
// A status younger than this is shown again.
constexpr Duration kFreshFor = std::chrono::milliseconds(100);
// How long a client waits for a new status, whose maker may be waiting for the disk.
constexpr Duration kAskedFor = std::chrono::milliseconds(500);

// Throws Error unless it is a loopback address.
std::vector<net::SocketAddress> loopback_of(const net::HostAddress& address) {
  const std::string host =
      address.host == "localhost" ? "127.0.0.1" : address.host;
  SHERD_CHECK(
      net::is_loopback(host),
      "[ft] expected the status page on 127.0.0.1 or [::1], since it "
      "asks nobody who they are, found '",
      address.text(), "'");
  return net::addresses_of(host, address.port).value();
}

std::string answer_of(
    const char* status, const char* content_type, const std::string& body) {
  return str(
      "HTTP/1.1 ", status, "\r\nContent-Type: ", content_type,
      "\r\nContent-Length: ", body.size(),
      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'"
      "\r\nConnection: close\r\n\r\n",
      body);
}

std::string plain(const char* status, const char* text) {
  return answer_of(status, "text/plain; charset=utf-8", text);
}

struct Client {
  Descriptor socket;
  Instant until{};
  std::string head{};
  // Until when the client, which has sent its request, waits for a new status.
  std::optional<Instant> waits_until{};
  // What is left to send; empty if there is no answer yet.
  std::string answer{};

  // Whether it has not sent its request yet.
  bool idle() const { return answer.empty() && !waits_until; }
  short events() const {
    return static_cast<short>(
        !answer.empty()   ? POLLOUT
            : waits_until ? 0
                          : POLLIN);
  }
};

}  // namespace

std::string answer_to(const std::string& head, const RunStatus& status) {
  const std::string_view line =
      std::string_view(head).substr(0, head.find("\r\n"));
  const auto path_at = line.find(' ');
  const auto path_end = line.rfind(" HTTP/1.");
  if (path_end == std::string_view::npos || path_at >= path_end) {
    return plain("400 Bad Request", "expected a request of HTTP/1\n");
  }
  if (line.substr(0, path_at) != "GET") {
    return plain("405 Method Not Allowed", "expected GET\n");
  }
  auto path = line.substr(path_at + 1, path_end - path_at - 1);
  path = path.substr(0, path.find('?'));
  if (path == "/") {
    return answer_of("200 OK", "text/html; charset=utf-8", html_of(status));
  }
  if (path == "/metrics") {
    return answer_of(
        "200 OK", "text/plain; version=0.0.4; charset=utf-8",
        prometheus_of(status));
  }
  if (path == "/status.json") {
    return answer_of("200 OK", "application/json", json_of(status));
  }
  return plain("404 Not Found", "expected /, /metrics or /status.json\n");
}

struct StatusServer::Impl {
  Descriptor listener;
  // Becomes readable when the thread shall end, and stays so since nobody reads it.
  Descriptor stop;
  Descriptor shows;  // Readable when there is a new status.
  std::string address;
  std::function<void()> ask;
  std::mutex mutex;  // Guards the two below.
  RunStatus shown;
  std::optional<Instant> shown_at;
  // The thread owns this and what follows. Oldest first.
  std::vector<Client> clients;
  bool asked = false;      // Nothing was shown since it asked.
  Instant accept_again{};  // No client is accepted before this time.
  SteadyClock clock;
  std::thread thread;

  void run() {
    std::vector<pollfd> polled;
    while (wait(polled)) {
      const Instant now = clock.now();
      // Goes from the back, so that the indices of earlier clients stay valid.
      for (std::size_t i = clients.size(); i-- > 0;) {
        const bool ready = polled[i + 3].revents != 0;
        if (now >= clients[i].until || (ready && !serve(clients[i]))) {
          clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      answer_waiting(now);
      if (polled[1].revents != 0) {
        accept();
      }
    }
  }

  // Returns false when the thread shall end.
  bool wait(std::vector<pollfd>& polled) const {
    const Instant from = clock.now();
    polled = {
        {stop.get(), POLLIN, 0},
        {listener.get(), static_cast<short>(accepts(from) ? POLLIN : 0), 0},
        {shows.get(), POLLIN, 0}};
    auto next =
        from < accept_again ? std::optional(accept_again) : std::nullopt;
    for (const Client& client : clients) {
      polled.push_back({client.socket.get(), client.events(), 0});
      next = earlier(earlier(next, client.until), client.waits_until);
    }
    (void)::poll(polled.data(), polled.size(), poll_ms(clock.now(), next));
    return polled[0].revents == 0;
  }

  // While all of them are being answered, others wait for their turn.
  bool accepts(Instant now) const {
    return now >= accept_again &&
        (clients.size() < kClientsMax ||
         std::ranges::any_of(
             clients, [](const Client& one) { return one.idle(); }));
  }

  void accept() {
    Descriptor socket(::accept4(
        listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) {
      const bool for_lack = errno == EMFILE || errno == ENFILE ||
          errno == ENOBUFS || errno == ENOMEM;
      accept_again = for_lack ? clock.now() + kAcceptAgainAfter : accept_again;
      return;
    }
    if (clients.size() >= kClientsMax) {
      const auto oldest = std::ranges::find_if(
          clients, [](const Client& one) { return one.idle(); });
      if (oldest == clients.end()) {
        return;
      }
      clients.erase(oldest);
    }
    clients.push_back(
        {.socket = std::move(socket), .until = clock.now() + kClientTime});
    // A client that has already sent its request is not idle.
    if (!serve(clients.back())) {
      clients.pop_back();
    }
  }

  // Whether there is more to do for the client.
  bool serve(Client& client) {
    if (client.waits_until) {
      return false;  // The client is gone.
    }
    if (client.answer.empty()) {
      std::array<char, 4096> bytes{};
      const auto count =
          ::recv(client.socket.get(), bytes.data(), bytes.size(), 0);
      if (count <= 0) {
        return count < 0 && (errno == EAGAIN || errno == EINTR);
      }
      client.head.append(bytes.data(), static_cast<std::size_t>(count));
      finish_head(client);
    }
    return client.answer.empty() || send_answer(client);
  }

  bool send_answer(Client& client) const {
    const auto count = ::send(
        client.socket.get(), client.answer.data(), client.answer.size(),
        MSG_NOSIGNAL);
    if (count < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    client.answer.erase(0, static_cast<std::size_t>(count));
    return !client.answer.empty();
  }

  void finish_head(Client& client) {
    const auto end = client.head.find("\r\n\r\n");
    if (end != std::string::npos) {
      client.head.resize(end);
      want_status(client);
    } else if (client.head.size() > kHeadBytesMax) {
      client.answer = plain("400 Bad Request", "expected a shorter request\n");
    }
  }

  void want_status(Client& client) {
    const Instant now = clock.now();
    bool fresh = !ask;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      fresh = fresh || (shown_at && now - *shown_at < kFreshFor);
    }
    if (fresh) {
      answer(client);
      return;
    }
    client.waits_until = now + kAskedFor;
    if (!std::exchange(asked, true)) {
      ask();
    }
  }

  void answer(Client& client) {
    RunStatus status;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      status = shown;
    }
    client.waits_until.reset();
    client.answer = answer_to(client.head, status);
  }

  void answer_waiting(Instant now) {
    std::uint64_t count = 0;
    const bool is_new = ::read(shows.get(), &count, sizeof count) > 0;
    asked = asked && !is_new;
    for (Client& client : clients) {
      if (client.waits_until && (is_new || now >= *client.waits_until)) {
        answer(client);
      }
    }
  }
};

Result<std::unique_ptr<StatusServer>> StatusServer::listen(
    const std::string& address, std::function<void()> ask) {
  auto where = net::parse_host_address(address);
  auto listening = net::listen_on(loopback_of(where));
  auto impl = std::make_unique<Impl>();
  impl->ask = std::move(ask);
  impl->stop = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  impl->shows = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!listening.ok() || !impl->stop.open() || !impl->shows.open()) {
    return Status(
        ErrorCode::kUnavailable,
        str("[ft] cannot show the status at ", where.text(), ": ",
            listening.ok() ? std::strerror(errno)
                           : listening.status().message()));
  }
  where.port = listening.value().port;
  impl->listener = std::move(listening).value().socket;
  impl->address = where.text();
  // Signals are left to the threads that wait for them.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  impl->thread = std::thread([at = impl.get()] { at->run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return std::unique_ptr<StatusServer>(new StatusServer(std::move(impl)));
}

StatusServer::StatusServer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

StatusServer::~StatusServer() {
  const std::uint64_t one = 1;
  SHERD_ASSERT(::write(impl_->stop.get(), &one, sizeof one) == sizeof one);
  impl_->thread.join();
}

const std::string& StatusServer::address() const { return impl_->address; }

void StatusServer::show(RunStatus status) {
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->shown = std::move(status);
    impl_->shown_at = impl_->clock.now();
  }
  const std::uint64_t one = 1;
  SHERD_ASSERT(::write(impl_->shows.get(), &one, sizeof one) == sizeof one);
}

}  // namespace sherd::ft
