// SPDX-License-Identifier: Apache-2.0
#include "net/listener.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <utility>
#include "base/check.h"
#include "base/log.h"
#include "net/asio_headers.h"
#include "net/tcp_socket.h"

namespace sherd::net {

namespace {
// The pause after accept() itself has failed because descriptors ran out.
constexpr auto kAcceptAgainAfter = std::chrono::milliseconds(100);

// The context of a process that listens, perhaps for longer than its certificates are valid: files
// that have changed are read again. If they cannot be used, perhaps because only one of them has
// been replaced yet, the context stays as it was, and the next connection tries again.
class RenewedTls {
 public:
  explicit RenewedTls(const Security& security)
      : security_(security),
        read_(written()),
        context_(make_tls_context(security)) {}

  // Returns null without security. `warn` is called with why changed files are not used.
  std::shared_ptr<TlsContext> context(
      const std::function<void(const std::string&)>& warn) {
    if (const auto now = written(); now != read_) {
      try {
        context_ = make_tls_context(security_);
        read_ = now;
      } catch (const Error& error) {
        warn(error.what());
      }
    }
    return context_;
  }

 private:
  using Written = std::array<std::filesystem::file_time_type, 3>;

  // The times at which the files were written last.
  Written written() const {
    const auto time_of = [](const std::string& path) {
      std::error_code unknown;
      return std::filesystem::last_write_time(path, unknown);
    };
    return security_.kind == Security::Kind::kMutualTls
        ? Written{time_of(security_.files.certificate),
                  time_of(security_.files.key),
                  time_of(security_.files.authority)}
        : Written();
  }

  const Security security_;
  Written read_;
  std::shared_ptr<TlsContext> context_;
};

}  // namespace

struct Listener::Impl : std::enable_shared_from_this<Listener::Impl> {
  Impl(
      Loop& its_loop,
      const ListenerOptions& its_options,
      ListenerHandlers to_call)
      : loop(its_loop),
        options(its_options),
        handlers(std::move(to_call)),
        tls(its_options.security),
        acceptor(its_loop.context()) {}

  // Asio only waits: child processes would inherit sockets that it accepts.
  void accept() {
    acceptor.async_wait(
        Tcp::acceptor::wait_read,
        [self = shared_from_this()](const std::error_code& error) {
          if (!self->closed && !error) {
            self->accept_one();
          }
        });
  }

  void accept_one() {
    const int fd = ::accept4(
        acceptor.native_handle(), nullptr, nullptr,
        SOCK_NONBLOCK | SOCK_CLOEXEC);
    const int error = errno;
    if (fd >= 0) {
      accept();
      accepted(Tcp::socket(
          loop.context(), acceptor.local_endpoint().protocol(), fd));
      return;
    }
    // The waiting client has gone meanwhile.
    if (error == EAGAIN || error == EINTR || error == ECONNABORTED) {
      accept();
      return;
    }
    accept_again =
        loop.after(kAcceptAgainAfter, [impl = this] { impl->accept(); });
    refuse(
        {ErrorCode::kUnavailable,
         str("[net] a connection could not be accepted: ",
             std::strerror(error))});
  }

  void accepted(Tcp::socket socket) {
    std::error_code error;
    const auto peer = socket.remote_endpoint(error);
    if (error) {  // The peer is already gone.
      refuse({ErrorCode::kPeerLost, "[net] a connection ended at once"});
      return;
    }
    if (unfinished.size() >= options.unfinished_max) {
      unfinished.front()->close(
          {ErrorCode::kUnavailable,
           str("[net] ", unfinished.front()->peer(),
               " made way for others: expected at most ",
               options.unfinished_max, " connections without a greeting")});
      unfinished.pop_front();
    }
    const auto context = tls.context([this](const std::string& why) {
      log.warn(
          loop.now(),
          str("[net] certificates have changed and are not used: ", why));
    });
    const auto connection = std::make_shared<Connection>(
        loop,
        make_channel(
            std::move(socket), options.connection, context, Side::kAccepted),
        Side::kAccepted, text_of(peer), options.connection);
    unfinished.push_back(connection);
    connection->greet(
        options.greeting_timeout,
        [self = shared_from_this(), weak = std::weak_ptr(connection)](
            const Status& status) { self->greeted(weak.lock(), status); });
  }

  void greeted(
      const std::shared_ptr<Connection>& connection, const Status& status) {
    const auto at = std::find(unfinished.begin(), unfinished.end(), connection);
    if (at != unfinished.end()) {  // Otherwise it was evicted.
      unfinished.erase(at);
    }
    if (closed) {
      return;
    }
    if (!status.ok()) {
      refuse(status);
      return;
    }
    handlers.on_connection(handle_of(connection));
  }

  void refuse(const Status& reason) {
    log.warn(loop.now(), str(reason.message(), ", at ", address));
    if (handlers.on_refused) {
      handlers.on_refused(reason);
    }
  }

  Loop& loop;
  const ListenerOptions options;
  const ListenerHandlers handlers;
  RenewedTls tls;
  Tcp::acceptor acceptor;
  std::string address;  // The acceptor's.
  LimitedLog log;
  Timer accept_again;
  std::deque<std::shared_ptr<Connection>> unfinished;  // Oldest first.
  bool closed = false;
};

Result<std::unique_ptr<Listener>> Listener::listen(
    Loop& loop,
    const HostAddress& address,
    const ListenerOptions& options,
    ListenerHandlers handlers) {
  SHERD_ASSERT(loop.in_loop() && handlers.on_connection);
  SHERD_CHECK(
      options.unfinished_max > 0,
      "[net] expected room for one unfinished connection, found 0");
  const auto found = addresses_of(address.host, address.port);
  if (found.ok()) {
    for (const auto& one : found.value()) {
      check_security(options.security, numeric(one).host);
    }
  }
  const auto impl = std::make_shared<Impl>(loop, options, std::move(handlers));
  auto result = found.ok() ? listen_on(found.value()) : found.status();
  if (!result.ok()) {
    return Status(
        ErrorCode::kUnavailable,
        str("[net] cannot listen on ", address.text(), ": ",
            result.status().message()));
  }
  auto listening = std::move(result).value();
  impl->acceptor.assign(
      listening.family == AF_INET6 ? Tcp::v6() : Tcp::v4(),
      listening.socket.release());
  impl->address = text_of(impl->acceptor.local_endpoint());
  impl->accept();
  return std::make_unique<Listener>(impl);
}

Listener::Listener(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Listener::~Listener() {
  SHERD_ASSERT(impl_->loop.in_loop());
  impl_->closed = true;
  impl_->accept_again.cancel();
  std::error_code ignored;
  impl_->acceptor.close(ignored);
  for (const auto& connection : std::exchange(impl_->unfinished, {})) {
    connection->abandon();
  }
}

HostAddress Listener::address() const {
  const auto endpoint = impl_->acceptor.local_endpoint();
  return {endpoint.address().to_string(), endpoint.port()};
}

}  // namespace sherd::net
